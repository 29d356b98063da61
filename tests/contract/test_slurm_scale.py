"""Many nodes at once, and the times that the README quotes (`--junit-xml` records them)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest
import slurm_service
from slurm_service import Beside, SlurmService

from fleetctl.adapters.slurm import Slurm
from fleetctl.model.mark import Mark
from fleetctl.ports import Answer

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(bool(slurm_service.missing()), reason=slurm_service.missing()),
]

Record = Callable[[str, object], None]
AT_ONCE = 50
UNSTARTED = 1000
MARK = Mark("r-20261130-a7", "9f3c", "driver 570.195.03 -> 580.95.05")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmService]:
    with slurm_service.running(AT_ONCE, unstarted=UNSTARTED) as cluster:
        yield cluster


def test_fifty_nodes_are_drained_and_given_back_at_the_same_time(
    cluster: SlurmService, record_testsuite_property: Record
) -> None:
    async def act() -> tuple[list[Answer], set[str], list[Answer]]:
        slurm = Slurm(Beside(cluster))
        drained = await asyncio.gather(*(slurm.drain(node, MARK) for node in cluster.names))
        out = {name for name, work in (await slurm.snapshot()).get().items() if work.reason == str(MARK)}
        return drained, out, await asyncio.gather(*(slurm.undrain(node, MARK) for node in cluster.names))

    started_at = time.monotonic()
    drained, out, undrained = asyncio.run(act())
    record_testsuite_property("fifty_drained_and_given_back_s", time.monotonic() - started_at)
    assert drained == undrained == [Answer("ok")] * AT_ONCE
    assert out == set(cluster.names)


def test_a_snapshot_of_a_thousand_nodes_takes_seconds_at_most(
    cluster: SlurmService, record_testsuite_property: Record
) -> None:
    for node in cluster.names:
        cluster.await_state(node, "IDLE", without=("NOT_RESPONDING",))
    started_at = time.monotonic()
    snapshot = asyncio.run(Slurm(Beside(cluster)).snapshot()).get()
    took_s = time.monotonic() - started_at
    record_testsuite_property("snapshot_of_1050_ms", took_s * 1000)
    assert len(snapshot) == AT_ONCE + UNSTARTED
    assert snapshot["spare00001"].down
    assert sum(work.empty and not work.is_out for work in snapshot.values()) == AT_ONCE
    assert took_s < 10


def test_the_window_between_re_read_and_update_is_short(
    cluster: SlurmService, record_testsuite_property: Record
) -> None:
    """From the moment that slurmctld may have answered the re-read to the moment that it has taken the update."""
    beside, windows_s = Beside(cluster), []
    slurm = Slurm(beside)

    async def act() -> None:
        for node in cluster.names[:20]:
            cluster.await_state(node, "IDLE", without=("NOT_RESPONDING",))
            assert await slurm.drain(node, MARK) == Answer("ok")
            beside.times.clear()
            assert await slurm.undrain(node, MARK) == Answer("ok")
            update = next(index for index, (command, *_) in enumerate(beside.times) if "update" in command)
            windows_s.append(beside.times[update][2] - beside.times[update - 1][1])

    asyncio.run(act())
    median_s = sorted(windows_s)[len(windows_s) // 2]
    record_testsuite_property("window_median_and_longest_ms", (median_s * 1000, max(windows_s) * 1000))
    assert median_s < 1
