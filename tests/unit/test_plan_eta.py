"""The forecast: what a rollout may take, by the same order and budgets as the rollout itself."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.decide.budget import Budget
from fleetctl.decide.eta import Forecast, Load, Typical, forecast, measure
from fleetctl.model.drift import Disturbance
from fleetctl.model.policy import Limit, RolloutPolicy
from fleetctl.model.rollout import Act, Concluded, Event, Intended, Intent, Outcome, Result
from tests.unit.surveyed import NOW, job, work

REBOOT_S = Typical().node_s(Disturbance.REBOOT)
IDLE = Load(work(), Disturbance.REBOOT)


def play(
    loads: dict[str, Load], policy: RolloutPolicy, racks: dict[str, str] | None = None, out: tuple[str, ...] = ()
) -> Forecast:
    names = (*loads, *(name for name in out if name not in loads))
    domains = {name: [("rack", (racks or {}).get(name, "r01"))] for name in names}
    budget = Budget(domains, policy.max_unavailable, policy.max_unavailable_per)
    for name in out:
        budget.count(name, out=True)
    return forecast(loads, budget, policy, Typical(), NOW)


def idle(count: int) -> dict[str, Load]:
    return {f"n{number}": IDLE for number in range(count)}


def test_one_idle_node_takes_its_steps() -> None:
    assert play(idle(1), RolloutPolicy(canary=0)).total_s == REBOOT_S


def test_a_node_without_disturbance_is_neither_drained_nor_restarted() -> None:
    quiet = Typical().node_s(Disturbance.NONE)
    assert quiet == 20 + 420 + 120
    assert Typical().node_s(Disturbance.DRAIN) == quiet + 120 + 20
    assert Typical().node_s(Disturbance.REBOOT) == quiet + 120 + 20 + 600


def test_work_is_waited_for_until_its_limit() -> None:
    busy = {"n1": Load(work(job("1", 2)), Disturbance.REBOOT)}
    assert play(busy, RolloutPolicy(canary=0)).total_s == 7200 + REBOOT_S


def test_a_slot_freed_is_a_slot_filled() -> None:
    loads = {"n1": IDLE, "n2": Load(work(job("1", 5)), Disturbance.REBOOT), "n3": Load(work(), Disturbance.NONE)}
    seen = play({**loads, "n4": IDLE}, RolloutPolicy(canary=0, max_unavailable=Limit(2)))
    # The job's five hours hold one slot only: the other three nodes share the second.
    assert seen.total_s == 5 * 3600 + REBOOT_S
    assert seen.waves["main"].out_at_once == 2


def test_the_main_wave_waits_for_canary_soak_and_second_verify() -> None:
    seen = play(idle(3), RolloutPolicy(canary=1, soak_s=1800, max_unavailable=Limit(9)))
    assert seen.soak_s == 1800 + Typical().verify_s
    assert seen.total_s == 2 * REBOOT_S + seen.soak_s
    assert [len(wave.nodes) for wave in seen.waves.values()] == [1, 2]


def test_a_rollout_of_canaries_alone_ends_with_their_soak() -> None:
    seen = play(idle(1), RolloutPolicy(canary=4, soak_s=600))
    assert seen.total_s == REBOOT_S + 600 + Typical().verify_s


def test_canaries_more_than_the_budget_go_one_after_the_other() -> None:
    seen = play(idle(3), RolloutPolicy(canary=3, max_unavailable=Limit(1)))
    assert seen.waves["canary"].out_at_once == 1
    assert seen.total_s == 3 * REBOOT_S


def test_what_is_out_already_leaves_less_room() -> None:
    policy = RolloutPolicy(canary=0, max_unavailable=Limit(2))
    assert play(idle(4), policy).total_s == 2 * REBOOT_S
    assert play(idle(4), policy, out=("broken",)).total_s == 4 * REBOOT_S


def test_a_node_left_drained_by_an_earlier_rollout_needs_no_room() -> None:
    seen = play(idle(2), RolloutPolicy(canary=0, max_unavailable=Limit(1)), out=("n0",))
    assert seen.never == {}
    assert seen.total_s == 2 * REBOOT_S


def test_nodes_that_can_never_go_are_told_with_what_is_in_the_way() -> None:
    seen = play(idle(2), RolloutPolicy(canary=1, max_unavailable=Limit(1)), out=("broken",))
    assert {node: str(full) for node, full in seen.never.items()} == dict.fromkeys(
        ("n0", "n1"), "fleet: 1 of 1 allowed are out"
    )
    assert seen.total_s == 0


@given(
    data=st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(1, 40)), min_size=1, max_size=24),
    whole=st.integers(1, 6),
    per_rack=st.integers(1, 3),
    canary=st.integers(0, 4),
    soak_s=st.sampled_from([0, 600]),
)
@settings(max_examples=200, deadline=None)
def test_every_node_goes_once_and_no_budget_is_exceeded_at_any_time(
    data: list[tuple[int, int | None]], whole: int, per_rack: int, canary: int, soak_s: int
) -> None:
    racks = {f"n{number}": f"r{rack}" for number, (rack, _) in enumerate(data)}
    loads = {
        f"n{number}": Load(work() if ends is None else work(job(str(number), ends)), Disturbance.REBOOT)
        for number, (_, ends) in enumerate(data)
    }
    policy = RolloutPolicy(
        canary=canary, soak_s=soak_s, max_unavailable=Limit(whole), max_unavailable_per={"rack": Limit(per_rack)}
    )
    watched = _Watched(racks, policy)
    seen = forecast(loads, watched, policy, Typical(), NOW)
    gone = [node for wave in seen.waves.values() for node in wave.nodes]
    assert sorted(gone) == sorted(loads)
    assert seen.never == {}
    assert watched.most["fleet"] <= whole
    assert all(most <= per_rack for rack, most in watched.most.items() if rack != "fleet")
    if canary:
        assert len(seen.waves["canary"].nodes) == min(canary, len(loads))
    longest_s = max((load.free_at(NOW) - NOW).total_seconds() for load in loads.values())
    assert longest_s + REBOOT_S <= seen.total_s <= len(loads) * (longest_s + REBOOT_S) + seen.soak_s


class _Watched(Budget):
    """Keeps the most that were out at once, counted by itself."""

    def __init__(self, racks: dict[str, str], policy: RolloutPolicy) -> None:
        domains = {node: [("rack", rack)] for node, rack in racks.items()}
        super().__init__(domains, policy.max_unavailable, policy.max_unavailable_per)
        self._racks, self._now_out = racks, set[str]()
        self.most: Counter[str] = Counter()

    def count(self, node: str, *, out: bool) -> None:
        super().count(node, out=out)
        (self._now_out.add if out else self._now_out.discard)(node)
        counts = Counter(self._racks[name] for name in self._now_out)
        counts["fleet"] = len(self._now_out)
        self.most |= counts


# --- measuring


def acted(number: int, act: Act, took_s: float, result: Result = Result.OK) -> list[Event]:
    intent = Intent(number, f"n{number}", act)
    ended = NOW + timedelta(seconds=took_s)
    return [Intended(NOW, intent), Concluded(ended, Outcome(number, intent.node, act, result))]


def test_the_median_of_what_went_well_replaces_the_default() -> None:
    events = [
        *acted(1, Act.RESTART, 300),
        *acted(2, Act.RESTART, 340),
        *acted(3, Act.RESTART, 4000),
        *acted(4, Act.APPLY, 9999, Result.FAILED),
        *acted(5, Act.DRAIN, 5),
    ]
    typical = measure(events)
    assert (typical.restart_s, typical.apply_s, typical.measured) == (340, Typical().apply_s, 3)


def test_an_intent_without_an_outcome_measures_nothing() -> None:
    assert measure(acted(1, Act.APPLY, 10)[:1]) == Typical()


@pytest.mark.parametrize("canary", [0, 1, 5])
def test_the_same_fleet_gives_the_same_forecast(canary: int) -> None:
    policy = RolloutPolicy(canary=canary, max_unavailable=Limit(2))
    assert play(idle(5), policy) == play(idle(5), policy)
