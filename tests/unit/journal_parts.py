"""What the tests of the journal share: a database in a directory, and a rollout in it."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleetctl.model.rollout import Act, Event, Intended, Intent, Opened
from fleetctl.store.database import Database, default_url, open_database
from fleetctl.store.journal import Journal
from fleetctl.store.lock import Claim, acquire
from fleetctl.store.tables import locks

NOW = datetime(2026, 11, 30, 2, 10, tzinfo=UTC)
ROLLOUT = "r-20261130-a7"


def database_in(directory: Path) -> Database:
    return open_database(default_url(directory))


def opened(rollout: str = ROLLOUT, site: str = "lab", nodes: Sequence[str] = ("gpu001", "gpu002")) -> Opened:
    return Opened(NOW, rollout, site, ("driver",), tuple(nodes), "alice@ctl-1", "alice@ctl-1:1", "5f0c93d1")


def intended(number: int, node: str = "gpu001") -> Intended:
    return Intended(NOW, Intent(number, node, Act.CHECK))


def begun(database: Database, rollout: str = ROLLOUT, events: Sequence[Event] = (), now: datetime = NOW) -> Journal:
    """The journal of a rollout that this process runs."""
    journal = Journal(database, acquire(database, "lab", rollout, now, force=True))
    journal.append([opened(rollout), *events])
    return journal


def abandon(database: Database, claim: Claim) -> Claim:
    """Make the lock look as if its controller died: its process id was given to another."""
    dead = dataclasses.replace(claim.controller, started_ticks=claim.controller.started_ticks - 1)
    with database.write() as connection:
        connection.execute(locks.update().values(started_ticks=dead.started_ticks))
    return dataclasses.replace(claim, controller=dead)


def tamper(directory: Path, statement: str, values: Sequence[Any] = ()) -> None:
    """Change the file behind the program's back."""
    connection = sqlite3.connect(directory / "journal.db")
    connection.execute(statement, values)
    connection.commit()
    connection.close()
