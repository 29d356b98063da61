"""Which nodes a plan takes, which it leaves alone and why, in which waves."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleetctl.decide.candidates import Why
from fleetctl.decide.eta import Typical
from fleetctl.decide.plan import Plan, from_to, make_plan, require_room
from fleetctl.errors import InventoryError, PolicyError, SchedulerError
from fleetctl.model.drift import Disturbance, Refusal
from fleetctl.model.node_facts import Lease
from fleetctl.model.policy import Limit, RolloutPolicy
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.model.survey import Observation, Survey
from fleetctl.model.work import Work
from tests.unit import surveyed
from tests.unit.surveyed import CALM, NEW, OLD, behind, down, drift, held, job, observation, survey, work

POLICY = RolloutPolicy(canary=1, max_unavailable=Limit(2))


def plan_of(found: Survey, policy: RolloutPolicy = POLICY, count: int = 8, **more: Any) -> Plan:
    return make_plan(found, surveyed.fleet(count), policy, ("driver",), **more)


def plan_one(found: Observation | Reading[Observation], seen: Work | None = None) -> Plan:
    """gpu001 as given, gpu002 behind and idle."""
    shown = {} if seen is None else {"gpu001": seen}
    return plan_of(survey({"gpu001": found, "gpu002": behind()}, shown), count=2)


def why(plan: Plan) -> Why:
    (found,) = plan.not_planned
    assert found.node == "gpu001"
    assert [change.node for change in plan.to_change] == ["gpu002"]
    assert plan.nodes == ("gpu002",)
    return found.why


def test_a_node_behind_is_changed_and_a_current_one_is_verified_and_skipped() -> None:
    plan = plan_of(survey({"gpu001": observation(), "gpu002": behind()}))
    assert [change.node for change in plan.to_change] == ["gpu002"]
    assert plan.current == ("gpu001",)
    assert plan.nodes == ("gpu001", "gpu002")
    assert not plan.is_converged


def test_a_fleet_as_declared_has_nothing_to_change() -> None:
    plan = plan_of(survey({"gpu001": observation(), "gpu002": observation()}))
    assert plan.is_converged
    assert plan.waves == ()
    assert plan.takes_s == 0


def test_a_foreign_drain_is_left_alone_with_who_when_and_why() -> None:
    plan = plan_one(behind(), held("ECC errors, RMA open"))
    assert why(plan) is Why.HELD
    found = plan.not_planned[0]
    assert (found.by, found.reason, found.since) == ("root", "ECC errors, RMA open", surveyed.NOW - timedelta(days=3))


@pytest.mark.parametrize("found", [behind(), observation(), unknown("ssh: timeout")])
def test_a_foreign_drain_counts_whatever_the_node_itself_says(found: Observation | Reading[Observation]) -> None:
    assert why(plan_one(found, held("mine"))) is Why.HELD


def test_the_drain_of_a_rollout_that_is_not_over_is_another_rollouts() -> None:
    plan = plan_one(behind(), held("fleetctl:r-1:abc driver 570 -> 580", by="slurm"))
    assert why(plan) is Why.OTHER_ROLLOUT
    assert "r-1" in plan.not_planned[0].reason
    assert "take-over gpu001" in plan.not_planned[0].next_step


def test_what_a_rollout_that_is_over_left_drained_is_taken_up() -> None:
    found = survey({"gpu001": behind()}, {"gpu001": held("fleetctl:r-1:abc quarantined: DKMS")})
    plan = plan_of(found, adoptable=frozenset({"r-1"}))
    assert [change.node for change in plan.to_change] == ["gpu001"]


@pytest.mark.case("G01")
def test_a_drain_by_slurm_itself_is_to_be_diagnosed_first() -> None:
    assert why(plan_one(behind(), held("Kill task failed", by="root"))) is Why.DOWN


def test_a_node_that_is_down_is_left_alone() -> None:
    plan = plan_one(behind(), down())
    assert why(plan) is Why.DOWN
    assert plan.not_planned[0].reason == 'DOWN+NOT_RESPONDING in the scheduler: "Not responding"'


def test_an_unreachable_node_that_is_down_too_says_since_when() -> None:
    plan = plan_one(unknown("ssh: timeout: no answer"), down(hours_ago=5))
    assert why(plan) is Why.UNREACHABLE
    assert plan.not_planned[0].since is not None


def test_the_reason_left_on_a_node_in_use_dates_nothing() -> None:
    seen = replace(work(), reason="old story", reason_at=surveyed.NOW)
    plan = plan_one(unknown("ssh: refused"), seen)
    assert plan.not_planned[0].since is None


def test_a_node_that_the_scheduler_does_not_know_is_left_alone() -> None:
    found = survey({"gpu001": behind(), "gpu002": behind()})
    shown = {name: one for name, one in found.work.get().items() if name != "gpu001"}
    assert why(plan_of(replace(found, work=value_of(shown)), count=2)) is Why.NOT_IN_SCHEDULER


def test_a_leased_node_is_left_alone() -> None:
    facts = replace(CALM, lease=value_of(Lease("r-2", "ctl-9", 3)))
    plan = plan_one(behind(facts=facts))
    assert why(plan) is Why.LEASED
    assert plan.not_planned[0].reason == "leased by rollout r-2 of ctl-9"


def test_a_lease_that_can_not_be_read_is_somebodys() -> None:
    assert why(plan_one(behind(facts=replace(CALM, lease=unknown("damaged"))))) is Why.NOT_OBSERVED


def test_a_refused_combination_is_left_alone_with_the_next_step() -> None:
    refusal = Refusal("driver", "the proprietary module does not drive Blackwell GPUs", "set flavour: open")
    plan = plan_one(behind(refusals=(refusal,)))
    assert why(plan) is Why.REFUSED
    assert plan.not_planned[0].next_step == "set flavour: open"


def test_packages_half_way_are_found_before_any_drain() -> None:
    facts = replace(CALM, broken_packages=value_of(("nvidia-dkms-570 half-configured",)))
    assert why(plan_one(behind(facts=facts))) is Why.HALF_CONFIGURED


def test_package_states_that_can_not_be_read_are_not_taken_for_clean() -> None:
    assert why(plan_one(behind(facts=replace(CALM, broken_packages=unknown("no dpkg"))))) is Why.NOT_OBSERVED


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ((job("7", 49),), "job 7 may run for another 49 h, and a drain waits 48 h at most"),
        ((job("7", None), job("8", 1)), "job 7 has no time limit, and a drain waits 48 h at most"),
    ],
)
def test_work_that_may_outlast_the_drain_limit_is_not_drained(jobs: Any, text: str) -> None:
    plan = plan_one(behind(), work(*jobs))
    assert why(plan) is Why.OUTLASTS
    assert plan.not_planned[0].reason == text


def test_work_that_ends_in_time_is_waited_for() -> None:
    plan = plan_of(survey({"gpu001": behind()}, {"gpu001": work(job("7", 47), job("8", 3))}))
    (wave,) = plan.waves
    assert (wave.jobs, wave.last_end) == (2, surveyed.NOW + timedelta(hours=47))


def test_bad_hardware_is_not_changed_though_its_version_is_old() -> None:
    broken = drift("gpu_count", declared="8", observed="7 in NVML", cause="hardware", disturbance=Disturbance.NONE)
    plan = plan_one(observation(drift(), broken))
    assert why(plan) is Why.UNWELL
    assert plan.not_planned[0].reason == "driver gpu_count is 7 in NVML, declared 8"


def test_a_current_node_that_is_unwell_is_told_apart() -> None:
    sick = drift("fabric", "fabric_manager", declared="Completed", observed="In Progress", cause="health")
    plan = plan_one(observation(sick))
    assert why(plan) is Why.UNWELL
    assert plan.not_planned[0].reason.startswith("as declared, but unwell: ")


def test_a_truth_that_could_not_be_read_is_not_current() -> None:
    assert why(plan_one(observation(drift("xid", observed="unknown: no dmesg", is_unknown=True)))) is Why.NOT_OBSERVED


def test_a_warning_alone_is_nothing_to_roll_out() -> None:
    plan = plan_of(survey({"gpu001": observation(drift("held", severity="warning"))}))
    assert plan.current == ("gpu001",)


def test_a_current_node_with_endless_work_is_current_but_not_opened() -> None:
    plan = plan_of(survey({"gpu001": observation(), "gpu002": behind()}, {"gpu001": work(job("7", None))}))
    assert plan.current == plan.busy_current == ("gpu001",)
    assert plan.nodes == ("gpu002",)


def test_a_node_without_a_declared_version_is_named_and_a_whole_fleet_of_them_refused() -> None:
    nothing: Reading[Observation] = not_applicable("nothing is declared for driver")
    assert why(plan_one(nothing)) is Why.NOT_DECLARED
    with pytest.raises(InventoryError, match="none of these nodes declares a version of driver"):
        plan_of(survey({"gpu001": nothing}))


def test_nothing_is_planned_without_the_schedulers_word() -> None:
    found = replace(survey({"gpu001": behind()}), work=unknown("slurmctld does not answer"))
    with pytest.raises(SchedulerError, match="slurmctld does not answer"):
        plan_of(found)


def test_the_summary_names_versions_once_and_what_comes_along() -> None:
    fabric = drift("binary", "fabric_manager", declared=NEW, observed=OLD, disturbance=Disturbance.DRAIN)
    plan = plan_of(survey({"gpu001": observation(drift(), fabric)}))
    assert plan.summary == f"driver {OLD} -> {NEW} (open), fabric manager with it"


def test_several_starting_points_are_counted_in_the_summary() -> None:
    other = replace(behind(), found={"driver": "550.163.01 (open)"})
    plan = plan_of(survey({"gpu001": behind(), "gpu002": behind(), "gpu003": other}))
    assert plan.summary == f"driver {OLD} -> {NEW} (open) and 1 more"
    assert [one.nodes for one in plan.transitions] == [("gpu001", "gpu002"), ("gpu003",)]


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("570.1 (open)", "580.1 (open)", "570.1 -> 580.1 (open)"),
        ("570.1 (proprietary)", "580.1 (open)", "570.1 (proprietary) -> 580.1 (open)"),
        ("none", "580.1 (open)", "none -> 580.1 (open)"),
        ("570.1", "580.1", "570.1 -> 580.1"),
        ("580.1 (open)", "580.1 (open)", "580.1 (open), not in all its parts"),
    ],
)
def test_from_to(before: str, after: str, text: str) -> None:
    assert from_to(before, after) == text


def test_an_override_says_that_the_inventory_must_follow() -> None:
    overrides = {"nvidia_driver_version": NEW}
    found = survey({"gpu001": behind(), "gpu002": behind()})
    fleet = surveyed.fleet(2, nvidia_driver_version=OLD)
    plan = make_plan(found, fleet, POLICY, ("driver",), overrides)
    (note,) = plan.notes
    assert note.startswith(f"nvidia_driver_version is {NEW} for this rollout only: the inventory still says {OLD}")


def test_an_override_that_the_inventory_already_says_needs_no_note() -> None:
    fleet = surveyed.fleet(1, nvidia_driver_version=NEW)
    plan = make_plan(survey({"gpu001": behind()}), fleet, POLICY, ("driver",), {"nvidia_driver_version": NEW})
    assert plan.notes == ()


def test_steps_follow_what_the_change_disturbs() -> None:
    service = drift("service", "fabric_manager", disturbance=Disturbance.SERVICE)
    nothing = drift("held", disturbance=Disturbance.NONE)
    plan = plan_of(survey({"gpu001": behind(), "gpu002": observation(service), "gpu003": observation(nothing)}))
    assert [change.steps for change in plan.to_change] == [
        ("drain", "replace 14 packages", "reboot", "verify", "undrain"),
        ("drain", "install packages", "verify", "undrain"),
        ("replace 14 packages", "verify"),
    ]


def test_no_way_back_is_told_where_nothing_is_installed_yet() -> None:
    plan = plan_of(survey({"gpu001": behind(closures={}), "gpu002": behind()}))
    assert [change.has_way_back for change in plan.to_change] == [False, True]


# --- waves, budgets, cost


def test_the_canary_is_the_cheapest_node_and_idle_ones_go_first() -> None:
    seen = {"gpu001": work(job("1", 5)), "gpu002": work(job("2", 2))}
    found = survey({name: behind() for name in ("gpu001", "gpu002", "gpu003")}, seen)
    canary, main = plan_of(found).waves
    assert canary.nodes == ("gpu003",)
    assert main.nodes == ("gpu002", "gpu001")


def test_who_is_out_already_uses_up_the_budget_chosen_or_not() -> None:
    found = survey({f"gpu00{number}": behind() for number in (1, 2, 3)}, {"gpu008": held("RMA")})
    policy = replace(POLICY, canary=0, max_unavailable=Limit(2))
    plan = plan_of(found, policy)
    assert [out.node for out in plan.budgets.out] == ["gpu008"]
    assert [wave.out_at_once for wave in plan.waves] == [1]


def test_a_rack_that_holds_nodes_back_is_named() -> None:
    policy = replace(POLICY, canary=0, max_unavailable=Limit(4), max_unavailable_per={"rack": Limit(1)})
    plan = plan_of(survey({f"gpu00{number}": behind() for number in range(1, 9)}), policy)
    (main,) = plan.waves
    assert main.out_at_once == 2
    assert main.limited_by == ("rack",)


def test_nodes_of_a_full_rack_wait_and_say_for_what() -> None:
    policy = replace(POLICY, canary=0, max_unavailable=Limit(4), max_unavailable_per={"rack": Limit(1)})
    seen = {"gpu004": down()}
    plan = plan_of(survey({"gpu001": behind(), "gpu005": behind()}, seen), policy)
    assert [wave.nodes for wave in plan.waves] == [("gpu005",)]
    assert {node: str(full) for node, full in plan.stuck.items()} == {"gpu001": "rack r01: 1 of 1 allowed are out"}
    require_room(plan)


def test_a_budget_that_can_admit_no_node_is_refused_with_the_number_it_needs() -> None:
    seen = {"gpu003": held("RMA"), "gpu004": down()}
    plan = plan_of(survey({"gpu001": behind()}, seen))
    with pytest.raises(PolicyError) as refused:
        require_room(plan)
    assert str(refused.value) == (
        "no node could be taken out: max_unavailable allows 2, and 2 are out already (gpu[003-004]): bring those "
        "back, or set max_unavailable to 3 or more"
    )


def test_a_rack_that_can_admit_no_node_is_refused_by_its_own_setting() -> None:
    policy = replace(POLICY, max_unavailable=Limit(5), max_unavailable_per={"rack": Limit(1)})
    seen = {"gpu004": down()}
    with pytest.raises(PolicyError, match="max_unavailable_per rack allows 1 in rack r01, and 1 is out already"):
        require_room(plan_of(survey({"gpu001": behind()}, seen), policy))


def test_gpu_hours_are_node_time_times_gpus_and_unknown_counts_are_named() -> None:
    seen = {"gpu002": work(gpus_configured=None)}
    plan = plan_of(survey({"gpu001": behind(), "gpu002": behind()}, seen))
    assert plan.gpu_hours == pytest.approx(8 * Typical().node_s(Disturbance.REBOOT) / 3600)
    assert plan.without_gpu_count == 1


def test_ten_thousand_nodes_are_planned_in_seconds() -> None:
    fleet = surveyed.fleet(10_000, per_rack=40)
    seen = {name: work(job(str(number), 1 + number % 40)) for number, name in enumerate(fleet.nodes)}
    found = survey(dict.fromkeys(fleet.nodes, behind()), seen)
    policy = RolloutPolicy(canary=10, max_unavailable=Limit(5, is_percent=True), max_unavailable_per={"rack": Limit(4)})
    began_s = time.process_time()
    plan = make_plan(found, fleet, policy, ("driver",))
    took_s = time.process_time() - began_s
    assert sum(len(wave.nodes) for wave in plan.waves) == 10_000
    assert took_s < 10, f"{took_s:.1f} s"
