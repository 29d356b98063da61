"""Whether nodes could come back, asked before any drain: of whom, about what, and what a plan makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetctl.decide.candidates import Terms, Why
from fleetctl.decide.plan import Plan, make_plan
from fleetctl.decide.way_back import Question, ask_for
from fleetctl.flows.acts.view import Rollout
from fleetctl.flows.way_back import ask
from fleetctl.model.fleet import Fleet, Node
from fleetctl.model.policy import Limit, RolloutPolicy
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.record import NodeRecord
from fleetctl.model.rollout import Closure, Course
from fleetctl.model.survey import Survey
from fleetctl.parse.node import read_node
from tests.unit import healthy_node, surveyed
from tests.unit.surveyed import CALM, NOW, OLD, behind, drift, held, observation, survey

BACK = RolloutPolicy(max_unavailable=Limit(8))
QUARANTINE = replace(BACK, on_failed_verify="quarantine")
ROLES = {"driver": "nvidia_driver", "fabric_manager": "nvidia_fabric_manager"}
NOTHING_KEPT = replace(CALM, kept_packages=value_of({}), repositories="noble")
PACKAGES = {"nvidia_driver": {f"package-{number}": OLD for number in range(14)}}


def old_node(**facts: Any) -> Any:
    return behind(facts=replace(NOTHING_KEPT, **facts))


def questions(
    found: Mapping[str, Any],
    seen: Mapping[str, Any] | None = None,
    policy: RolloutPolicy = BACK,
    fleet: Fleet | None = None,
) -> tuple[Question, ...]:
    nodes = (fleet or surveyed.fleet()).nodes
    return ask_for(survey(found, seen), nodes, Terms(policy, NOW), ROLES)


# --- whom to ask, and about what


def test_nodes_with_equal_packages_share_one_question_however_many_they_are() -> None:
    fleet = surveyed.fleet(2000)
    (asked,) = questions(dict.fromkeys(fleet.nodes, old_node()), fleet=fleet)
    assert asked == Question(PACKAGES, tuple(fleet.nodes))


def test_other_packages_another_release_and_another_declared_repository_are_other_questions() -> None:
    found = {
        "gpu001": old_node(),
        "gpu002": behind(facts=NOTHING_KEPT, closures={"driver": Closure({"package-0": "560.35.05"})}),
        "gpu003": old_node(repositories="jammy"),
        "gpu004": old_node(),
    }
    fleet = surveyed.fleet()
    declared = {"nvidia_driver_repository": {"uri": "https://mirror.example/cuda"}}
    fleet = replace(fleet, nodes={**fleet.nodes, "gpu004": replace(fleet.nodes["gpu004"], variables=declared)})
    assert [asked.nodes for asked in questions(found, fleet=fleet)] == [(name,) for name in found]


def test_only_nodes_that_the_rollout_would_change_are_asked_about() -> None:
    found = {"gpu001": old_node(), "gpu002": old_node(), "gpu003": observation(), "gpu004": unknown("ssh: timeout")}
    (asked,) = questions(found, {"gpu002": held("RMA")})
    assert asked.nodes == ("gpu001",)


def test_what_a_node_keeps_a_file_of_is_not_asked_for() -> None:
    kept = frozenset(f"package-{number}={OLD}" for number in range(13))
    (asked,) = questions({"gpu001": old_node(kept_packages=value_of({"nvidia_driver": kept}))})
    assert asked.packages == {"nvidia_driver": {"package-13": OLD}}
    everything = frozenset({*kept, f"package-13={OLD}"})
    assert questions({"gpu001": old_node(kept_packages=value_of({"nvidia_driver": everything}))}) == ()
    (asked,) = questions({"gpu001": old_node(kept_packages=value_of({"nvidia_fabric_manager": everything}))})
    assert asked.packages == PACKAGES, "each role keeps its own"


def test_the_name_of_a_kept_rpm_has_no_epoch() -> None:
    closures = {"driver": Closure({"nvidia-driver": "3:570.195.03-1.el9"})}
    kept = value_of({"nvidia_driver": frozenset({"nvidia-driver-570.195.03-1.el9"})})
    facts = replace(NOTHING_KEPT, kept_packages=kept)
    assert questions({"gpu001": behind(facts=facts, closures=closures)}) == ()


def test_a_role_that_need_not_change_its_packages_needs_no_way_back() -> None:
    only_a_reboot = observation(drift("loaded"), facts=NOTHING_KEPT)
    assert questions({"gpu001": only_a_reboot}) == ()
    fabric = {"fabric_manager": Closure({"nvidia-fabricmanager-570": OLD})}
    both = behind(facts=NOTHING_KEPT, closures={"driver": Closure({"package-0": OLD}), **fabric})
    (asked,) = questions({"gpu001": both})
    assert asked.packages == {"nvidia_driver": {"package-0": OLD}}


def test_a_policy_that_quarantines_asks_nobody() -> None:
    assert questions({"gpu001": old_node()}, policy=QUARANTINE) == ()


def test_equal_sources_are_equal_whatever_is_commented_and_another_release_is_not() -> None:
    def told(sources: str, release: str = "24.04") -> str:
        facts = healthy_node.facts()
        facts["apt_sources"] = {"files": {"/etc/apt/sources.list.d/x.list": {"text": sources}}}
        facts["files"]["/etc/os-release"] = {"text": f'ID=ubuntu\nVERSION_ID="{release}"\nPRETTY_NAME="{sources}"\n'}
        return read_node(facts).repositories

    assert told("deb http://a ./\n") == told("# written on gpu001\n\n  deb http://a ./\n")
    assert told("deb http://a ./\n") != told("deb http://b ./\n")
    assert told("deb http://a ./\n") != told("deb http://a ./\n", "22.04")


# --- asking


class Machines:
    """Nodes that answer by name; NEVER: not at all."""

    NEVER = object()

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def lost_packages(self, node: Node, packages: Mapping[str, Mapping[str, str]]) -> Reading[tuple[str, ...]]:
        self.asked.append(node.name)
        answer = self.answers[node.name]
        if answer is self.NEVER:
            await asyncio.sleep(3600)
        return cast(Reading[tuple[str, ...]], answer)


def put(machines: Machines, *asked: Question, deadline_s: float = 5) -> dict[str, Reading[tuple[str, ...]]]:
    return asyncio.run(ask(cast(Any, machines), surveyed.fleet().nodes, asked, deadline_s=deadline_s))


def test_one_node_answers_for_all_of_its_kind() -> None:
    machines = Machines({"gpu001": value_of(("a=1",)), "gpu004": value_of(())})
    answers = put(machines, Question(PACKAGES, ("gpu001", "gpu002", "gpu003")), Question({}, ("gpu004",)))
    assert sorted(machines.asked) == ["gpu001", "gpu004"]
    assert {name: answer.get() for name, answer in answers.items()} == {
        **dict.fromkeys(("gpu001", "gpu002", "gpu003"), ("a=1",)),
        "gpu004": (),
    }


def test_one_more_node_is_asked_where_the_first_does_not_know_and_no_third() -> None:
    doubtful = unknown("ssh: timeout: no answer")
    machines = Machines({"gpu001": doubtful, "gpu002": value_of(("a=1",))})
    assert put(machines, Question({}, ("gpu001", "gpu002", "gpu003")))["gpu003"].get() == ("a=1",)
    machines = Machines({"gpu001": doubtful, "gpu002": unknown("apt-get update: Err:1")})
    answers = put(machines, Question({}, ("gpu001", "gpu002", "gpu003")))
    assert {answer.reason for answer in answers.values()} == {"gpu002: apt-get update: Err:1"}
    assert machines.asked == ["gpu001", "gpu002"]


def test_what_is_not_answered_in_time_is_unknown_and_the_others_are_known() -> None:
    machines = Machines({"gpu001": Machines.NEVER, "gpu002": value_of(())})
    answers = put(machines, Question({}, ("gpu001",)), Question({"r": {}}, ("gpu002",)), deadline_s=0.3)
    assert answers["gpu001"].reason == "no answer within 0.3 s"
    assert answers["gpu002"].get() == ()


def test_a_fault_of_ours_in_one_answer_does_not_hide_the_others() -> None:
    answers = put(Machines({"gpu002": value_of(())}), Question({}, ("gpu001",)), Question({}, ("gpu002",)))
    assert answers["gpu001"].reason == "gpu001: unexpected KeyError: 'gpu001'"
    assert answers["gpu002"].is_known


def test_what_may_be_kept_on_the_node_is_not_called_lost() -> None:
    asked = Question({}, ("gpu001",), doubt="the list of kept packages: EACCES")
    assert put(Machines({"gpu001": value_of(("a=1",))}), asked)["gpu001"] == unknown(asked.doubt)
    assert put(Machines({"gpu001": value_of(())}), asked)["gpu001"] == value_of(())


# --- what the plan makes of it


def plan_of(lost: Mapping[str, Reading[tuple[str, ...]]], policy: RolloutPolicy = BACK) -> Plan:
    seen: Survey = replace(survey(dict.fromkeys(("gpu001", "gpu002"), old_node())), lost=lost)
    return make_plan(seen, surveyed.fleet(), policy, ("driver",))


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (("a=1",), "no way back: a=1 is in no repository"),
        (("a=1", "b=1", "c=1"), "no way back: a=1 and 2 more are in no repository"),
    ],
)
def test_a_node_without_a_way_back_is_not_planned(lost: tuple[str, ...], reason: str) -> None:
    plan = plan_of({"gpu001": value_of(lost), "gpu002": value_of(())})
    (left,) = plan.not_planned
    assert (left.node, left.why, left.reason) == ("gpu001", Why.NO_WAY_BACK, reason)
    assert left.next_step == "put the version back into a repository, or set on_failed_verify: quarantine"
    assert plan.nodes == ("gpu002",)
    assert plan.notes == ()
    assert not plan.is_converged


def test_a_policy_that_quarantines_plans_it() -> None:
    plan = plan_of({"gpu001": value_of(("a=1",))}, QUARANTINE)
    assert plan.nodes == ("gpu001", "gpu002")


def test_what_is_not_proven_is_planned_and_said_once_for_all_nodes() -> None:
    plan = plan_of(dict.fromkeys(("gpu001", "gpu002"), unknown("gpu001: ssh: timeout")))
    assert plan.nodes == ("gpu001", "gpu002")
    (note,) = plan.notes
    assert note.startswith("not proven that gpu[001-002] could come back (gpu001: ssh: timeout): the preflight ")
    assert [change.way_back_doubt for change in plan.to_change] == ["gpu001: ssh: timeout"] * 2


@pytest.mark.parametrize(("policy", "needs"), [(BACK, True), (QUARANTINE, False)])
def test_the_roles_are_told_whether_a_way_back_is_needed(policy: RolloutPolicy, needs: bool) -> None:
    terms = SimpleNamespace(components=(), overrides={}, targets={}, policy=policy)
    rollout = Rollout(cast(Any, None), cast(Any, terms))
    record = NodeRecord("gpu001", course=Course.FORWARD, closures={"driver": Closure({"a": "1"})})
    change = rollout.change(record)
    assert change.needs_way_back is needs
    assert change.closures == record.closures, "what can be kept is kept, for an undo"
