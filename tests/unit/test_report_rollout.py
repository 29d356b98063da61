"""How a rollout stands, from its state alone: nodes that nobody looks after are named, with what they wait for."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from fleetctl.model.rollout import State
from fleetctl.report.rollout import as_json, overdue, summary
from fleetctl.twin.controller import TwinController, TwinJournal
from fleetctl.twin.virtual_time import VirtualClock
from tests.unit.test_twin_rollout import NEW, POLICY, make_world

DAY = timedelta(days=1)


def left_at(at_s: float) -> tuple[TwinController, datetime]:
    """A rollout of three nodes, gpu001 with a job of an hour, whose controller was killed; and when."""
    world = make_world(3, max_out=2)
    world.start_job([world.nodes["gpu001"]], runs_s=3600)
    controller = TwinController(world, TwinJournal(), POLICY, NEW, kill_at_s=at_s)
    assert controller.run() is None
    return controller, VirtualClock(world.loop).now()


@pytest.mark.case("F03")
def test_nodes_whose_controller_died_are_named_with_their_age_and_what_they_wait_for() -> None:
    named: dict[State, str] = {}
    for at_s in range(5, 800, 10):
        controller, now = left_at(at_s)
        state = controller.state
        assert overdue(state, now) == {}, "while it ran no node was past its limit"
        late = overdue(state, now + 14 * DAY)
        assert set(late) == {name for name, record in state.records.items() if record.is_under_way}
        for name, why in late.items():
            assert f"\n{'':<21}{name}: past its limit: {why}\n" in f"\n{summary(state, now + 14 * DAY)}\n"
            assert as_json(state, now + 14 * DAY)["nodes"][name]["past_limit"] is True
            named[state.records[name].state] = why
        assert "past its limit" not in summary(state, now)
    assert named[State.DRAINING] == "draining for 14 d (limit 2:00:00): waits for its work to end"
    assert named[State.RESTARTING] == "restarting for 14 d (limit 15:00): waits for the outcome of its restart"
    assert {State.PREFLIGHT, State.APPLYING, State.VERIFYING} <= set(named)


@pytest.mark.case("F03")
def test_what_an_act_found_is_what_a_node_waits_for() -> None:
    world = make_world(1)
    controller = TwinController(world, TwinJournal(), POLICY, NEW, kill_at_s=60)
    controller.run()
    assert controller.state.records["gpu001"].state is State.APPLYING
    # Its successor finds the old change under way, again and again, until it is killed too.
    world.nodes["gpu001"].change_under_way = "for ever"
    successor = TwinController(world, controller.journal, POLICY, NEW, name="ctl-2", kill_at_s=70)
    successor.run()
    late = overdue(successor.state, VirtualClock(world.loop).now() + DAY)
    assert late == {"gpu001": "applying for 24 h (limit 1:00:00): at work on the node: dpkg (1)"}
