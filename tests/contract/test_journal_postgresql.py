"""The same journal on a real PostgreSQL server, which this test starts for itself."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy

from fleetctl.errors import FleetctlError, JournalDamaged, Refused, StoreError
from fleetctl.model.rollout import Request, Requested, Resumed
from fleetctl.store.database import Database, open_database
from fleetctl.store.history import list_rollouts
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.lock import acquire, heartbeat
from fleetctl.store.requests import Requests, submit
from tests.unit.journal_parts import NOW, ROLLOUT, abandon, begun, intended, opened

pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A URL prefix: a server in a directory of its own, reached by its socket only."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or sorted(Path("/usr/bin").glob("initdb"))
    if not programs:
        pytest.skip("no PostgreSQL server is installed (initdb)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed")
    account = pwd.getpwnam("postgres") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    # A short path: a socket's address has room for about a hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    os.chown(directory, account.pw_uid, account.pw_gid)
    data = directory / "data"

    def run(program: str, *arguments: str) -> None:
        argv = [str(programs[-1].with_name(program)), *arguments]
        user = account.pw_uid if os.getuid() == 0 else None
        # Not a pipe: the server would keep it open.
        with (directory / "output").open("ab") as output:
            subprocess.run(argv, user=user, cwd=directory, check=True, stdout=output, stderr=output)

    run("initdb", "-D", str(data), "-A", "trust", "-U", "fleet", "--no-sync")
    run("pg_ctl", "-D", str(data), "-w", "-o", f"-k {directory} -h ''", "-l", str(directory / "log"), "start")
    try:
        yield f"postgresql+psycopg://fleet@/{{}}?host={directory}"
    finally:
        run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(directory)


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    name = f"t{zlib.crc32(request.node.name.encode())}"
    engine = sqlalchemy.create_engine(server.format("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    engine.dispose()
    database = open_database(server.format(name))
    yield database
    database.close()


def again(database: Database) -> Database:
    """The same database, opened by another program."""
    return open_database(database.engine.url.render_as_string(hide_password=False))


def test_events_come_back_from_another_connection_and_the_chain_holds(database: Database) -> None:
    journal = begun(database)
    journal.append([intended(1), intended(2)])
    assert list(read_events(again(database), ROLLOUT)) == [opened(), intended(1), intended(2)]
    assert (verify(database, ROLLOUT).length, verify(database, ROLLOUT).broken_at) == (3, None)
    assert [entry.status for entry in list_rollouts(database, "lab", NOW)] == ["running"]


def test_a_change_behind_the_programs_back_is_found(database: Database) -> None:
    begun(database, events=[intended(1)])
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE events SET payload = replace(payload, 'gpu001', 'gpu009') WHERE seq = 2")
    assert verify(database, ROLLOUT).broken_at == 2
    with pytest.raises(JournalDamaged):
        list(read_events(database, ROLLOUT))


def test_a_controller_that_was_followed_writes_nothing(database: Database) -> None:
    old = begun(database)
    abandon(database, old.claim)
    new = Journal(database, acquire(database, "lab", ROLLOUT, NOW))
    with pytest.raises(Refused, match="taken over"):
        old.append([intended(1)])
    new.append([Resumed(NOW, "b", 2)])
    assert list(read_events(database, ROLLOUT)) == [opened(), Resumed(NOW, "b", 2)]


def test_of_many_at_once_exactly_one_gets_the_lock(database: Database) -> None:
    def attempt(_: int) -> int | str:
        try:
            return acquire(again(database), "lab", ROLLOUT, NOW).epoch
        except FleetctlError as error:
            return str(error)

    for epoch in (1, 2, 3):
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(attempt, range(8)))
        assert [answer for answer in answers if isinstance(answer, int)] == [epoch]
        assert all("is run by" in str(answer) for answer in answers if answer != epoch)
        with database.write() as connection:
            connection.exec_driver_sql("UPDATE locks SET rollout = ''")


def test_the_heartbeat_and_the_loop_wait_for_each_other(database: Database) -> None:
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


def test_requests_are_taken_once(database: Database) -> None:
    journal = begun(database)
    asked = submit(database, ROLLOUT, Request("retry", "bob", ("gpu001",)), NOW)
    requests = Requests(database, journal.claim)
    assert requests.take() == (asked,)
    journal.append([Requested(NOW, asked)])
    assert requests.pending() == ()


def test_a_server_that_is_gone_is_one_clear_line_without_the_password(server: str) -> None:
    url = server.format("none").replace("fleet@", "fleet:hunter2@")
    with pytest.raises(StoreError) as error:
        open_database(url)
    assert 'database "none" does not exist' in str(error.value)
    assert "\n" not in str(error.value)
    assert "hunter2" not in str(error.value)
