"""Who we are to Slurm, and what happens when it can't be reached (slurm_service.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest
import slurm_service
from slurm_service import NOBODY, Beside, SlurmService

from fleetctl.adapters.slurm import Slurm
from fleetctl.errors import SchedulerError
from fleetctl.model.mark import Mark

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(bool(slurm_service.missing()), reason=slurm_service.missing()),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmService]:
    with slurm_service.running(2) as cluster:
        yield cluster


def check(cluster: SlurmService, user: Sequence[str] = (), *, to_change: bool = True) -> str:
    """Why we are refused; empty if we are not."""
    try:
        asyncio.run(Slurm(Beside(cluster, user)).check_access(to_change=to_change))
    except SchedulerError as error:
        return str(error)
    return ""


def test_root_may_do_everything_even_where_jobs_are_private(cluster: SlurmService) -> None:
    assert check(cluster) == ""
    with cluster.configured(PrivateData="jobs"):
        assert check(cluster) == ""


def test_asking_changes_nothing(cluster: SlurmService) -> None:
    before = [cluster.show(node).partition("State=")[2] for node in cluster.names]
    assert check(cluster) == ""
    assert check(cluster, NOBODY) != ""
    assert [cluster.show(node).partition("State=")[2] for node in cluster.names] == before


def test_who_may_not_update_nodes_is_refused_a_rollout_but_may_look(cluster: SlurmService) -> None:
    refusal = check(cluster, NOBODY)
    assert "may not update nodes" in refusal
    assert "AdminLevel" in refusal, "names the next step"
    assert check(cluster, NOBODY, to_change=False) == ""


def test_who_cannot_see_all_jobs_is_refused(cluster: SlurmService) -> None:
    node = cluster.names[0]
    with cluster.configured(PrivateData="jobs,usage"):
        try:
            cluster.submit(node)
            cluster.await_state(node, "MIXED")
            assert cluster.run(*NOBODY, "squeue", "-h", "-a") == "", "the job is hidden from that identity"
            for to_change in (True, False):
                refusal = check(cluster, NOBODY, to_change=to_change)
                assert "others' jobs (PrivateData)" in refusal
                assert "usage" not in refusal
        finally:
            cluster.clear(node)


def test_the_release_is_the_controllers(cluster: SlurmService) -> None:
    release = asyncio.run(Slurm(Beside(cluster)).slurm_version())
    assert tuple(map(int, release.split(".")[:2])) == cluster.release


def test_without_a_controller_nothing_is_known_and_nothing_is_an_answer(cluster: SlurmService) -> None:
    node, mark = cluster.names[0], Mark("r-1", "a1")
    slurm = Slurm(Beside(cluster), deadline_s=2)
    cluster.kill_slurmctld()
    try:
        assert asyncio.run(slurm.snapshot()).kind == "unknown"
        assert asyncio.run(slurm.work(node)).kind == "unknown"
        assert asyncio.run(slurm.drain(node, mark)).kind == "unknown"
        assert asyncio.run(slurm.undrain(node, mark)).kind == "unknown"
        with pytest.raises(SchedulerError, match="can't be reached"):
            asyncio.run(slurm.check_access())
    finally:
        cluster.run("slurmctld")
    # it can also be known again
    cluster.await_state(node, "IDLE", without=("NOT_RESPONDING",))
    assert asyncio.run(slurm.snapshot()).is_known
