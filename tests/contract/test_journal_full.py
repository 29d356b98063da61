"""A disk that is really full: said in one line, nothing half written, and the rollout goes on once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.errors import JournalFull
from fleetctl.store.database import default_url, open_database
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.log import RolloutLog, log_path
from tests.unit.journal_parts import ROLLOUT, begun, database_in, intended, opened

pytestmark = pytest.mark.contract


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk to fill it up")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "fleetctl-test", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(directory: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def append_until_full(journal: Journal) -> None:
    for _ in range(10_000):
        journal.append([intended(journal.length)])


@pytest.mark.case("N07")
def test_a_journal_on_a_full_disk_stops_whole_and_goes_on_once_there_is_room(small_disk: Path) -> None:
    journal = begun(database_in(small_disk))
    ballast = fill(small_disk)
    with pytest.raises(JournalFull, match=f"^{small_disk}/journal.db: no room to write .* make room") as error:
        append_until_full(journal)
    assert "\n" not in str(error.value)
    held = journal.length
    chain = verify(database_in(small_disk), ROLLOUT)
    assert (chain.broken_at, chain.length) == (None, held)
    ballast.unlink()
    journal.append([intended(held)])
    assert list(read_events(database_in(small_disk), ROLLOUT)) == [opened(), *map(intended, range(1, held + 1))]


@pytest.mark.case("N07")
def test_a_journal_that_can_not_be_begun_for_lack_of_room_is_not_begun(small_disk: Path) -> None:
    ballast = fill(small_disk)
    with pytest.raises(JournalFull, match="no room"):
        database_in(small_disk)
    ballast.unlink()
    assert [path.name for path in small_disk.iterdir()] == []


@pytest.mark.case("N07")
def test_a_journal_is_not_taken_up_on_a_full_disk(small_disk: Path) -> None:
    begun(database := database_in(small_disk))
    database.close()
    fill(small_disk)
    with pytest.raises(JournalFull, match="no room"):
        begun(open_database(default_url(small_disk)), "r-20261130-b8")


@pytest.mark.case("N07")
def test_a_log_on_a_full_disk_is_not_in_the_way(small_disk: Path) -> None:
    fill(small_disk)
    log = RolloutLog(log_path(small_disk, ROLLOUT), lambda: 1)
    log([opened()])
    assert "No space left on device" in log.problem
