"""Slurm's listings, form by form (tests/cases/slurm), and laws that hold for any text."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetctl.model.reading import Reading
from fleetctl.model.work import Job, Work
from fleetctl.parse.slurm import join_listings, read_jobs
from fleetctl.parse.slurm_hostlist import expand_hostlist
from fleetctl.parse.slurm_json import read_nodes_json
from fleetctl.parse.slurm_records import JobRecord, NodeListing, NodeRecord, count_gpus, is_gres_used
from fleetctl.parse.slurm_states import is_quiet, is_registered, read_states
from fleetctl.parse.slurm_text import read_nodes_text, read_reservations
from tests.unit.case_files import params, read_cases


def cases(name: str) -> pytest.MarkDecorator:
    loaded = read_cases(f"slurm/{name}.yaml")
    return pytest.mark.parametrize("case", params(loaded, lambda case: case.get("case") or case.get("text") or "-"))


def expect_nodes(reading: Reading[NodeListing], case: dict[str, Any]) -> None:
    if "wrong" in case:
        assert reading.kind == "unknown"
        assert case["wrong"] in reading.reason
        return
    assert reading.is_known, reading.reason
    expected = {
        name: NodeRecord(
            name=name,
            states=frozenset(node["states"]),
            is_allocated=node["allocated"],
            reason=node.get("reason", ""),
            reason_by=node.get("by", ""),
            reason_at=node["at"].astimezone(UTC) if "at" in node else None,
            partitions=frozenset(node.get("partitions", [])),
            gpus_configured=node.get("gpus"),
        )
        for name, node in case["nodes"].items()
    }
    assert reading.get() == expected


@cases("states")
def test_states_have_one_normal_form(case: dict[str, Any]) -> None:
    states = read_states(case["words"])
    assert states == set(case["states"])
    assert (is_registered(states), is_quiet(states)) == (case["registered"], case["quiet"])


@cases("hostlists")
def test_folded_node_lists(case: dict[str, Any]) -> None:
    reading = expand_hostlist(case["text"])
    if "wrong" in case:
        assert reading.kind == "unknown"
        assert case["wrong"] in reading.reason
        assert case["text"][:50] in reading.reason
    else:
        assert list(reading.get()) == case["names"]


def test_a_range_that_grows_wider_is_read_though_clustershell_refuses_it() -> None:
    """`scontrol show hostlist` folds n08 to n101 so."""
    from ClusterShell.NodeSet import NodeSet, NodeSetParseError

    assert list(expand_hostlist("n[08-101]").get()) == [f"n{number:02d}" for number in range(8, 102)]
    with pytest.raises(NodeSetParseError):
        NodeSet("n[08-101]")


@cases("nodes_text")
def test_nodes_in_text(case: dict[str, Any]) -> None:
    expect_nodes(read_nodes_text(case["text"]), case)


@cases("nodes_json")
def test_nodes_in_json(case: dict[str, Any]) -> None:
    expect_nodes(read_nodes_json(json.dumps(case["document"])), case)


@cases("jobs")
def test_jobs(case: dict[str, Any]) -> None:
    reading = read_jobs(case["text"])
    if "wrong" in case:
        assert reading.kind == "unknown"
        assert case["wrong"] in reading.reason
        return
    expected = [
        JobRecord(
            Job(
                job["id"], job["user"], job["ends_by"].astimezone(UTC) if "ends_by" in job else None, job["node_count"]
            ),
            tuple(job["nodes"]),
        )
        for job in case["jobs"]
    ]
    assert list(reading.get()) == expected


@cases("reservations")
def test_reservations(case: dict[str, Any]) -> None:
    reading = read_reservations(case["text"])
    if "wrong" in case:
        assert reading.kind == "unknown"
        assert case["wrong"] in reading.reason
        return
    found = {node: [asdict(one) for one in reservations] for node, reservations in reading.get().items()}
    assert found == case["by_node"]


@pytest.mark.parametrize(
    ("gres", "gpus", "used"),
    [
        ("gpu:h100:8(S:0-1)", 8, True),
        ("gpu:8", 8, True),
        ("gpu:h100:4,gpu:mig-1g.10gb:14", 18, True),
        ("gpu:h100:2(IDX:0-1),shard:h100:0(0/8,0/8)", 2, True),
        ("gpu:h100:0(IDX:N/A)", 0, False),
        ("gpu=0", 0, False),
        ("craynetwork:4", None, True),
        ("bandwidth:lustre:4G", None, True),
        ("", None, False),
        ("(null)", None, False),
        ("gpu:h100:many", None, True),
    ],
)
def test_gres(gres: str, gpus: int | None, used: bool) -> None:
    assert count_gpus(gres) == gpus
    assert is_gres_used(gres) is used


# --- joined


def node(states: str = "IDLE+DRAIN", *, is_allocated: bool = False) -> NodeListing:
    return {"gpu001": NodeRecord("gpu001", read_states([states]), is_allocated)}


def one(listing: NodeListing, *jobs: JobRecord) -> Work:
    return join_listings(listing, jobs, {})["gpu001"]


JOB = JobRecord(Job("1", "ada"), ("gpu001", "gpu002"))


def test_a_node_is_empty_only_if_state_allocation_and_job_list_agree() -> None:
    assert one(node()).empty
    assert one(node("DOWN+DRAIN")).empty
    assert not one(node(is_allocated=True)).empty
    assert not one(node(), JOB).empty
    assert not one(node("IDLE+DRAIN+COMPLETING")).empty
    assert not one(node("MIXED+DRAIN")).empty
    assert not one(node("DRAIN")).empty


def test_a_node_that_is_idle_but_not_drained_is_not_cordoned() -> None:
    assert (one(node("IDLE")).cordoned, one(node("IDLE")).is_out) == (False, False)
    assert (one(node()).cordoned, one(node()).is_out) == (True, True)


@pytest.mark.parametrize("states", ["DOWN", "ERROR", "IDLE+FAIL", "DOWN+DRAIN+NOT_RESPONDING"])
def test_down_fail_and_error_are_down(states: str) -> None:
    assert one(node(states)).down


# --- for any text


@given(st.text())
@example(f"1|RUNNING|a|N/A|{'9' * 5000}|n1")
@example(f"gpu:{'9' * 5000}")
@example("9" * 5000)
def test_no_text_makes_a_parser_raise(text: str) -> None:
    for read in (read_nodes_text, read_nodes_json, read_jobs, read_reservations, expand_hostlist):
        assert read(text).kind in ("value", "unknown")
    read_states([text])
    count_gpus(text)


lines = st.sampled_from(
    [
        "NodeName=n1 CPUTot=4", "   CPUAlloc=0", "   AllocMem=0 FreeMem=1", "   State=IDLE+DRAIN Weight=1",
        "   Reason=a [b@2026-01-01T00:00:00]", "      more", "   OS=x", "", "NodeName=n1", "   =", "   State=", "][",
    ]
)  # fmt: skip


@given(st.lists(lines).map("\n".join))
def test_a_damaged_listing_is_unknown_or_whole(text: str) -> None:
    reading = read_nodes_text(text)
    if reading.is_known:
        assert all(node.states == {"IDLE", "DRAIN"} and not node.is_allocated for node in reading.get().values())
        assert text.count("CPUAlloc=0") >= 1


json_keys = st.sampled_from(
    [
        "nodes", "sinfo", "meta", "slurm", "Slurm", "release", "name", "state", "state_flags", "alloc_cpus",
        "alloc_memory", "errors", "set", "number", "infinite", "cpus", "memory", "allocated", "partition", "reason",
        "plugin", "plugins", "reason_changed_at", "gres", "node", "data_parser",
    ]
)  # fmt: skip
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_keys, inner, max_size=6),
    max_leaves=30,
)


@given(json_values)
def test_no_json_makes_the_parser_raise_or_say_no_nodes(document: object) -> None:
    reading = read_nodes_json(json.dumps(document))
    assert reading.kind == "unknown" or reading.get()
    assert reading.is_known or reading.reason


@given(
    st.lists(
        st.tuples(st.sampled_from(["n", "gpu-", "r1c"]), st.integers(0, 120), st.integers(1, 3)),
        min_size=1,
        max_size=30,
    )
)
def test_what_clustershell_folds_is_unfolded_to_the_same_names(parts: list[tuple[str, int, int]]) -> None:
    from ClusterShell.NodeSet import NodeSet

    names = {f"{prefix}{number:0{width}d}" for prefix, number, width in parts}
    assert set(expand_hostlist(str(NodeSet.fromlist(sorted(names)))).get()) == names


@given(st.text(max_size=300))
def test_a_reason_is_read_as_it_was_written_whatever_is_in_it(reason: str) -> None:
    """As slurmctld prints it: the stamp after its first line, later lines indented, empty lines left out."""
    kept = [line for line in reason.replace("\x00", "").split("\n") if line]
    if not kept or any(line != line.strip() or line.splitlines() != [line] for line in kept):
        return
    first, *more = kept
    printed = "\n".join([f"   Reason={first} [root@2026-11-30T21:16:22]", *(f"          {line}" for line in more)])
    text = f"NodeName=n1 CPUTot=4\n   CPUAlloc=0 AllocMem=0\n   State=IDLE+DRAIN\n{printed}\n   Comment=State=DOWN\n\n"
    found = read_nodes_text(text).get()["n1"]
    assert found.reason == "\n".join(kept)
    assert (found.reason_by, found.reason_at) == ("root", datetime(2026, 11, 30, 21, 16, 22, tzinfo=UTC))
    assert found.states == {"IDLE", "DRAIN"}
