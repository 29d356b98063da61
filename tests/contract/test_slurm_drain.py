"""Drain and undrain on a real Slurm: ours only, and nothing lost (slurm_service.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import slurm_service
from slurm_service import Beside, SlurmService, until

from fleetctl.adapters.slurm import Slurm
from fleetctl.model.mark import Mark, Ownership, owner_of
from fleetctl.model.work import Work
from fleetctl.ports import Answer

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(bool(slurm_service.missing()), reason=slurm_service.missing()),
]

MARK = Mark("r-20261130-a7", "9f3c", "driver 570.195.03 -> 580.95.05")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmService]:
    with slurm_service.running(10) as cluster:
        yield cluster


@pytest.fixture
def node(cluster: SlurmService) -> Iterator[str]:
    with cluster.spare() as (name,):
        yield name


def drain(cluster: SlurmService, node: str, mark: Mark = MARK, replaces: Mark | None = None) -> Answer:
    return asyncio.run(Slurm(Beside(cluster)).drain(node, mark, replaces))


def undrain(cluster: SlurmService, node: str, mark: Mark = MARK) -> Answer:
    return asyncio.run(Slurm(Beside(cluster)).undrain(node, mark))


def look(cluster: SlurmService, node: str) -> Work:
    return asyncio.run(Slurm(Beside(cluster)).work(node)).get()


def admin(cluster: SlurmService, node: str, *changes: str) -> None:
    cluster.run("scontrol", "update", f"nodename={node}", *changes)


# --- the ordinary way


def test_an_idle_node_is_drained_and_given_back(cluster: SlurmService, node: str) -> None:
    assert drain(cluster, node) == Answer("ok")
    work = look(cluster, node)
    assert (work.cordoned, work.empty, work.reason) == (True, True, str(MARK))
    assert undrain(cluster, node) == Answer("ok")
    assert "DRAIN" not in cluster.state(node)
    cluster.await_state(node, "IDLE", without=("NOT_RESPONDING",))
    assert not look(cluster, node).is_out


def test_draining_again_changes_nothing(cluster: SlurmService, node: str) -> None:
    assert drain(cluster, node) == Answer("ok")
    before = cluster.show(node).partition("Reason=")[2]
    beside = Beside(cluster)
    assert asyncio.run(Slurm(beside).drain(node, MARK)) == Answer("ok")
    assert cluster.show(node).partition("Reason=")[2] == before
    assert not [command for command, *_ in beside.times if "update" in command]


@pytest.mark.case("G03", "G14")
def test_a_running_job_is_left_alone_and_the_node_is_empty_only_after_it(cluster: SlurmService, node: str) -> None:
    job = cluster.submit(node)
    cluster.await_state(node, "MIXED")
    assert drain(cluster, node) == Answer("ok")
    work = look(cluster, node)
    assert work.states == {"MIXED", "DRAIN"}, "what only asks for DRAIN takes this node for drained"
    assert (work.cordoned, work.empty) == (True, False)
    assert "RUNNING" in cluster.run("squeue", "-h", "-o", "%T", "-j", job)
    cluster.run("scancel", job)
    until(lambda: look(cluster, node).empty, 20, lambda: cluster.show(node))
    assert look(cluster, node).states == {"IDLE", "DRAIN"}


@pytest.mark.case("G14")
def test_a_job_that_starts_just_before_the_drain_is_waited_for(cluster: SlurmService, node: str) -> None:
    beside = Beside(cluster)

    def start_job(argv: Sequence[str]) -> None:
        if "update" in argv:
            cluster.submit(node)
            cluster.await_state(node, "MIXED")

    beside.before = start_job
    assert asyncio.run(Slurm(beside).drain(node, MARK)) == Answer("ok")
    work = look(cluster, node)
    assert (work.cordoned, work.empty, len(work.jobs)) == (True, False, 1)


@pytest.mark.case("G14")
def test_no_job_starts_on_a_drained_node(cluster: SlurmService, node: str) -> None:
    assert drain(cluster, node) == Answer("ok")
    job = cluster.submit(node)
    until(lambda: "PENDING" in cluster.run("squeue", "-h", "-o", "%T %r", "-j", job), 10, cluster.log)
    assert look(cluster, node).empty, "a job that waits for the node does not hold it"
    assert undrain(cluster, node) == Answer("ok")
    cluster.await_state(node, "MIXED")


# --- ours only


@pytest.mark.case("G02")
def test_a_foreign_drain_is_never_touched(cluster: SlurmService, node: str) -> None:
    admin(cluster, node, "state=drain", "reason=ECC errors, RMA open")
    assert drain(cluster, node).kind == "foreign"
    assert undrain(cluster, node).kind == "foreign"
    assert cluster.reason(node) == "ECC errors, RMA open"
    assert "DRAIN" in cluster.state(node)
    # the check can fail: this is all it would have taken
    admin(cluster, node, "state=resume")
    assert "DRAIN" not in cluster.state(node)


def test_a_node_that_was_set_down_or_failed_by_an_admin_is_never_marked(cluster: SlurmService, node: str) -> None:
    for state in ("down", "fail"):
        admin(cluster, node, f"state={state}", "reason=smoke")
        assert drain(cluster, node).kind == "foreign", state
        assert cluster.reason(node) == "smoke"
        assert state.upper() in cluster.state(node)
    # a drain would take FAIL away, whatever the reason says
    admin(cluster, node, "state=fail", "reason=Not responding")
    assert drain(cluster, node).kind == "foreign"
    assert "FAIL" in cluster.state(node)


def test_another_rollouts_drain_is_foreign_until_it_is_named_as_left_behind(cluster: SlurmService, node: str) -> None:
    other = Mark("r-20261101-b2", "77aa", "quarantined: DKMS failed")
    assert drain(cluster, node, other) == Answer("ok")
    assert drain(cluster, node).kind == "foreign"
    assert undrain(cluster, node).kind == "foreign"
    assert drain(cluster, node, replace(MARK, nonce="9f3d"), replaces=replace(other, nonce="77ab")).kind == "foreign"
    assert cluster.reason(node) == str(other)
    assert drain(cluster, node, MARK, replaces=other) == Answer("ok")
    assert cluster.reason(node) == str(MARK)


@pytest.mark.case("G02")
def test_an_admin_who_drains_during_ours_keeps_the_node(cluster: SlurmService, node: str) -> None:
    assert drain(cluster, node) == Answer("ok")
    admin(cluster, node, "state=drain", "reason=PSU swap, do not touch")
    answer = undrain(cluster, node)
    assert answer.kind == "foreign"
    assert "PSU swap" in answer.reason
    assert drain(cluster, node, replace(MARK, why="quarantined")).kind == "foreign"
    assert cluster.reason(node) == "PSU swap, do not touch"


def test_an_admin_who_resumes_is_seen_and_the_node_is_not_drained_again_by_new_text(
    cluster: SlurmService, node: str
) -> None:
    assert drain(cluster, node) == Answer("ok")
    beside = Beside(cluster)
    beside.before = lambda argv: admin(cluster, node, "state=resume") if "update" in argv else None
    answer = asyncio.run(Slurm(beside).drain(node, replace(MARK, why="quarantined")))
    assert answer.kind == "foreign"
    assert "DRAIN" not in cluster.state(node)
    assert not look(cluster, node).cordoned
    assert undrain(cluster, node).kind == "ok", "there is no drain any more"


def test_new_text_reaches_the_reason_without_any_undrain(cluster: SlurmService, node: str) -> None:
    assert drain(cluster, node) == Answer("ok")
    beside = Beside(cluster)
    assert asyncio.run(Slurm(beside).drain(node, replace(MARK, why="quarantined: DKMS failed"))) == Answer("ok")
    assert cluster.reason(node) == f"{MARK.token} quarantined: DKMS failed"
    (update,) = [command for command, *_ in beside.times if "update" in command]
    assert "State=" not in update, "no state was asked for, so none can have been left"
    assert undrain(cluster, node) == Answer("ok")


@pytest.mark.parametrize(
    "why",
    [
        'a "quoted" word',
        'ends with a quote"',
        "it's $(id) `id` ; id & | > < \\ * ? ~ ! #",
        "key=value State=IDLE NodeName=gpu001",
        "two\nlines\tand\ttabs",
        "looks stamped [root@2026-11-30T21:16:22]",
        "a : Not responding",
        "übel, 漢字",
        "x" * 600,
    ],
    ids=["quotes", "last quote", "shell", "equals", "lines", "stamp", "appended", "unicode", "long"],
)
def test_a_reason_of_odd_characters_stays_ours(cluster: SlurmService, node: str, why: str) -> None:
    odd = replace(MARK, why=why)
    assert drain(cluster, node, odd) == Answer("ok")
    work = look(cluster, node)
    assert work.reason == str(odd)
    assert owner_of(work.reason, MARK) is Ownership.OURS
    assert drain(cluster, node, replace(MARK, why=f"again {why}")) == Answer("ok")
    assert look(cluster, node).reason == str(replace(MARK, why=f"again {why}"))
    assert undrain(cluster, node, odd) == Answer("ok")


def test_a_name_that_means_several_nodes_is_never_given_to_scontrol(cluster: SlurmService) -> None:
    beside = Beside(cluster)
    for name in ("ALL", "all", "gpu[001-002]", "gpu001,gpu002", "gpu*", "", "-o"):
        assert asyncio.run(Slurm(beside).drain(name, MARK)).kind == "unknown", name
        assert asyncio.run(Slurm(beside).undrain(name, MARK)).kind == "unknown", name
    assert beside.times == []


def test_what_an_admin_writes_between_re_read_and_update_is_lost(cluster: SlurmService, node: str) -> None:
    """The window that no client of Slurm can close (it has no compare-and-set); how long it is: test_slurm_scale."""
    assert drain(cluster, node) == Answer("ok")
    beside = Beside(cluster)
    rewrite = ("state=drain", "reason=written in the window")
    beside.before = lambda argv: admin(cluster, node, *rewrite) if "update" in argv else None
    assert asyncio.run(Slurm(beside).undrain(node, MARK)) == Answer("ok")
    assert "DRAIN" not in cluster.state(node)


# --- what Slurm does by itself


@pytest.mark.case("G01")
def test_slurms_own_drain_is_dropped_while_ours_stands_and_is_told_apart_where_it_does_not(
    cluster: SlurmService,
) -> None:
    with cluster.spare(2) as (ours, theirs), cluster.configured(Epilog="/bin/false"):
        jobs = [cluster.submit(name) for name in (ours, theirs)]
        for name in (ours, theirs):
            cluster.await_state(name, "MIXED")
        assert drain(cluster, ours) == Answer("ok")
        cluster.run("scancel", *jobs)
        cluster.await_state(theirs, "IDLE", "DRAIN", without=("COMPLETING",))
        cluster.await_state(ours, "IDLE", "DRAIN", without=("COMPLETING",))
        assert cluster.reason(ours) == str(MARK)
        assert cluster.reason(theirs) == "Epilog error"
        for answer in (drain(cluster, theirs), undrain(cluster, theirs)):
            assert answer.kind == "unknown"
            assert "Epilog error" in answer.reason
        assert cluster.reason(theirs) == "Epilog error"


def test_a_node_that_went_down_is_given_back_only_after_its_slurmd_registered(cluster: SlurmService) -> None:
    with cluster.spare(2) as (node, other):
        for name in (node, other):
            assert drain(cluster, name) == Answer("ok")
            cluster.kill_slurmd(name)
        for name in (node, other):
            cluster.await_state(name, "DOWN", "DRAIN")
        assert owner_of(look(cluster, node).reason, MARK) is Ownership.OURS, cluster.reason(node)
        answer = undrain(cluster, node)
        assert answer.kind == "unknown"
        assert "registered" in answer.reason
        assert "DRAIN" in cluster.state(node)
        for name in (node, other):
            cluster.start_slurmd(name)
            cluster.await_state(name, "DOWN", "DRAIN", without=("NOT_RESPONDING",))
        assert undrain(cluster, node) == Answer("ok")
        cluster.await_state(node, "IDLE", without=("DRAIN", "DOWN", "NOT_RESPONDING"))
        # UNDRAIN, which is right for every other node, would have left it DOWN
        admin(cluster, other, "state=undrain")
        assert "DOWN" in cluster.state(other)
        assert undrain(cluster, other).kind == "ok"
        assert "DOWN" in cluster.state(other)


@pytest.mark.case("G10")
def test_a_node_without_all_its_gpus_is_not_given_back(cluster: SlurmService, node: str) -> None:
    assert drain(cluster, node) == Answer("ok")
    cluster.lose_gpus(node, left=2)
    cluster.await_state(node, "INVALID_REG")
    assert not look(cluster, node).registered
    assert undrain(cluster, node).kind == "unknown"
    cluster.lose_gpus(node, left=slurm_service.GPUS)
    cluster.await_state(node, "IDLE", "DRAIN", without=("INVALID_REG", "NOT_RESPONDING"))
    answer = undrain(cluster, node)
    if cluster.release < (23, 2):
        assert answer == Answer("ok"), "this release leaves our reason alone"
    else:
        assert answer.kind == "unknown"
        assert "count reported lower than configured (2 < 4)" in answer.reason
        assert drain(cluster, node).kind == "unknown"
        # a blind undrain would have given it back
        admin(cluster, node, "state=undrain")
        assert "DRAIN" not in cluster.state(node)


def test_slurms_own_drain_after_ours_never_looks_like_ours(cluster: SlurmService, node: str) -> None:
    assert drain(cluster, node) == Answer("ok")
    assert undrain(cluster, node) == Answer("ok")
    assert owner_of(look(cluster, node).reason, MARK) is not Ownership.OURS
    cluster.lose_gpus(node, left=1)
    cluster.await_state(node, "INVALID_REG", "DRAIN")
    assert owner_of(look(cluster, node).reason, MARK) in (Ownership.SYSTEM, Ownership.FOREIGN)
    cluster.lose_gpus(node, left=slurm_service.GPUS)
    cluster.await_state(node, "IDLE", "DRAIN", without=("INVALID_REG", "NOT_RESPONDING"))
    assert undrain(cluster, node).kind != "ok"
    assert "DRAIN" in cluster.state(node)


@pytest.mark.case("G10")
def test_an_undrained_node_without_all_its_gpus_is_slurms_drain(cluster: SlurmService, node: str) -> None:
    cluster.lose_gpus(node, left=1)
    cluster.await_state(node, "INVALID_REG", "DRAIN")
    work = look(cluster, node)
    assert owner_of(work.reason, MARK) is Ownership.SYSTEM, work.reason
    assert drain(cluster, node).kind == "unknown"
    assert undrain(cluster, node).kind == "unknown"


def test_a_node_in_a_maintenance_reservation_is_drained_and_given_back_to_it(cluster: SlurmService, node: str) -> None:
    cluster.run(
        "scontrol", "create", "reservation", "reservationname=maint", "starttime=now", "duration=30",
        f"nodes={node}", "flags=maint,ignore_jobs", "users=root",
    )  # fmt: skip
    try:
        cluster.await_state(node, "MAINTENANCE")
        assert drain(cluster, node) == Answer("ok")
        work = look(cluster, node)
        assert (work.cordoned, work.empty, work.registered) == (True, True, True)
        assert [found.name for found in work.reservations] == ["maint"]
        assert undrain(cluster, node) == Answer("ok")
        cluster.await_state(node, "MAINTENANCE", without=("DRAIN", "NOT_RESPONDING"))
        job = cluster.submit(node)
        until(lambda: "PENDING" in cluster.run("squeue", "-h", "-o", "%T", "-j", job), 10, cluster.log)
        assert look(cluster, node).empty, "the reservation holds it"
        cluster.run("scancel", job)
    finally:
        cluster.run("scontrol", "delete", "reservationname=maint")


def test_a_rebooting_node_is_not_given_back(cluster: SlurmService, node: str) -> None:
    job = cluster.submit(node)
    cluster.await_state(node, "MIXED")
    assert drain(cluster, node) == Answer("ok")
    cluster.run("scontrol", "reboot", "asap", "nextstate=down", node)
    cluster.await_state(node, "REBOOT_REQUESTED")
    answer = undrain(cluster, node)
    assert answer.kind == "unknown"
    assert "REBOOT_REQUESTED" in answer.reason
    # RESUME would have cancelled the reboot that somebody asked for
    admin(cluster, node, "state=resume")
    assert "REBOOT_REQUESTED" not in cluster.state(node)
    cluster.run("scancel", job)
