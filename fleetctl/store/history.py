"""What rollouts there were, and how each stands, from the first and the last event of each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import sqlalchemy as sa

from fleetctl.errors import JournalDamaged
from fleetctl.model.rollout import Closed, Event, Opened
from fleetctl.store import tables
from fleetctl.store.codec import decode
from fleetctl.store.database import Database
from fleetctl.store.lock import holder_of


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of `rollout history`.

    running      a controller lives that has it
    interrupted  it is not over, and nobody runs it: `rollout resume` goes on
    damaged      its first or last event can't be read; `reason` says why
    """

    rollout: str
    status: Literal["running", "interrupted", "complete", "incomplete", "stopped", "damaged"]
    opened_at: datetime | None = None
    last_at: datetime | None = None
    by: str = ""
    components: tuple[str, ...] = ()
    node_count: int = 0
    event_count: int = 0
    summary: str = ""
    reason: str = ""


def list_rollouts(database: Database, site: str, now: datetime) -> list[Entry]:
    """Every rollout of a site, the newest last."""
    holder = holder_of(database, site, now)
    running = holder.claim.rollout if holder is not None and holder.is_live else ""
    with database.read() as connection:
        rows = connection.execute(sa.select(tables.rollouts).where(tables.rollouts.c.site == site)).all()
        entries = [_entry(connection, row.name, row.length, is_running=row.name == running) for row in rows]
    return sorted(entries, key=lambda entry: (entry.opened_at is not None, entry.opened_at, entry.rollout))


def _entry(connection: sa.Connection, rollout: str, event_count: int, *, is_running: bool) -> Entry:
    columns = tables.events.c
    query = sa.select(columns.payload).where(columns.rollout == rollout)
    try:
        first = _event(connection.execute(query.where(columns.seq == 1)).scalar())
        last = _event(connection.execute(query.where(columns.seq == event_count)).scalar())
        if not isinstance(first, Opened):
            raise JournalDamaged("it does not begin with its opening")
    except JournalDamaged as error:
        return Entry(rollout, "damaged", reason=str(error))
    status: Literal["running", "interrupted", "complete", "incomplete", "stopped"]
    status = last.status if isinstance(last, Closed) else "running" if is_running else "interrupted"
    return Entry(
        rollout,
        status,
        first.at,
        last.at,
        first.by,
        first.components,
        len(first.nodes),
        event_count,
        first.summary,
        last.reason if isinstance(last, Closed) else "",
    )


def _event(payload: str | None) -> Event:
    if payload is None:
        raise JournalDamaged("its first or last event is missing")
    return decode(payload)
