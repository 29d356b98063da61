"""The engine in the twin: whole rollouts in virtual time, judged by the world's own record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.model.drift import Refusal
from fleetctl.model.policy import Limit, RolloutPolicy, StateLimits
from fleetctl.model.rollout import Closed, Request, State
from fleetctl.twin.component import TwinDriver
from fleetctl.twin.controller import TwinController, TwinJournal
from fleetctl.twin.laws import Laws
from fleetctl.twin.virtual_time import VirtualLoop
from fleetctl.twin.world import Durations, Fault, World

OLD, NEW = "570.195.03", "580.95.05"
POLICY = RolloutPolicy(
    canary=1,
    max_unavailable=Limit(2),
    max_failures=9,
    same_signature_stops_at=99,
    limits=StateLimits(draining_s=7200, restarting_s=900, verifying_s=600),
)


def make_world(nodes: int = 6, *, seed: int = 1, max_out: int = 2, faults: dict[str, Fault] | None = None) -> World:
    laws = Laws(max_out)
    world = World(VirtualLoop(), seed, Durations(), laws)
    laws.world = world
    for number in range(1, nodes + 1):
        name = f"gpu{number:03}"
        world.add(name, f"r{(number - 1) // 4:02}", OLD, (faults or {}).get(name, "none"), NEW)
    return world


def roll(world: World, policy: RolloutPolicy = POLICY, **more: object) -> TwinController:
    controller = TwinController(world, TwinJournal(), policy, NEW, **more)  # type: ignore[arg-type]
    controller.run()
    return controller


def states(controller: TwinController) -> dict[str, State]:
    return {name: record.state for name, record in controller.state.records.items()}


def test_every_node_ends_done_on_the_new_version_and_back_at_work() -> None:
    world = make_world()
    controller = roll(world)
    assert controller.state.closed is not None
    assert controller.state.closed.status == "complete"
    assert set(states(controller).values()) == {State.DONE}
    assert all(node.loaded == NEW and not node.cordoned and node.lease is None for node in world.nodes.values())
    assert world.laws.restarts == 6


def test_a_converged_fleet_is_verified_and_never_changed() -> None:
    world = make_world()
    roll(world)
    changes = world.laws.changes
    second = roll(world, rollout="r-second")
    assert set(states(second).values()) == {State.SKIPPED}
    assert world.laws.changes == changes


@pytest.mark.parametrize(
    ("fault", "state", "version"),
    [
        ("apply_fails", State.ROLLED_BACK, OLD),
        ("module_missing", State.ROLLED_BACK, OLD),
        ("verify_fails", State.ROLLED_BACK, OLD),
        ("gpu_lost", State.QUARANTINED, NEW),
        ("reboot_hangs", State.QUARANTINED, OLD),
        ("preflight_blocked", State.DEFERRED, OLD),
        ("unreachable", State.DEFERRED, OLD),
    ],
)
def test_a_node_that_fails_ends_as_the_lifecycle_says(fault: Fault, state: State, version: str) -> None:
    world = make_world(faults={"gpu003": fault})
    world.nodes["gpu003"].fault_for = NEW if fault in ("apply_fails", "module_missing", "verify_fails") else ""
    controller = roll(world)
    ended = states(controller)
    assert ended.pop("gpu003") is state, controller.state.records["gpu003"].reason
    assert set(ended.values()) == {State.DONE}
    assert world.nodes["gpu003"].loaded == version
    assert world.nodes["gpu003"].cordoned == (state is State.QUARANTINED)
    world.laws.at_end({"gpu003": ""} if state is State.QUARANTINED else {})


@pytest.mark.case("D01")
def test_a_change_that_its_simulation_refuses_changes_nothing_and_kills_no_job() -> None:
    world = make_world(faults={"gpu003": "preflight_blocked"})
    world.nodes["gpu003"].fault_for = ""
    world.start_job([world.nodes["gpu003"]], runs_s=900)
    boot_id = world.nodes["gpu003"].boot_id
    controller = roll(world)
    record, node = controller.state.records["gpu003"], world.nodes["gpu003"]
    assert (record.state, record.changed) == (State.DEFERRED, False)
    assert "apt would refuse the change" in record.reason
    assert [line for line in world.laws.trace if "gpu003 change" in line or "gpu003 restarts" in line] == []
    assert (node.installed, node.boot_id, node.cordoned, node.lease) == (OLD, boot_id, False, None)
    assert not record.failed, "a refusal of one node's packages is no failure of the change"


@pytest.mark.case("B01", "C01")
def test_a_combination_that_is_refused_is_refused_before_any_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal("driver", "the proprietary kernel module does not drive Blackwell GPUs", "set flavour: open")
    monkeypatch.setattr(TwinDriver, "refusals", lambda *_args: (refusal,))
    world = make_world()
    controller = roll(world)
    assert set(states(controller).values()) == {State.DEFERRED}
    assert {refusal.reason in record.reason for record in controller.state.records.values()} == {True}
    assert (world.laws.drains, world.laws.changes) == (0, 0)


def test_a_power_cycle_brings_back_a_node_that_never_came_back() -> None:
    world = make_world(faults={"gpu003": "reboot_hangs"})
    controller = roll(world, replace(POLICY, power_cycle=("power-cycle",)))
    assert states(controller)["gpu003"] is State.DONE


@pytest.mark.case("M02")
def test_the_first_failure_stops_when_none_is_allowed_and_draining_nodes_go_back() -> None:
    world = make_world(8, faults={"gpu001": "module_missing"}, max_out=4)
    world.start_job([world.nodes["gpu002"]], runs_s=3600)
    policy = replace(POLICY, canary=3, max_unavailable=Limit(4), max_failures=0)
    controller = roll(world, policy)
    assert controller.state.closed is not None
    assert controller.state.closed.status == "stopped"
    ended = states(controller)
    assert ended["gpu001"] is State.ROLLED_BACK
    assert State.PENDING in ended.values()
    assert not any(node.cordoned for node in world.nodes.values())


@pytest.mark.case("M01")
def test_a_changed_node_that_no_longer_answers_is_a_failure_and_stops_before_the_next() -> None:
    world = make_world(faults={"gpu001": "reboot_hangs"})
    controller = roll(world, replace(POLICY, max_failures=0))
    assert controller.state.records["gpu001"].failed
    assert controller.state.closed is not None
    assert controller.state.closed.status == "stopped"
    assert world.laws.changes == 1


def test_the_same_failure_on_several_nodes_is_a_bad_change() -> None:
    faults: dict[str, Fault] = {f"gpu{number:03}": "module_missing" for number in range(1, 7)}
    world = make_world(faults=faults)
    controller = roll(world, replace(POLICY, same_signature_stops_at=2))
    assert controller.state.closed is not None
    assert "the change is bad" in controller.state.closed.reason
    assert list(states(controller).values()).count(State.PENDING) >= 2


def test_running_jobs_are_waited_for() -> None:
    world = make_world()
    for name in ("gpu001", "gpu002", "gpu003"):
        world.start_job([world.nodes[name]], runs_s=1800)
    controller = roll(world)
    assert set(states(controller).values()) == {State.DONE}


def test_work_without_an_end_is_not_drained() -> None:
    world = make_world()
    world.start_job([world.nodes["gpu004"]], runs_s=50_000, limit_s=100_000)
    controller = roll(world)
    assert states(controller)["gpu004"] is State.PENDING
    assert controller.state.closed is not None
    assert controller.state.closed.status == "incomplete"
    assert not world.nodes["gpu004"].cordoned


def test_a_drain_that_takes_too_long_gives_the_node_back_under_its_job() -> None:
    world = make_world()
    world.start_job([world.nodes["gpu004"]], runs_s=7000, limit_s=7100)
    controller = roll(
        world, replace(POLICY, limits=replace(POLICY.limits, draining_s=7190), deferred_again_after_s=9e9)
    )
    assert states(controller)["gpu004"] in (State.DONE, State.DEFERRED)
    assert not world.nodes["gpu004"].cordoned


def test_a_node_drained_by_an_admin_before_keeps_its_reason() -> None:
    world = make_world()
    world.admin_drains("gpu005", "ECC errors, RMA open")
    controller = roll(world)
    assert states(controller)["gpu005"] is State.HELD
    assert world.nodes["gpu005"].drain_reason == "ECC errors, RMA open"


def test_a_node_given_back_by_an_admin_in_the_middle_is_left_alone() -> None:
    world = make_world()
    world.loop.call_at(150, world.admin_resumes, "gpu001")
    controller = roll(world)
    assert states(controller)["gpu001"] is State.HELD
    assert not world.nodes["gpu001"].cordoned


def test_pause_admits_no_one_and_resume_goes_on() -> None:
    world = make_world()
    requests = [(10.0, Request("pause", "alice")), (5000.0, Request("resume", "alice"))]
    controller = roll(world, requests=requests)
    assert set(states(controller).values()) == {State.DONE}
    assert world.loop.time() > 5000


def test_abort_gives_back_what_is_unchanged_and_finishes_what_is_changed() -> None:
    world = make_world(8, max_out=4)
    world.start_job([world.nodes["gpu002"]], runs_s=3600)
    policy = replace(POLICY, canary=4, max_unavailable=Limit(4))
    controller = roll(world, policy, requests=[(120.0, Request("abort", "alice"))])
    ended = states(controller)
    assert set(ended.values()) <= {State.DONE, State.DEFERRED, State.PENDING}
    assert State.PENDING in ended.values()
    assert not any(node.cordoned for node in world.nodes.values())


@pytest.mark.parametrize("at", range(20, 620, 60))
def test_a_node_that_is_released_stays_as_it_is_for_a_person(at: float) -> None:
    world = make_world()
    controller = roll(world, requests=[(float(at), Request("release", "alice", ("gpu001",)))])
    ended, node = states(controller), world.nodes["gpu001"]
    held = [event for event in controller.journal.events if event.kind == "requested"]
    assert held
    if ended["gpu001"] is State.HELD:
        assert controller.state.records["gpu001"].reason == "released to alice"
        assert node.lease is None, "the person, or the next controller, may come"
        assert node.cordoned == controller.state.records["gpu001"].marked
    else:
        assert ended["gpu001"] is State.DONE, "it was not begun, or it was over"
    assert set(ended.values()) <= {State.HELD, State.DONE}


def test_a_node_that_is_released_before_its_drain_is_left_out() -> None:
    world = make_world()
    controller = roll(world, requests=[(0.9, Request("release", "alice", ("gpu001",)))])
    assert states(controller)["gpu001"] is State.SKIPPED
    assert world.nodes["gpu001"].loaded == OLD
    assert not world.nodes["gpu001"].cordoned


def test_some_release_comes_while_the_node_is_under_way() -> None:
    ends = set()
    for at in range(20, 620, 60):
        controller = roll(make_world(), requests=[(float(at), Request("release", "alice", ("gpu001",)))])
        ends.add(states(controller)["gpu001"])
    assert ends == {State.HELD, State.DONE}


def test_the_canary_soaks_and_is_verified_again_before_the_rest_goes() -> None:
    world = make_world()
    controller = roll(world, replace(POLICY, canary=1, soak_s=3600))
    assert set(states(controller).values()) == {State.DONE}
    admitted = [event for event in controller.journal.events if event.kind == "admitted"]
    assert (admitted[1].at - admitted[0].at).total_seconds() > 3600


def test_a_drain_of_ours_that_comes_late_is_verified_away() -> None:
    world = make_world()

    def late_drain() -> None:
        node = world.nodes["gpu001"]
        assert not node.cordoned
        node.cordoned, node.drain_reason, node.reason_by = True, "fleetctl:r-twin:abc123 late", "fleetctl"

    world.loop.call_at(700, late_drain)
    verifies = world.laws.verifies
    controller = roll(world)
    assert set(states(controller).values()) == {State.DONE}
    assert not any(node.cordoned for node in world.nodes.values())
    assert world.laws.verifies > verifies + 6


def test_undo_brings_back_the_exact_packages_and_is_verified() -> None:
    world = make_world()
    first = roll(world)
    targets = {name: record.closures for name, record in first.state.records.items()}
    undo = TwinController(world, TwinJournal(), POLICY, OLD, rollout="r-undo", targets=targets)
    undo.run()
    assert set(states(undo).values()) == {State.DONE}
    assert {node.loaded for node in world.nodes.values()} == {OLD}


# --- a crash at any instant loses nothing


@dataclass
class KillAt:
    line: int

    def after_line(self, line: int) -> bool:
        return line == self.line


def finish(world: World, journal: TwinJournal, policy: RolloutPolicy = POLICY) -> TwinController:
    journal.kill = None
    # Nodes that others hold may keep the budget full for ever: then a person ends the rollout.
    end = (world.loop.time() + 40_000, Request("stop", "alice"))
    controller = TwinController(world, journal, policy, NEW, name="ctl-2", requests=[end])
    closed = controller.run()
    assert isinstance(closed, Closed)
    return controller


FAULTY: dict[str, Fault] = {"gpu002": "module_missing", "gpu003": "verify_fails"}


def lines_of(make: Callable[[], World]) -> int:
    return len(roll(make()).journal.events)


@pytest.mark.case("F03")
def test_a_controller_killed_at_any_journal_line_and_resumed_finishes_the_job() -> None:
    def make() -> World:
        return make_world(4, faults=FAULTY)

    for line in range(1, lines_of(make) + 1):
        world, journal = make(), TwinJournal(kill=KillAt(line))
        first = TwinController(world, journal, POLICY, NEW)
        first.run()
        second = finish(world, journal)
        ended = states(second)
        assert ended == {
            "gpu001": State.DONE,
            "gpu002": State.ROLLED_BACK,
            "gpu003": State.ROLLED_BACK,
            "gpu004": State.DONE,
        }, f"killed after line {line}: {second.state.records}"
        world.laws.at_end({})
        assert all(node.lease is None for node in world.nodes.values()), f"killed after line {line}"


@pytest.mark.case("F03")
def test_nodes_that_nobody_looked_after_for_a_day_are_taken_up_where_they_stood() -> None:
    for line in range(1, lines_of(lambda: make_world(2)) + 1):
        world, journal = make_world(2), TwinJournal(kill=KillAt(line))
        TwinController(world, journal, POLICY, NEW).run()
        world.loop.call_at(world.loop.time() + 86_400, world.loop.stop)
        world.loop.run_forever()
        ended = states(finish(world, journal))
        assert set(ended.values()) == {State.DONE}, f"killed after line {line}: {ended}"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kills_s=st.lists(st.floats(1, 4000), max_size=4),
    faults=st.dictionaries(
        st.sampled_from([f"gpu{number:03}" for number in range(1, 9)]),
        st.sampled_from(["apply_fails", "module_missing", "verify_fails", "gpu_lost", "reboot_hangs"]),
        max_size=4,
    ),
    drains=st.lists(st.tuples(st.floats(0, 3000), st.sampled_from(["gpu001", "gpu004", "gpu007"])), max_size=3),
    resumes=st.lists(st.tuples(st.floats(0, 3000), st.sampled_from(["gpu001", "gpu002", "gpu008"])), max_size=3),
    jobs=st.lists(st.tuples(st.integers(1, 8), st.floats(10, 5000)), max_size=4),
)
def test_no_law_is_broken_whatever_happens_and_whenever_the_controller_dies(
    seed: int,
    kills_s: list[float],
    faults: dict[str, Fault],
    drains: list[tuple[float, str]],
    resumes: list[tuple[float, str]],
    jobs: list[tuple[int, float]],
) -> None:
    world = make_world(8, seed=seed, faults=faults, max_out=3)
    policy = replace(POLICY, max_unavailable=Limit(3), canary=2)
    for at_s, name in drains:
        world.loop.call_at(at_s, world.admin_drains, name, "looking at it")
    for at_s, name in resumes:
        world.loop.call_at(at_s, world.admin_resumes, name)
    for number, runs_s in jobs:
        world.start_job([world.nodes[f"gpu{number:03}"]], runs_s)
    journal = TwinJournal()
    for at_s in sorted(kills_s):
        controller = TwinController(world, journal, policy, NEW, kill_at_s=world.loop.time() + at_s)
        if controller.run() is not None:
            break
    if journal.events and journal.events[-1].kind == "closed":
        return
    controller = finish(world, journal, policy)
    assert not controller.state.unsettled
    left = {
        name: record.reason for name, record in controller.state.records.items() if record.state is State.QUARANTINED
    }
    for node in world.nodes.values():
        if node.drain_reason.startswith("fleetctl:"):
            assert node.name in left or controller.state.records[node.name].state is State.HELD
