"""What is planned is what the rollout does: both look at the same twin, and every node must end as its plan says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.decide.candidates import Why
from fleetctl.decide.plan import Plan, make_plan
from fleetctl.flows.observe import Lookout, observe
from fleetctl.model.fleet import Connection, Fleet, Node
from fleetctl.model.node_facts import Lease
from fleetctl.model.policy import Limit, RolloutPolicy, StateLimits
from fleetctl.model.rollout import State
from fleetctl.twin.component import VERSION, TwinDriver, read_node_facts
from fleetctl.twin.controller import TwinController, TwinJournal
from fleetctl.twin.laws import Laws
from fleetctl.twin.ports import TwinNodes, TwinScheduler
from fleetctl.twin.virtual_time import VirtualClock, VirtualLoop
from fleetctl.twin.world import Durations, World

OLD, NEW = "570.195.03", "580.95.05"
POLICY = RolloutPolicy(
    canary=1,
    max_unavailable=Limit(8),
    max_failures=99,
    same_signature_stops_at=99,
    limits=StateLimits(draining_s=7200, restarting_s=900),
)
ENDS = {
    Why.HELD: State.HELD,
    Why.LEASED: State.HELD,
    Why.DOWN: State.DEFERRED,
    Why.UNREACHABLE: State.DEFERRED,
    Why.OUTLASTS: State.PENDING,
}
"""How a rollout that took such a node all the same would leave it."""

Lot = st.sampled_from(["behind", "current", "held", "leased", "down", "unreachable", "endless", "busy"])


def make_world(lots: list[str]) -> World:
    laws = Laws(POLICY.max_unavailable.amount)
    world = World(VirtualLoop(), 1, Durations(), laws)
    laws.world = world
    for number, lot in enumerate(lots, 1):
        fault = "unreachable" if lot == "unreachable" else "none"
        node = world.add(f"gpu{number:03}", "r01", NEW if lot == "current" else OLD, fault)  # type: ignore[arg-type]
        if lot == "held":
            world.admin_drains(node.name, "RMA open")
        elif lot == "leased":
            node.lease = Lease("r-other", "ctl-9", 1)
        elif lot == "down":
            node.down = True
        elif lot == "endless":
            world.start_job([node], runs_s=900_000, limit_s=900_000)
        elif lot == "busy":
            world.start_job([node], runs_s=1800, limit_s=3600)
    return world


def plan_for(world: World) -> Plan:
    nodes = {
        node.name: Node(node.name, Connection(node.name), node.name, {"rack": node.rack}, {VERSION: NEW})
        for node in world.nodes.values()
    }
    lookout = Lookout(TwinNodes(world), (TwinDriver(),), read_node_facts, {})
    work = observe(
        lookout, tuple(nodes.values()), TwinScheduler(world), nodes.values(), now=VirtualClock(world.loop).now()
    )
    found = world.loop.run_until_complete(work)
    return make_plan(found, Fleet("twin", nodes), POLICY, ("driver",))


@given(st.lists(Lot, min_size=1, max_size=7))
@settings(max_examples=60, deadline=None)
def test_every_node_ends_as_its_plan_says(lots: list[str]) -> None:
    world = make_world(lots)
    plan = plan_for(world)
    left_alone = {found.node: found.why for found in plan.not_planned}
    # The rollout is given every node, also those that the plan leaves alone: it must come to the same answer.
    controller = TwinController(world, TwinJournal(), replace(POLICY, deferred_again_after_s=86_400), NEW)
    controller.run()
    ended = {name: record.state for name, record in controller.state.records.items()}
    expected = {change.node: State.DONE for change in plan.to_change}
    expected |= dict.fromkeys(plan.current, State.SKIPPED)
    expected |= {node: ENDS[reason] for node, reason in left_alone.items()}
    assert ended == expected


@given(st.lists(Lot, min_size=1, max_size=7))
@settings(max_examples=30, deadline=None)
def test_a_rollout_of_the_planned_nodes_alone_ends_complete(lots: list[str]) -> None:
    world = make_world(lots)
    plan = plan_for(world)
    if not plan.nodes:
        return
    controller = TwinController(world, TwinJournal(), POLICY, NEW, nodes=plan.nodes)
    closed = controller.run()
    assert closed is not None
    assert closed.status == "complete"


def test_looking_changes_nothing() -> None:
    world = make_world(["behind", "held", "busy", "down"])
    before = {name: replace(node, jobs=dict(node.jobs)) for name, node in world.nodes.items()}
    plan_for(world)
    assert world.nodes == before
