"""The journal: the events of a rollout, append-only, each chained by its hash to the one before it.

The chain tells of every event that was changed, moved, lost in the middle or added by others. A journal cut off at
its end is still a chain: what tells of that is the rollout's log, which counts the events as well (see `verify`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fleetctl.errors import JournalDamaged, Refused, SelectionError
from fleetctl.model.rollout import Event, Opened, Requested
from fleetctl.store import tables
from fleetctl.store.codec import decode, encode, time_to_text
from fleetctl.store.database import Database
from fleetctl.store.lock import Claim, require

_BEGINNING = "0" * 64
_CHUNK = 500


class Journal:
    """Implements ports.Journal for the rollout of one claim."""

    def __init__(self, database: Database, claim: Claim) -> None:
        self.claim = claim
        self._database = database
        with database.read() as connection:
            site = connection.execute(_site_of(claim.rollout)).scalar()
            if site is not None and site != claim.site:
                raise Refused(f"rollout {claim.rollout} is of site {site}, not of {claim.site}")
            self.length = _head(connection, claim.rollout)[0]
            """How many events the journal holds; the last one's number."""

    def append(self, events: Sequence[Event]) -> None:
        """Durable on return, in order, all or none. Refused, and nothing written, once the claim is not ours."""
        if not events:
            return
        payloads = [encode(event) for event in events]
        with self._database.write() as connection:
            require(connection, self.claim)
            length, last_hash = _head(connection, self.claim.rollout)
            if length == 0 or isinstance(events[0], Opened):
                self._begin(connection, events[0])
            rows = []
            for seq, payload in enumerate(payloads, length + 1):
                last_hash = _link(last_hash, self.claim.rollout, seq, self.claim.epoch, payload)
                rows.append(
                    {
                        "rollout": self.claim.rollout,
                        "seq": seq,
                        "epoch": self.claim.epoch,
                        "payload": payload,
                        "hash": last_hash,
                    }
                )
            connection.execute(tables.events.insert(), rows)
            _mark_taken(connection, events)
        self.length = length + len(events)

    def _begin(self, connection: sa.Connection, first: Event) -> None:
        if not isinstance(first, Opened) or (first.rollout, first.site) != (self.claim.rollout, self.claim.site):
            raise ValueError(f"the journal of {self.claim.rollout} begins with its Opened, not with {first}")
        if connection.execute(_site_of(first.rollout)).first() is not None:
            raise Refused(f"rollout {first.rollout} was opened before: take another name")
        connection.execute(tables.rollouts.insert().values(name=first.rollout, site=first.site))


@dataclass(frozen=True, slots=True)
class Chain:
    """What a recomputation of a rollout's chain found; `broken_at` is the first event that can't be trusted."""

    rollout: str
    length: int
    last_hash: str
    broken_at: int | None = None
    reason: str = ""


def read_events(database: Database, rollout: str) -> Iterator[Event]:
    """Every event in order, checked as it is read; JournalDamaged where the chain breaks."""
    with database.read() as connection:
        _find(connection, rollout)
        for seq, item in _walk(connection, rollout):
            if isinstance(item, str):
                raise JournalDamaged(
                    f"{database.name}: the journal of {rollout} can't be trusted from event {seq} on ({item}): restore"
                    " it; `fleetctl status` finds our nodes without it"
                )
            yield decode(item[0])


def verify(database: Database, rollout: str, logged: int = 0) -> Chain:
    """Recompute the chain. `logged` is the last number in the rollout's log: fewer events are a journal cut off."""
    length, last_hash = 0, _BEGINNING
    try:
        with database.read() as connection:
            _find(connection, rollout)
            for seq, item in _walk(connection, rollout):
                if isinstance(item, str):
                    return Chain(rollout, length, last_hash, seq, item)
                decode(item[0])
                length, last_hash = seq, item[1]
        reason = database.damage()
    except JournalDamaged as error:
        reason = str(error)
    if not reason and length < logged:
        reason = f"the log knows of {logged} events, the journal ends at {length}: an older or incomplete copy"
    return Chain(rollout, length, last_hash, length + 1 if reason else None, reason)


def _walk(connection: sa.Connection, rollout: str) -> Iterator[tuple[int, tuple[str, str] | str]]:
    """(number, (payload, hash)) of every event; (number, reason) for the first that breaks the chain, and no more."""
    query = sa.select(tables.events).where(tables.events.c.rollout == rollout).order_by(tables.events.c.seq)
    length, last_hash = 0, _BEGINNING
    for row in connection.execution_options(yield_per=_CHUNK).execute(query):
        length += 1
        if row.seq != length:
            yield length, f"event {length} is missing"
            return
        if row.hash != (link := _link(last_hash, rollout, row.seq, row.epoch, row.payload)):
            yield length, "it is not what was written, or does not follow from the one before it"
            return
        last_hash = link
        yield length, (row.payload, link)
    if length == 0:
        yield 1, "event 1 is missing"


def _link(before: str, rollout: str, seq: int, epoch: int, payload: str) -> str:
    return hashlib.sha256(f"{before}\n{rollout}\n{seq}\n{epoch}\n{payload}".encode("utf-8", "replace")).hexdigest()


def _head(connection: sa.Connection, rollout: str) -> tuple[int, str]:
    """Number and hash of the last event."""
    columns = tables.events.c
    query = sa.select(columns.seq, columns.hash).where(columns.rollout == rollout).order_by(columns.seq.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return (0, _BEGINNING) if row is None else (row.seq, row.hash)


def _site_of(rollout: str) -> sa.Select[Any]:
    return sa.select(tables.rollouts.c.site).where(tables.rollouts.c.name == rollout)


def _find(connection: sa.Connection, rollout: str) -> None:
    if connection.execute(_site_of(rollout)).first() is None:
        raise SelectionError(f"there is no rollout {rollout}: see `fleetctl rollout history`")


def _mark_taken(connection: sa.Connection, events: Sequence[Event]) -> None:
    """A request is taken in the transaction that makes it an event: never lost between the two, never taken twice."""
    taken = [(event.request.id, time_to_text(event.at)) for event in events if isinstance(event, Requested)]
    for number, at in taken:
        query = sa.update(tables.requests).where(tables.requests.c.id == number)
        connection.execute(query.values(taken_at=at))
