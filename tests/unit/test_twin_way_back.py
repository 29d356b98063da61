"""A world whose repository has lost the old version: what is said before any drain, and what the preflight says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetctl.decide.candidates import Terms, Why
from fleetctl.decide.plan import Plan, make_plan
from fleetctl.decide.way_back import ask_for
from fleetctl.flows.observe import Lookout, observe
from fleetctl.flows.way_back import ask
from fleetctl.model.fleet import Connection, Fleet, Node
from fleetctl.model.policy import RolloutPolicy
from fleetctl.model.rollout import State
from fleetctl.twin.component import VERSION, TwinDriver, read_node_facts
from fleetctl.twin.ports import TwinNodes, TwinScheduler
from fleetctl.twin.virtual_time import EPOCH
from fleetctl.twin.world import World
from tests.unit.test_twin_rollout import NEW, OLD, POLICY, make_world, roll, states

QUARANTINE = replace(POLICY, on_failed_verify="quarantine")


def plan(world: World, policy: RolloutPolicy = POLICY) -> Plan:
    nodes = {
        name: Node(name, Connection(name), name, {"rack": found.rack}, {VERSION: NEW})
        for name, found in world.nodes.items()
    }
    driver, port = TwinDriver(), TwinNodes(world)

    async def look() -> Plan:
        lookout = Lookout(port, (driver,), read_node_facts, {})
        seen = await observe(lookout, list(nodes.values()), TwinScheduler(world), nodes.values(), now=EPOCH)
        asked = ask_for(seen, nodes, Terms(policy, EPOCH), {driver.name: driver.role})
        lost = await ask(port, nodes, asked)
        return make_plan(replace(seen, lost=lost), Fleet("twin", nodes), policy, ("driver",))

    return world.loop.run_until_complete(look())


def test_a_plan_says_that_there_is_no_way_back_and_takes_none_of_the_nodes() -> None:
    world = make_world()
    world.withdrawn.add(OLD)
    made = plan(world)
    assert {(left.why, left.reason) for left in made.not_planned} == {
        (Why.NO_WAY_BACK, f"no way back: driver={OLD} is in no repository")
    }
    assert len(made.not_planned) == 6
    assert made.nodes == ()
    assert world.laws.drains == 0


def test_a_whole_repository_takes_them_all() -> None:
    assert len(plan(make_world()).nodes) == 6


@pytest.mark.parametrize(("policy", "state"), [(POLICY, State.DEFERRED), (QUARANTINE, State.DONE)])
def test_what_was_lost_since_the_plan_stops_only_who_would_go_back(policy: RolloutPolicy, state: State) -> None:
    world = make_world()
    world.withdrawn.add(OLD)
    controller = roll(world, policy)
    assert set(states(controller).values()) == {state}
    assert world.laws.changes == (6 if state is State.DONE else 0)
    assert plan(world, QUARANTINE).not_planned == ()
