"""The journal's file: who may read it, what stands in it after trouble, and that trouble is one clear line."""

from __future__ import annotations

import grp
import os
import random
import shutil
import sqlite3
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetctl.errors import BadInput, FleetctlError, JournalDamaged, JournalFull, StoreError
from fleetctl.model.rollout import Event
from fleetctl.store import database as database_module
from fleetctl.store.database import default_url, open_database
from fleetctl.store.database_file import filesystem_of, prepare_file
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.lock import acquire, heartbeat
from tests.unit.journal_parts import NOW, ROLLOUT, begun, database_in, intended, opened, tamper


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


# --- modes


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_the_file_and_what_lies_beside_it_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        begun(database_in(tmp_path))
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"journal.db": 0o600, "journal.db-wal": 0o600, "journal.db-shm": 0o600}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_a_state_group_shares_the_file_with_its_members_only(tmp_path: Path, umask: int) -> None:
    group = a_group()
    os.chown(tmp_path, -1, group.gr_gid)
    tmp_path.chmod(0o2770)
    before = os.umask(umask)
    try:
        begun(open_database(default_url(tmp_path), group.gr_name))
    finally:
        os.umask(before)
    assert modes(tmp_path) == {"journal.db": 0o660, "journal.db-wal": 0o660, "journal.db-shm": 0o660}
    assert {path.stat().st_gid for path in tmp_path.iterdir()} == {group.gr_gid}


def test_a_state_group_needs_a_directory_that_gives_it_its_files(tmp_path: Path) -> None:
    group = a_group()
    tmp_path.chmod(0o700)
    with pytest.raises(BadInput, match=f"chgrp {group.gr_name} .* && chmod 2770"):
        open_database(default_url(tmp_path), group.gr_name)
    assert modes(tmp_path) == {}


def test_an_unknown_state_group_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="state_group no-such-group is not a group"):
        open_database(default_url(tmp_path), "no-such-group")


def test_a_file_that_everybody_may_read_is_refused_with_the_command_that_closes_it(tmp_path: Path) -> None:
    database_in(tmp_path).close()
    path = tmp_path / "journal.db"
    path.chmod(0o644)
    with pytest.raises(StoreError, match=f"chmod o= {path}"):
        database_in(tmp_path)


# --- durability


def test_every_connection_writes_ahead_waits_for_the_disk_and_checks_foreign_keys(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    with database.read() as first, database.write() as second:
        for connection in (first, second):
            values = [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
            assert values == ["wal", 2, 1, 10_000]


def test_an_event_without_its_rollout_is_refused(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    with pytest.raises(StoreError, match="FOREIGN KEY"), database.write() as connection:
        connection.exec_driver_sql("INSERT INTO events VALUES ('r-none', 1, 1, '', '')")


# --- no room


def test_a_full_disk_is_said_and_leaves_the_journal_whole(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    journal = begun(database)
    with database.write() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

    def append_until_it_is_full() -> None:
        for number in range(1000):
            journal.append([intended(number)])

    with pytest.raises(JournalFull, match=r"no room to write .* make room, then `fleetctl rollout resume`"):
        append_until_it_is_full()
    chain = verify(database, ROLLOUT)
    assert (chain.broken_at, chain.length) == (None, journal.length)


# --- damage


def test_an_empty_file_is_damage_and_not_a_beginning(tmp_path: Path) -> None:
    closed_journal(tmp_path, [intended(1)]).write_bytes(b"")
    with pytest.raises(JournalDamaged, match="is empty, so it was cut off"):
        database_in(tmp_path)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_a_file_that_was_cut_off_is_never_half_read(tmp_path: Path, share: float) -> None:
    path = closed_journal(tmp_path, [intended(number) for number in range(500)])
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(JournalDamaged):
        list(read_events(database_in(tmp_path), ROLLOUT))


def test_a_file_with_any_byte_changed_is_refused_or_still_says_the_same(tmp_path: Path) -> None:
    """Seeded, 150 places: each read gives every event as it was written, or an error of ours; never others or fewer."""
    rest = [intended(number) for number in range(60)]
    path = closed_journal(tmp_path, rest)
    whole = path.read_bytes()
    dice, refused = random.Random(20261130), 0
    for _ in range(150):
        place = dice.randrange(len(whole))
        changed = bytearray(whole)
        changed[place] ^= 1 << dice.randrange(8)
        path.write_bytes(changed)
        try:
            database = database_in(tmp_path)
            try:
                assert list(read_events(database, ROLLOUT)) == [opened(), *rest], f"byte {place}"
            finally:
                database.close()
        except FleetctlError:
            refused += 1
    assert refused > 20


def test_another_programs_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_text("# notes of the day\n" * 400)
    (tmp_path / "journal.db").chmod(0o600)
    with pytest.raises(JournalDamaged, match="file is not a database"):
        database_in(tmp_path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.db") as connection:
        connection.execute("CREATE TABLE cookies (name TEXT)")
    (tmp_path / "journal.db").chmod(0o600)
    with pytest.raises(JournalDamaged, match="is not a journal of fleetctl"):
        database_in(tmp_path)


def test_a_newer_schema_is_refused_naming_both(tmp_path: Path) -> None:
    database_in(tmp_path).close()
    tamper(tmp_path, "UPDATE schema_version SET version = 9")
    with pytest.raises(JournalDamaged, match="has schema 9, this program knows 1"):
        database_in(tmp_path)


def test_a_copy_with_its_log_ahead_is_whole_and_one_without_is_told_by_the_rollouts_log(tmp_path: Path) -> None:
    closed_journal(tmp_path, [])
    database = database_in(tmp_path)
    journal = Journal(database, acquire(database, "lab", ROLLOUT, NOW, force=True))
    journal.append([intended(1), intended(2)])
    for name, ends in {"whole": ("", "-wal"), "torn": ("",)}.items():
        (tmp_path / name).mkdir()
        for end in ends:
            shutil.copy(tmp_path / f"journal.db{end}", tmp_path / name / f"journal.db{end}")
    assert verify(database_in(tmp_path / "whole"), ROLLOUT, logged=3).broken_at is None
    assert verify(database_in(tmp_path / "torn"), ROLLOUT, logged=3).broken_at == 2


# --- where it may lie


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "needs a plain file"),
        ("sqlite:///:memory:", "needs a plain file"),
        ("sqlite:////tmp/x.db?mode=ro", "needs a plain file"),
        ("sqlite:///journal.db", "is not absolute"),
        ("sqlite:////no/such/place/journal.db", "/no/such/place is not a directory: create it"),
        ("mysql://u:hunter2@h/d", "mysql://u:\\*\\*\\*@h/d: use sqlite:////path/journal.db or postgresql"),
        ("postgresql+nodriver://u:hunter2@h/d", "u:\\*\\*\\*@h/d: its driver is not installed"),
        ("journal.db", "is not a database URL"),
    ],
)
def test_a_state_url_that_can_not_hold_a_journal_is_bad_input(url: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as refusal:
        open_database(url)
    assert "hunter2" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_type_of_a_filesystem_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert filesystem_of(Path("/proc")) == "proc"
    device = tmp_path.stat().st_dev
    listing = tmp_path / "mountinfo"
    listing.write_text(
        "22 1 0:1 / / rw - ext4 /dev/sda1 rw\n"
        f"36 22 {os.major(device)}:{os.minor(device)} / /home rw,noatime shared:1 master:2 - nfs4 filer:/home rw\n"
    )
    assert filesystem_of(tmp_path, listing) == "nfs4"


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.sshfs", "fuse.ceph-fuse"])
def test_a_network_filesystem_is_refused_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("fleetctl.store.database_file.filesystem_of", lambda _: kind)
    with pytest.raises(StoreError, match=f"lies on {kind}, .*set state_url to a file on a local disk"):
        database_in(tmp_path)
    assert modes(tmp_path) == {}


# --- others at work


def test_a_write_that_another_process_blocks_is_said_and_passes_once_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "_PATIENCE_S", 0.2)
    journal = begun(database_in(tmp_path))
    other = sqlite3.connect(tmp_path / "journal.db")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process kept it locked"):
        journal.append([intended(1)])
    other.rollback()
    journal.append([intended(2)])
    assert list(read_events(database_in(tmp_path), ROLLOUT)) == [opened(), intended(2)]


def test_writers_that_read_first_wait_for_each_other(tmp_path: Path) -> None:
    """The loop appends while another thread shows the heartbeat: neither is refused because the other wrote."""
    database = database_in(tmp_path)
    journal = begun(database)

    def beat() -> None:
        for _ in range(60):
            heartbeat(database, journal.claim, NOW)

    with ThreadPoolExecutor() as threads:
        beats = threads.submit(beat)
        for number in range(60):
            journal.append([intended(number)])
        beats.result()
    assert verify(database, ROLLOUT).length == 61


def test_a_reader_sees_one_state_while_others_write(tmp_path: Path) -> None:
    database = database_in(tmp_path)
    journal = begun(database, events=[intended(1)])
    events = read_events(database, ROLLOUT)
    assert next(events) == opened()
    journal.append([intended(2)])
    assert list(events) == [intended(1)]


def test_whoever_lays_the_file_down_second_uses_the_first(tmp_path: Path) -> None:
    def overtaken(draft: Path) -> None:
        draft.write_bytes(b"mine")
        (tmp_path / "journal.db").write_bytes(b"theirs")
        (tmp_path / "journal.db").chmod(0o600)

    prepare_file(tmp_path / "journal.db", None, overtaken)
    assert (tmp_path / "journal.db").read_bytes() == b"theirs"
    assert modes(tmp_path) == {"journal.db": 0o600}


def test_a_laying_down_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(_draft: Path) -> None:
        raise JournalFull("no room")

    with pytest.raises(JournalFull):
        prepare_file(tmp_path / "journal.db", None, fail)
    assert modes(tmp_path) == {}


def a_group() -> grp.struct_group:
    """A group that is not our own and that we may give files to."""
    mine = os.getgid()
    allowed = [grp.getgrall()[-1]] if os.getuid() == 0 else [grp.getgrgid(gid) for gid in os.getgroups()]
    others = [group for group in allowed if group.gr_gid != mine]
    if not others:
        pytest.skip("this user is in one group only: nothing to share with")
    return others[0]


def closed_journal(directory: Path, events: Sequence[Event]) -> Path:
    """The file after its program ended: everything is in it, nothing lies beside it."""
    database = database_in(directory)
    begun(database, events=events)
    database.close()
    assert modes(directory) == {"journal.db": 0o600}
    return directory / "journal.db"
