"""The journal keeps what it was given, all or none, and says where it was changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.errors import JournalDamaged, Refused, SelectionError
from fleetctl.model.rollout import Closed, Event, Request, Requested, Resumed
from fleetctl.store.database import Database
from fleetctl.store.history import list_rollouts
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.lock import acquire, release
from fleetctl.store.open_rollout import new_name, new_nonce
from fleetctl.store.requests import Requests, submit
from tests.unit.journal_parts import NOW, ROLLOUT, abandon, begun, database_in, intended, opened, tamper


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return database_in(tmp_path)


def test_events_come_back_in_order_from_another_connection(database: Database, tmp_path: Path) -> None:
    journal = begun(database)
    journal.append([intended(1), intended(2)])
    journal.append([intended(3)])
    expected = [opened(), intended(1), intended(2), intended(3)]
    assert list(read_events(database_in(tmp_path), ROLLOUT)) == expected
    assert journal.length == 4


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 4), max_size=6))
def test_however_events_are_grouped_their_numbers_have_no_hole(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    database = database_in(tmp_path_factory.mktemp("grouped"))
    journal, expected = begun(database), [opened()]
    for size in sizes:
        group: list[Event] = [intended(len(expected) + index) for index in range(size)]
        journal.append(group)
        expected += group  # type: ignore[arg-type]
    assert list(read_events(database, ROLLOUT)) == expected
    assert verify(database, ROLLOUT).length == len(expected) == journal.length
    with database.read() as connection:
        numbers = connection.exec_driver_sql("SELECT seq FROM events ORDER BY seq").scalars().all()
    assert numbers == list(range(1, len(expected) + 1))


def test_a_group_is_written_whole_or_not_at_all(database: Database) -> None:
    journal = begun(database)
    with pytest.raises(ValueError, match="no time zone"):
        journal.append([intended(1), Closed(NOW.replace(tzinfo=None), "complete")])
    assert list(read_events(database, ROLLOUT)) == [opened()]
    journal.append([intended(1)])
    assert verify(database, ROLLOUT).length == 2


def test_a_group_that_the_database_refuses_in_its_middle_leaves_nothing(database: Database) -> None:
    journal = begun(database)
    with database.write() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER third BEFORE INSERT ON events WHEN NEW.seq = 3 BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    with pytest.raises(Exception, match="no"):
        journal.append([intended(1), intended(2)])
    assert list(read_events(database, ROLLOUT)) == [opened()]


def test_a_journal_begins_with_the_opening_of_its_own_rollout(database: Database) -> None:
    journal = Journal(database, acquire(database, "lab", ROLLOUT, NOW))
    for first in (intended(1), opened("r-20261130-zz"), opened(site="other")):
        with pytest.raises(ValueError, match="begins with its Opened"):
            journal.append([first])
    with pytest.raises(SelectionError, match="there is no rollout r-20261130-a7"):
        list(read_events(database, ROLLOUT))


# --- whose journal it is


def test_a_controller_that_was_followed_writes_nothing_and_is_told_by_whom(database: Database) -> None:
    old = begun(database)
    abandon(database, old.claim)
    new = Journal(database, acquire(database, "lab", ROLLOUT, NOW))
    who = f"{new.claim.controller.owner}, pid {new.claim.controller.pid} \\(epoch 2, ours was 1\\)"
    with pytest.raises(Refused, match=f"taken over by {who}"):
        old.append([intended(1)])
    assert list(read_events(database, ROLLOUT)) == [opened()]
    new.append([Resumed(NOW, "b", 2)])
    assert verify(database, ROLLOUT).length == 2


def test_after_its_release_a_controller_writes_nothing(database: Database) -> None:
    journal = begun(database)
    release(database, journal.claim)
    with pytest.raises(Refused, match="not run by us any more"):
        journal.append([intended(1)])
    assert verify(database, ROLLOUT).length == 1


def test_a_lock_row_that_was_put_back_does_not_let_an_old_controller_write(database: Database, tmp_path: Path) -> None:
    """Same epoch, other process: as after the database was restored from a copy."""
    journal = begun(database)
    tamper(tmp_path, "UPDATE locks SET pid = pid + 1")
    with pytest.raises(Refused, match="taken over"):
        journal.append([intended(1)])


# --- the chain


CHANGES = {
    "a payload": ("UPDATE events SET payload = replace(payload, 'gpu001', 'gpu009') WHERE seq = 3", 3),
    "a hash": ("UPDATE events SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE seq = 3", 3),
    "a number": ("UPDATE events SET seq = 99 WHERE seq = 5", 5),
    "an epoch": ("UPDATE events SET epoch = 7 WHERE seq = 2", 2),
    "an event lost in the middle": ("DELETE FROM events WHERE seq = 3", 3),
    "the first event lost": ("DELETE FROM events WHERE seq = 1", 1),
    "all events lost": ("DELETE FROM events", 1),
    "the last event lost": ("DELETE FROM events WHERE seq = 5", 5),
    "the end forgotten": ("UPDATE rollouts SET length = 4", 6),
    "an event added by others": (
        "INSERT INTO events SELECT rollout, 6, epoch, payload, hash FROM events WHERE seq = 5",
        6,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_behind_the_programs_back_is_found_where_it_is(
    database: Database, tmp_path: Path, change: str
) -> None:
    begun(database, events=[intended(number) for number in range(1, 5)])
    assert verify(database, ROLLOUT).broken_at is None
    statement, place = CHANGES[change]
    tamper(tmp_path, statement)
    chain = verify(database, ROLLOUT)
    assert (chain.broken_at, chain.length) == (place, place - 1)
    assert chain.reason
    with pytest.raises(JournalDamaged, match=f"from event {place} on"):
        list(read_events(database, ROLLOUT))


def test_events_of_another_rollout_can_not_be_moved_here(database: Database, tmp_path: Path) -> None:
    begun(database)
    begun(database, "r-20261130-b8", [intended(1)])
    tamper(
        tmp_path,
        f"INSERT INTO events SELECT '{ROLLOUT}', seq, epoch, payload, hash FROM events"
        " WHERE rollout = 'r-20261130-b8' AND seq = 2",
    )
    assert verify(database, ROLLOUT).broken_at == 2
    assert verify(database, "r-20261130-b8").broken_at is None


def test_a_whole_journal_under_another_name_is_not_that_rollouts(database: Database, tmp_path: Path) -> None:
    begun(database, events=[intended(1)])
    for table, column in (("events", "rollout"), ("rollouts", "name")):
        tamper(tmp_path, f"UPDATE {table} SET {column} = 'r-20261130-zz'")
    assert verify(database, "r-20261130-zz").broken_at == 1


def test_an_event_of_a_newer_program_is_refused_naming_both_versions(database: Database, tmp_path: Path) -> None:
    from fleetctl.store.journal import _link

    begun(database)
    with database.read() as connection:
        (before,) = connection.exec_driver_sql("SELECT hash FROM events").one()
    payload = '{"kind":"emptied","version":9,"at":"2026-11-30T02:10:00+00:00","node":"gpu001"}'
    link = _link(before, ROLLOUT, 2, 1, payload)
    tamper(tmp_path, "INSERT INTO events VALUES (?, 2, 1, ?, ?)", (ROLLOUT, payload, link))
    tamper(tmp_path, "UPDATE rollouts SET length = 2, last_hash = ?", (link,))
    with pytest.raises(JournalDamaged, match="'emptied' has version 9, this program knows 1"):
        list(read_events(database, ROLLOUT))
    assert verify(database, ROLLOUT).broken_at == 2


def test_an_older_copy_of_the_whole_file_is_told_by_the_log(database: Database) -> None:
    begun(database, events=[intended(1)])
    assert verify(database, ROLLOUT, logged=2).broken_at is None
    chain = verify(database, ROLLOUT, logged=3)
    assert chain.broken_at == 3
    assert "the log knows of 3 events, the journal ends at 2" in chain.reason


# --- requests become events exactly once


def test_a_request_is_taken_when_its_event_is_in_the_journal_and_not_before(database: Database) -> None:
    journal = begun(database)
    asked = submit(database, ROLLOUT, Request("pause", "bob@ctl-1", why="lunch"), NOW)
    requests = Requests(database, journal.claim)
    assert requests.take() == (asked,)
    assert requests.take() == ()
    assert requests.pending() == (asked,)
    journal.append([Requested(NOW, asked)])
    assert requests.pending() == ()


def test_a_request_lost_between_poll_and_journal_is_given_to_the_next_controller(database: Database) -> None:
    journal = begun(database)
    asked = submit(database, ROLLOUT, Request("abort", "bob@ctl-1"), NOW)
    assert Requests(database, journal.claim).take() == (asked,)
    abandon(database, journal.claim)
    claim = acquire(database, "lab", ROLLOUT, NOW)
    assert Requests(database, claim).take() == (asked,)


def test_a_request_stays_pending_if_its_event_could_not_be_written(database: Database) -> None:
    journal = begun(database)
    asked = submit(database, ROLLOUT, Request("abort", "bob@ctl-1"), NOW)
    abandon(database, journal.claim)
    claim = acquire(database, "lab", ROLLOUT, NOW)
    with pytest.raises(Refused):
        journal.append([Requested(NOW, asked)])
    assert Requests(database, claim).pending() == (asked,)


# --- history


def test_history_tells_how_each_rollout_stands(database: Database, tmp_path: Path) -> None:
    begun(database, "r-20261130-c1", [Closed(NOW, "incomplete", "1 quarantined")])
    begun(database, "r-20261130-c2")
    begun(database, "r-20261130-c3")
    begun(database, "r-20261130-c4")
    tamper(tmp_path, "UPDATE events SET payload = 'x' WHERE rollout = 'r-20261130-c3'")
    entries = {entry.rollout: entry for entry in list_rollouts(database, "lab", NOW)}
    assert {name: entry.status for name, entry in entries.items()} == {
        "r-20261130-c1": "incomplete",
        "r-20261130-c2": "interrupted",
        "r-20261130-c3": "damaged",
        "r-20261130-c4": "running",
    }
    closed = entries["r-20261130-c1"]
    assert (closed.by, closed.reason, closed.node_count, closed.event_count) == ("alice@ctl-1", "1 quarantined", 2, 2)
    assert "not readable" in entries["r-20261130-c3"].reason


def test_history_is_of_one_site(database: Database) -> None:
    begun(database)
    assert list_rollouts(database, "other", NOW) == []


def test_a_closed_rollout_that_was_resumed_is_not_over(database: Database) -> None:
    journal = begun(database, events=[Closed(NOW, "stopped", "aborted")])
    assert list_rollouts(database, "lab", NOW)[0].status == "stopped"
    journal.append([Resumed(NOW, "a", 2)])
    assert list_rollouts(database, "lab", NOW)[0].status == "running"


def test_a_new_rollout_has_the_name_of_its_day_and_one_that_is_not_taken(database: Database) -> None:
    names = set()
    for _ in range(40):
        name = new_name(database, NOW)
        assert name.startswith("r-20261130-")
        assert name not in names
        names.add(name)
        begun(database, name)
    assert len({new_nonce() for _ in range(100)}) == 100


def test_a_name_that_is_taken_is_refused(database: Database) -> None:
    journal = begun(database)
    with pytest.raises(Refused, match="was opened before"):
        journal.append([opened(), intended(1)])
    assert verify(database, ROLLOUT).length == 1


def test_a_rollout_of_one_site_is_not_written_with_the_lock_of_another(database: Database) -> None:
    begun(database)
    with pytest.raises(Refused, match="is of site lab, not of other"):
        Journal(database, acquire(database, "other", ROLLOUT, NOW))
