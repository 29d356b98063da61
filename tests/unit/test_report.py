"""Reports against the exact text that a person sees: tests/cases/report/*.txt, and *.json for scripts.

To accept a changed report: FLEETCTL_TEST_ACCEPT=1 pytest tests/unit/test_report.py, then read the diff.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.decide.audit import Audit, make_audit
from fleetctl.decide.eta import Typical
from fleetctl.decide.plan import Plan, make_plan
from fleetctl.model.drift import Disturbance, Refusal
from fleetctl.model.node_facts import Lease
from fleetctl.model.policy import Limit, RolloutPolicy
from fleetctl.model.proof import Proof
from fleetctl.model.reading import not_applicable, unknown, value_of
from fleetctl.model.rollout import Closure
from fleetctl.report.as_json import audit_json, plan_json
from fleetctl.report.audit_text import audit_text
from fleetctl.report.plan_text import plan_text
from fleetctl.report.tables import WIDTH, Column, table, wrap
from fleetctl.report.verify_text import verify_json, verify_text
from fleetctl.report.words import ago, clock, count, folded, hours
from tests.unit import surveyed
from tests.unit.surveyed import CALM, NEW, NOW, OLD, behind, down, drift, held, job, observation, survey, work

CASES = Path(__file__).parents[1] / "cases" / "report"

# --- fleets to report on


def everyday_plan() -> Plan:
    """128 nodes: one held, one unreachable, one current, 31 jobs under way."""
    fleet = surveyed.fleet(128, per_rack=8)
    seen = {name: work() for name in fleet.nodes}
    for number, name in enumerate(list(fleet.nodes)[3:34]):
        seen[name] = work(job(str(88100 + number), 0.5 + number * 0.2))
    seen["gpu017"], seen["gpu090"] = held("ECC errors, RMA open"), down(hours_ago=4)
    fabric = drift("binary", "fabric_manager", declared=NEW, observed=OLD, disturbance=Disturbance.DRAIN)
    way_back = {"driver": Closure(dict.fromkeys("abcdefghijklmn", OLD)), "fabric_manager": Closure({"fm": OLD})}
    old = observation(*behind().drifts, fabric, closures=way_back)
    found = {**dict.fromkeys(fleet.nodes, old), "gpu005": observation()}
    policy = RolloutPolicy(
        canary=2,
        soak_s=1800,
        max_unavailable=Limit(5, is_percent=True),
        max_unavailable_per={"rack": Limit(2)},
    )
    observed = {**{name: value_of(one) for name, one in found.items()}, "gpu090": unknown("ssh: timeout: no answer")}
    return make_plan(survey(observed, seen), fleet, policy, ("driver",))


def plan_of_everything_that_is_left_alone() -> Plan:
    fleet = surveyed.fleet(18, nvidia_driver_version=OLD)
    names = list(fleet.nodes)
    refusal = Refusal("driver", "the proprietary kernel module does not drive Blackwell GPUs", "set flavour: open")
    hardware = drift("gpu_count", declared="8", observed="7 in NVML, 8 on the PCI bus", cause="hardware")
    observed: dict[str, Any] = dict.fromkeys(names, behind())
    observed |= {
        "gpu002": unknown("ssh: host_key: the key of 10.0.0.2 is not in known_hosts"),
        "gpu003": behind(facts=replace(CALM, lease=value_of(Lease("r-20261129-b2", "ctl-2.example:4711", 3)))),
        "gpu004": behind(refusals=(refusal,)),
        "gpu005": behind(refusals=(refusal,)),
        "gpu006": observation(drift(), hardware),
        "gpu007": behind(facts=replace(CALM, broken_packages=value_of(("nvidia-dkms-570 half-configured",)))),
        "gpu008": observation(drift("xid", observed="unknown: dmesg: permission denied", is_unknown=True, remedy="")),
        "gpu009": not_applicable("nothing is declared for driver, fabric_manager"),
        "gpu014": observation(),
    }
    lost = tuple(f"libnvidia-{name}-570={OLD}-0ubuntu1" for name in ("cfg1", "compute", "decode"))
    seen: dict[str, Any] = {name: work() for name in names}
    seen |= {
        "gpu010": held("fleetctl:r-20261129-b2:x1 driver 570 -> 580", by="slurm", hours_ago=1.1),
        "gpu011": held("Kill task failed", by="root", hours_ago=0.2),
        "gpu012": work(job("4711", 70)),
        "gpu013": work(job("4712", None)),
        "gpu014": work(job("4713", None)),
        "gpu015": held("", by="", hours_ago=0),
    }
    shown = replace(
        survey(observed, seen),
        work=value_of({n: w for n, w in seen.items() if n != "gpu016"}),
        lost={
            "gpu017": value_of(lost),
            "gpu018": value_of(lost),
            "gpu001": unknown("gpu001: apt-get update: Err:1 http://repo.example stable InRelease"),
        },
    )
    policy = RolloutPolicy(canary=0, max_unavailable=Limit(6))
    return make_plan(shown, fleet, policy, ("driver",), {"nvidia_driver_version": NEW})


def plan_with_nothing_to_change() -> Plan:
    return make_plan(survey({"gpu001": observation()}), surveyed.fleet(8), RolloutPolicy(), ("driver",))


def plan_that_can_not_begin() -> Plan:
    found = survey({"gpu001": behind(), "gpu002": behind()}, {"gpu007": held("RMA")})
    return make_plan(found, surveyed.fleet(8), RolloutPolicy(), ("driver",))


def plan_of_mixed_changes() -> Plan:
    """Two starting points, a first installation, a mere service, measured times, one node whose GPUs nobody counts."""
    older = replace(behind(), found={"driver": "550.163.01 (proprietary)"})
    bare = replace(behind(closures={}), found={"driver": "none"})
    service = observation(drift("service", "fabric_manager", disturbance=Disturbance.SERVICE))
    found = {"gpu001": behind(), "gpu002": behind(), "gpu003": older, "gpu004": bare, "gpu005": service}
    seen = {"gpu004": work(gpus_configured=None)}
    policy = RolloutPolicy(canary=1, max_unavailable=Limit(2), max_unavailable_per={"rack": Limit(1)})
    typical = Typical(restart_s=95, apply_s=61.5, measured=12)
    return make_plan(survey(found, seen), surveyed.fleet(8), policy, ("driver",), typical=typical)


def everyday_audit() -> Audit:
    fabric = drift("binary", "fabric_manager", declared=NEW, observed=OLD, remedy="drain, run the role")
    disk = drift("on_disk", observed=f"{OLD} (open) for kernel 6.8.0-60-generic")
    old = observation(*behind().drifts, disk, fabric)
    loose = drift(
        "held",
        declared="held",
        observed="nvidia-open not held",
        severity="warning",
        remedy="hold missing: run the role",
    )
    xid = drift("xid", declared="none", observed="Xid 13 on 0000:1b:00.0, 2 times since boot", severity="info")
    blind = drift("xid", observed="unknown: dmesg: permission denied", is_unknown=True)
    observed: dict[str, Any] = dict.fromkeys(surveyed.fleet(16).nodes, observation())
    observed |= dict.fromkeys(("gpu003", "gpu004", "gpu005"), old)
    observed |= {
        "gpu006": observation(*old.drifts, loose),
        "gpu007": observation(xid),
        "gpu008": observation(blind),
        "gpu011": unknown("ssh: timeout: no answer within 10 s"),
        "gpu012": unknown("ssh: timeout: no answer within 10 s"),
        "gpu016": not_applicable("nothing is declared for driver, fabric_manager"),
    }
    return make_audit(survey(observed), "train-a")


def clean_audit() -> Audit:
    return make_audit(survey(dict.fromkeys(surveyed.fleet(16).nodes, observation())), "train-a")


def everyday_proofs() -> tuple[Proof, ...]:
    return (
        Proof("gpu001", 11),
        Proof("gpu002", 11),
        Proof("gpu003", 7, "work on the node: job 88123"),
        Proof("gpu004", 10, "", ("hardware: GPU 3 (0000:52:00.0) is not in NVML: 8 on PCI, 7 in NVML",)),
        Proof("gpu005", 9, "", ("nvidia_driver.test_loaded: 570.195.03", "driver loaded is 570.195.03, declared 580")),
        Proof("gpu006", 0, "", (), "can't be probed: ssh: refused: nobody listens on port 22"),
        Proof("gpu007"),
    )


TEXTS: Mapping[str, Callable[[], str]] = {
    "plan_everyday": lambda: plan_text(everyday_plan(), UTC),
    "plan_left_alone": lambda: plan_text(plan_of_everything_that_is_left_alone(), UTC),
    "plan_nothing": lambda: plan_text(plan_with_nothing_to_change(), UTC),
    "plan_no_room": lambda: plan_text(plan_that_can_not_begin(), UTC),
    "plan_mixed": lambda: plan_text(plan_of_mixed_changes(), UTC),
    "audit_everyday": lambda: audit_text(everyday_audit()),
    "audit_clean": lambda: audit_text(clean_audit()),
    "verify_everyday": lambda: verify_text(everyday_proofs()),
    "verify_passed": lambda: verify_text(everyday_proofs()[:3]),
}
JSON: Mapping[str, Callable[[], Any]] = {
    "plan_left_alone": lambda: plan_json(plan_of_everything_that_is_left_alone()),
    "plan_mixed": lambda: plan_json(plan_of_mixed_changes()),
    "audit_everyday": lambda: audit_json(everyday_audit()),
    "verify_everyday": lambda: verify_json(everyday_proofs()),
}


def compare(file: Path, text: str) -> None:
    if os.environ.get("FLEETCTL_TEST_ACCEPT"):
        file.write_text(text + "\n")
    assert text + "\n" == file.read_text()


@pytest.mark.parametrize("name", TEXTS)
def test_what_a_person_sees(name: str) -> None:
    text = TEXTS[name]()
    compare(CASES / f"{name}.txt", text)
    assert [line for line in text.splitlines() if len(line) > WIDTH or line != line.rstrip()] == []


@pytest.mark.parametrize("name", JSON)
def test_what_a_script_reads(name: str) -> None:
    compare(CASES / f"{name}.json", json.dumps(JSON[name](), indent=2))


def test_every_kept_report_is_compared() -> None:
    kept = {file.name for file in CASES.iterdir()}
    assert kept == {*(f"{name}.txt" for name in TEXTS), *(f"{name}.json" for name in JSON)}


# --- an audit hides nothing


Seen = st.sampled_from(["current", "behind", "note", "blind", "unreachable", "undeclared", "behind_and_blind"])


@given(st.lists(Seen, min_size=1, max_size=12))
def test_every_node_of_an_audit_is_somewhere_and_only_a_whole_clean_one_is_as_declared(kinds: list[str]) -> None:
    blind = drift("xid", observed="unknown: no dmesg", is_unknown=True)
    choices: dict[str, Any] = {
        "current": observation(),
        "behind": behind(),
        "note": observation(drift("xid", severity="info")),
        "blind": observation(blind),
        "unreachable": unknown("ssh: timeout"),
        "undeclared": not_applicable("nothing"),
        "behind_and_blind": observation(*behind().drifts, blind),
    }
    kinds_of = {f"n{number}": kind for number, kind in enumerate(kinds)}
    audit = make_audit(survey({name: choices[kind] for name, kind in kinds_of.items()}), "s")
    unobserved = {node for one in audit.unobserved for node in one.nodes}
    assert set(audit.as_declared) == {name for name, kind in kinds_of.items() if kind in ("current", "note")}
    assert set(audit.drifting) == {name for name, kind in kinds_of.items() if kind.startswith("behind")}
    assert unobserved == {name for name, kind in kinds_of.items() if "blind" in kind or kind == "unreachable"}
    assert set(audit.not_declared) == {name for name, kind in kinds_of.items() if kind == "undeclared"}
    assert audit.is_clean == (not set(kinds) - {"current", "note", "undeclared"})
    assert set(audit.nodes) == set(audit.as_declared) | set(audit.drifting) | unobserved | set(audit.not_declared)


# --- words and tables


def test_times_and_counts_read_well() -> None:
    assert clock(NOW + timedelta(hours=3), NOW, UTC) == "05:13"
    assert clock(NOW + timedelta(days=2), NOW, UTC) == "Wed 02:13"
    assert clock(NOW + timedelta(days=9), NOW, UTC) == "2026-12-09 02:13"
    assert [hours(seconds) for seconds in (0, 59, 61, 3600, 360_000)] == ["0:00", "0:01", "0:02", "1:00", "100:00"]
    spans = [timedelta(seconds=20), timedelta(minutes=119), timedelta(hours=47), timedelta(days=3)]
    assert [ago(NOW - span, NOW) for span in spans] == ["just now", "119 min ago", "47 h ago", "3 d ago"]
    assert [count(1, "node"), count(0, "node")] == ["1 node", "0 nodes"]
    assert [folded(["gpu1"]), folded(["gpu2", "gpu1"])] == ["gpu1", "gpu[1-2] (2)"]


def test_folded_names_break_behind_commas_and_stay_whole() -> None:
    assert wrap("gpu[001-002,004-016,018]", 14) == ["gpu[001-002,", "004-016,018]"]
    assert wrap("exactly ten more", 11) == ["exactly ten", "more"]


@given(st.text(alphabet="ab ,[]0", max_size=60), st.integers(5, 30))
def test_wrapping_loses_nothing_but_blanks(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(st.lists(st.tuples(st.text("abc ,", max_size=90), st.text("abc ,", max_size=90)), max_size=5))
def test_a_table_fits_the_screen(rows: list[tuple[str, str]]) -> None:
    lines = table([Column("FIRST", 24), Column("SECOND")], rows)
    assert all(len(line) <= WIDTH for line in lines)
