"""The journal: the events of a rollout, append-only, each chained by its hash to the one before it.

The chain tells of every event that was changed, moved, added or lost. What it can't tell is that the whole file is an
older copy, or one without the -wal that lay beside it: the rollout's log tells that, it counts too (see `verify`).
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
            self.length = self._end(connection)[0]
            """How many events the journal holds, which is the number of the last one."""

    def append(self, events: Sequence[Event]) -> None:
        """Durable on return, in order, all or none. Refused, and nothing written, once the claim is not ours."""
        if not events:
            return
        payloads = [encode(event) for event in events]
        rollout, epoch = self.claim.rollout, self.claim.epoch
        with self._database.write() as connection:
            require(connection, self.claim)
            seq, last_hash = self._end(connection)
            if seq == 0 or isinstance(events[0], Opened):
                self._open(connection, events[0], is_new=seq == 0)
            rows = []
            for payload in payloads:
                seq += 1
                last_hash = _link(last_hash, rollout, seq, epoch, payload)
                rows.append({"rollout": rollout, "seq": seq, "epoch": epoch, "payload": payload, "hash": last_hash})
            connection.execute(tables.events.insert(), rows)
            ours = sa.update(tables.rollouts).where(tables.rollouts.c.name == rollout)
            connection.execute(ours.values(length=seq, last_hash=last_hash))
            _mark_taken(connection, events)
        self.length = seq

    def _end(self, connection: sa.Connection) -> tuple[int, str]:
        """Number and hash of the last event."""
        row = _find(connection, self.claim.rollout)
        if row is None:
            return 0, _BEGINNING
        if row.site != self.claim.site:
            raise Refused(f"rollout {self.claim.rollout} is of site {row.site}, not of {self.claim.site}")
        return row.length, row.last_hash

    def _open(self, connection: sa.Connection, first: Event, *, is_new: bool) -> None:
        if not isinstance(first, Opened) or (first.rollout, first.site) != (self.claim.rollout, self.claim.site):
            raise ValueError(f"the journal of {self.claim.rollout} begins with its Opened, not with {first}")
        if not is_new:
            raise Refused(f"rollout {first.rollout} was opened before: take another name")
        row = {"name": first.rollout, "site": first.site, "length": 0, "last_hash": _BEGINNING}
        connection.execute(tables.rollouts.insert(), row)


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
    end = _find(connection, rollout)
    if end is None:
        raise SelectionError(f"there is no rollout {rollout}: see `fleetctl rollout history`")
    query = sa.select(tables.events).where(tables.events.c.rollout == rollout).order_by(tables.events.c.seq)
    seq, last_hash = 0, _BEGINNING
    for row in connection.execution_options(yield_per=_CHUNK).execute(query):
        seq += 1
        if row.seq != seq:
            yield seq, f"event {seq} is missing"
            return
        last_hash = _link(last_hash, rollout, seq, row.epoch, row.payload)
        if row.hash != last_hash:
            yield seq, "it is not what was written, or does not follow from the one before it"
            return
        yield seq, (row.payload, last_hash)
    if (seq, last_hash) != (end.length, end.last_hash):
        yield seq + 1, f"the journal has {end.length} events, {seq} are there"


def _link(before: str, rollout: str, seq: int, epoch: int, payload: str) -> str:
    return hashlib.sha256(f"{before}\n{rollout}\n{seq}\n{epoch}\n{payload}".encode("utf-8", "replace")).hexdigest()


def _find(connection: sa.Connection, rollout: str) -> Any:
    """The row of a rollout: site, length, last_hash; None: there is none."""
    return connection.execute(sa.select(tables.rollouts).where(tables.rollouts.c.name == rollout)).one_or_none()


def _mark_taken(connection: sa.Connection, events: Sequence[Event]) -> None:
    """A request is taken in the transaction that makes it an event: never lost between the two, never taken twice."""
    taken = [(event.request.id, time_to_text(event.at)) for event in events if isinstance(event, Requested)]
    for number, at in taken:
        query = sa.update(tables.requests).where(tables.requests.c.id == number)
        connection.execute(query.values(taken_at=at))
