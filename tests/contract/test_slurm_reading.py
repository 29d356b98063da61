"""What Slurm's nodes and jobs look like to fleetctl, on a real Slurm (slurm_service.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
import slurm_service
from slurm_service import NOBODY, Beside, SlurmService, until

from fleetctl.adapters.slurm import Slurm
from fleetctl.adapters.slurm_commands import ENVIRONMENT, show_nodes
from fleetctl.model.work import Work
from fleetctl.parse.slurm_json import read_nodes_json
from fleetctl.parse.slurm_text import read_nodes_text

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(bool(slurm_service.missing()), reason=slurm_service.missing()),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmService]:
    with slurm_service.running(6) as cluster:
        yield cluster


@pytest.fixture
def node(cluster: SlurmService) -> Iterator[str]:
    with cluster.spare() as (name,):
        yield name


def look(cluster: SlurmService, node: str, user: Sequence[str] = ()) -> Work:
    return asyncio.run(Slurm(Beside(cluster, user)).work(node)).get()


def look_at_all(slurm: Slurm) -> dict[str, Work]:
    return dict(asyncio.run(slurm.snapshot()).get())


def test_every_node_is_listed_with_its_gpus_and_partitions(cluster: SlurmService) -> None:
    seen = look_at_all(Slurm(Beside(cluster)))
    assert sorted(seen) == sorted(cluster.names)
    assert {work.gpus_configured for work in seen.values()} == {slurm_service.GPUS}
    assert seen[cluster.names[0]].partitions == {"train", "staff"}
    assert all(work.empty and work.registered and not work.is_out for work in seen.values())


def test_one_node_reads_the_same_alone_as_in_the_snapshot(cluster: SlurmService, node: str) -> None:
    cluster.submit(node, "--gres=gpu:1")
    cluster.await_state(node, "MIXED")
    cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=note = a b, c=d [x@y]")
    assert look(cluster, node) == look_at_all(Slurm(Beside(cluster)))[node]
    assert look(cluster, node).reason == "note = a b, c=d [x@y]"
    assert look(cluster, node).reason_by == "root"


def test_every_listing_that_this_slurm_prints_says_the_same(cluster: SlurmService) -> None:
    with cluster.spare(2) as (drained, busy):
        cluster.submit(busy, "--gres=gpu:2")
        cluster.await_state(busy, "MIXED")
        cluster.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=a = b\nsecond [c@d]")
        text = read_nodes_text(cluster.run(*ENVIRONMENT, *show_nodes("", json=False))).get()
        assert text[drained].reason == "a = b\nsecond [c@d]"
        assert (text[busy].is_allocated, text[drained].is_allocated) == (True, False)
        if cluster.release < (23, 2):
            assert read_nodes_json(cluster.run("sinfo", "--json")).get() == text
        else:
            assert read_nodes_json(cluster.run(*ENVIRONMENT, *show_nodes("", json=True))).get() == text
            nested = read_nodes_json(cluster.run("sinfo", "-a", "-N", "--json")).get()
            assert {name: (node.states, node.is_allocated) for name, node in nested.items()} == {
                name: (node.states, node.is_allocated) for name, node in text.items()
            }


def test_a_job_is_seen_with_its_limit_and_the_node_is_not_empty(cluster: SlurmService, node: str) -> None:
    job = cluster.submit(node, "--gres=gpu:2", user=NOBODY)
    cluster.await_state(node, "MIXED")
    work = look(cluster, node)
    assert [(found.id, found.user, found.node_count) for found in work.jobs] == [(job, "nobody", 1)]
    ends_at, now = work.jobs[0].ends_by, float(cluster.run("date", "+%s"))
    assert ends_at is not None
    assert 500 < ends_at.timestamp() - now < 605, "the limit is 10 minutes, whatever the head node's time zone"
    assert not work.empty


def test_a_job_in_a_hidden_partition_is_seen(cluster: SlurmService) -> None:
    hidden = cluster.names[0]
    try:
        cluster.submit(hidden, "-p", "staff")
        cluster.await_state(hidden, "MIXED")
        assert len(look(cluster, hidden, NOBODY).jobs) == 1
        # the check can fail: without -a that identity sees nothing there
        assert cluster.run(*NOBODY, "squeue", "-h", "-w", hidden) == ""
    finally:
        cluster.clear(hidden)


def test_a_profile_that_filters_squeue_hides_nothing(
    cluster: SlurmService, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.submit(node)
    cluster.await_state(node, "MIXED")
    profile = ("env", "SQUEUE_USERS=daemon", "SQUEUE_STATES=PD", "SLURM_TIME_FORMAT=relative", "TZ=Asia/Tokyo")
    assert cluster.run(*profile, "squeue", "-h") == "", "such a profile does hide it"
    assert look(cluster, node, profile).jobs == look(cluster, node).jobs != ()


def test_a_suspended_job_holds_its_node(cluster: SlurmService, node: str) -> None:
    job = cluster.submit(node)
    cluster.await_state(node, "MIXED")
    cluster.run("scontrol", "suspend", job)
    until(lambda: "SUSPENDED" in cluster.run("squeue", "-h", "-o", "%T", "-j", job), 10, lambda: cluster.log())
    work = look(cluster, node)
    assert [found.id for found in work.jobs] == [job]
    assert not work.empty
    cluster.run("scontrol", "resume", job)


@pytest.mark.case("G03")
def test_a_node_is_not_empty_while_a_job_is_leaving_it(cluster: SlurmService, node: str) -> None:
    epilog = f"{cluster.directory}/epilog"
    cluster.run("sh", "-c", f"echo '#!/bin/sh\nsleep 2' > {epilog}; chmod 755 {epilog}")
    with cluster.configured(Epilog=epilog):
        job = cluster.submit(node)
        cluster.await_state(node, "MIXED")
        cluster.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
        cluster.run("scancel", job)
        seen: list[Work] = []

        def is_empty() -> bool:
            seen.append(look(cluster, node))
            return seen[-1].empty

        until(is_empty, 20, lambda: cluster.show(node))
    leaving = [work for work in seen if "COMPLETING" in work.states]
    assert leaving, "seen while it was leaving"
    assert not any(work.empty for work in leaving)
    assert seen[-1].states == {"IDLE", "DRAIN"}
    assert not seen[-1].jobs


def test_a_job_that_starts_between_the_two_listings_is_seen(cluster: SlurmService, node: str) -> None:
    beside = Beside(cluster)
    slurm = Slurm(beside)
    assert look_at_all(slurm)[node].empty

    def start_job(argv: Sequence[str]) -> None:
        if "squeue" in argv:
            cluster.submit(node)
            cluster.await_state(node, "MIXED")

    beside.before = start_job
    work = look_at_all(slurm)[node]
    assert work.states == {"IDLE"}, "the node listing is from before it"
    assert len(work.jobs) == 1
    assert not work.empty


def test_a_node_without_its_slurmd_is_not_registered(cluster: SlurmService, node: str) -> None:
    cluster.kill_slurmd(node)
    cluster.await_state(node, "DOWN", "NOT_RESPONDING")
    work = look(cluster, node)
    assert work.down
    assert not work.registered
    assert work.is_out


def test_a_reservation_is_read_with_its_time(cluster: SlurmService, node: str) -> None:
    cluster.run(
        "scontrol", "create", "reservation", "reservationname=m1", "starttime=now+60minutes", "duration=30",
        f"nodes={node}", "flags=maint,ignore_jobs", "users=root",
    )  # fmt: skip
    try:
        (reservation,) = look(cluster, node).reservations
        ahead_s = reservation.starts_at.timestamp() - float(cluster.run("date", "+%s"))
        assert 3400 < ahead_s < 3605
        assert (reservation.name, reservation.users, reservation.is_maintenance) == ("m1", "root", True)
        assert reservation.ends_at is not None
        assert (reservation.ends_at - reservation.starts_at).total_seconds() == 1800
        assert look(cluster, cluster.names[-1]).reservations == () or node == cluster.names[-1]
    finally:
        cluster.run("scontrol", "delete", "reservationname=m1")


def test_what_is_no_single_node_is_unknown(cluster: SlurmService) -> None:
    for name in ("ALL", "gpu[001-002]", "gpu001,gpu002", "gpu999", "", "-a", "gpu001 "):
        assert asyncio.run(Slurm(Beside(cluster)).work(name)).kind == "unknown", name
    # scontrol itself takes them for several nodes
    assert cluster.run("scontrol", "show", "node", "gpu[001-002]").count("NodeName=") == 2
