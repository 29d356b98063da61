"""A disk that is really full: said in one line, nothing half written, and the rollout goes on once there is room."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetctl.errors import JournalFull
from fleetctl.model.rollout import Act, Event, Intended, State
from fleetctl.store.database import default_url, open_database
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.log import RolloutLog, log_path
from fleetctl.twin.controller import TwinController, TwinJournal
from tests.unit.journal_parts import ROLLOUT, begun, database_in, intended, opened
from tests.unit.test_twin_rollout import NEW, OLD, POLICY, finish, make_world, states

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


@dataclass
class OnDisk(TwinJournal):
    """The twin's journal, with every line on the real disk first."""

    real: Journal = field(kw_only=True)

    def append(self, events: Sequence[Event]) -> None:
        self.real.append(events)
        super().append(events)


@pytest.mark.case("N07")
@pytest.mark.parametrize("full_at_s", range(20, 620, 50))
def test_a_rollout_whose_journal_is_full_starts_nothing_more_and_goes_on_once_there_is_room(
    small_disk: Path, full_at_s: int
) -> None:
    world, journal = make_world(), OnDisk(real=begun(database_in(small_disk)))
    world.loop.call_at(full_at_s, fill, small_disk)
    with pytest.raises(JournalFull):
        TwinController(world, journal, POLICY, NEW).run()
    world.loop.call_at(world.loop.time() + 3600, world.loop.stop)
    world.loop.run_forever()

    events = read_events(database_in(small_disk), ROLLOUT)
    written = Counter(event.intent.act for event in events if isinstance(event, Intended))
    laws = world.laws
    done = Counter({Act.DRAIN: laws.drains, Act.APPLY: laws.changes, Act.RESTART: laws.restarts})
    done[Act.UNDRAIN] = laws.undrains
    assert not done - written, "more was done than is written down"
    assert len([node for node in world.nodes.values() if node.installed == OLD and not node.cordoned]) >= 2

    (small_disk / "ballast").unlink()
    assert set(states(finish(world, journal)).values()) == {State.DONE}
