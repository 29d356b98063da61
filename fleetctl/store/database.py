"""The database of the journal: SQLite in the site's state directory, or PostgreSQL by URL.

Every write is one transaction, on disk when it returns. What goes wrong becomes one clear line of fleetctl/errors.py.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from fleetctl.errors import BadInput, JournalDamaged, JournalFull, StoreError
from fleetctl.store import tables
from fleetctl.store.database_file import prepare_file

_PATIENCE_S = 10
"""How long a write waits for that of another process."""
_SCHEMA_LOCK = 7_305_804_402  # any number that no other program on the server uses


@dataclass(frozen=True, slots=True)
class Database:
    """Open by `open_database`; `name` is what messages call it, without a password."""

    name: str
    engine: sa.Engine

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction that writes: all or none, and durable on return."""
        with self._told(), self.engine.execution_options(begin="BEGIN IMMEDIATE").begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One transaction that reads: what it sees stays as it was at its first statement."""
        with self._told(), self.engine.connect() as connection:
            yield connection

    def damage(self) -> str:
        """What the database itself says is wrong with its structure; empty: nothing."""
        if self.engine.dialect.name != "sqlite":
            return ""
        try:
            with self.read() as connection:
                answers = connection.exec_driver_sql("PRAGMA quick_check(3)").scalars().all()
        except JournalDamaged as error:
            return str(error)
        return "" if answers == ["ok"] else f"{self.name}: {'; '.join(map(str, answers))}"

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            raise _translated(error, self.name) from error
        except UnicodeDecodeError as error:  # SQLite quotes what it does not understand
            raise _damaged(self.name, str(error)) from error


def default_url(state_directory: Path) -> str:
    """The journal of a site whose fleet.yml names none."""
    return sa.URL.create("sqlite", database=str(state_directory / "journal.db")).render_as_string()


def open_database(url: str, group: str | None = None) -> Database:
    """Open the journal's database, made if need be; `group` may read and write a SQLite file as well."""
    try:
        parsed = sa.make_url(url)
        name = parsed.render_as_string(hide_password=True)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise BadInput(f"state_url {name}: use sqlite:////path/journal.db or postgresql+psycopg://host/database")
        if parsed.get_backend_name() == "sqlite":
            return _open_file(parsed, group)
        engine = sa.create_engine(parsed, hide_parameters=True)
    except (NoSuchModuleError, ModuleNotFoundError) as error:
        raise BadInput(f"state_url {name}: its driver is not installed ({error})") from None
    except ArgumentError:
        raise BadInput("state_url is not a database URL: like sqlite:////var/lib/fleetctl/site/journal.db") from None
    sa.event.listen(engine, "connect", _set_up_postgresql)
    database = Database(name, engine)
    with database.write() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
        if not sa.inspect(connection).has_table(tables.schema.name):
            _lay_down(connection)
    _check_schema(database)
    return database


def _open_file(url: sa.URL, group: str | None) -> Database:
    if not url.database or url.database == ":memory:" or url.query:
        raise BadInput("state_url: the journal needs a plain file: like sqlite:////var/lib/fleetctl/site/journal.db")
    path = Path(url.database)
    prepare_file(path, group, _lay_down_file)
    database = Database(str(path), _sqlite_engine(path))
    _check_schema(database)
    return database


def _lay_down_file(path: Path) -> None:
    database = Database(str(path), _sqlite_engine(path))
    with database.write() as connection:
        _lay_down(connection)
    database.close()


def _lay_down(connection: sa.Connection) -> None:
    tables.metadata.create_all(connection)
    connection.execute(tables.schema.insert().values(version=tables.SCHEMA))


def _check_schema(database: Database) -> None:
    with database.read() as connection:
        if not sa.inspect(connection).has_table(tables.schema.name):
            raise JournalDamaged(f"{database.name} is not a journal of fleetctl: set state_url to another place")
        found = connection.execute(sa.select(tables.schema.c.version)).scalar()
    if found != tables.SCHEMA:
        raise JournalDamaged(
            f"{database.name} has schema {found}, this program knows {tables.SCHEMA}: use the fleetctl that wrote it"
        )


def _sqlite_engine(path: Path) -> sa.Engine:
    url = sa.URL.create("sqlite", database=str(path))
    engine = sa.create_engine(url, hide_parameters=True, connect_args={"timeout": _PATIENCE_S})
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin a transaction only at the first write, and let each read see another state.
    connection.isolation_level = None
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"the journal's file can't be in WAL mode (it is in {mode}): end what else has it open")
    # Not left to the build: with NORMAL (SQLITE_DEFAULT_WAL_SYNCHRONOUS) a power cut takes the last events.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and writes then is refused, not kept waiting, when another wrote in between:
    # writers take the write lock at once.
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


def _set_up_postgresql(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("SET synchronous_commit TO on")
    cursor.execute(f"SET lock_timeout TO '{_PATIENCE_S}s'")
    cursor.close()
    connection.commit()


def _translated(error: DBAPIError, name: str) -> StoreError:
    """The driver's error as one of ours: what it means for the rollout, and the next step."""
    said = str(error.orig)
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None) or ""
    code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF  # the low byte is the primary result code
    if code == sqlite3.SQLITE_FULL or state in ("53100", "53000") or (code in _MAYBE_FULL and _is_full(name)):
        return JournalFull(f"{name}: no room to write ({said}): make room, then `fleetctl rollout resume`")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "Could not decode" in said:
        return _damaged(name, said)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state == "55P03":
        return StoreError(f"{name}: another process kept it locked for {_PATIENCE_S} s ({said}): end that process")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return StoreError(f"{name} can't be written ({said}): check the modes of the file and its directory")
    return StoreError(f"{name}: {' '.join(said.split())}")


def _damaged(name: str, said: str) -> JournalDamaged:
    return JournalDamaged(f"{name} is damaged ({said}): restore it; `fleetctl status` finds our nodes without it")


_MAYBE_FULL = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


def _is_full(name: str) -> bool:
    try:
        room = os.statvfs(Path(name).parent)
    except OSError:
        return False
    return room.f_bavail == 0 or (room.f_files > 0 and room.f_favail == 0)
