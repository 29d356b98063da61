"""What people and other processes ask of a rollout: rows that they write, and that its controller's loop polls.

With a live controller every verb is taken. Without one, stop, abort, retry and skip stay and are taken by the next
resume; pause, resume and leave speak to a live controller and mean nothing without it, so they are refused, and die
with the controller they were meant for. Of a rollout that is closed only retry makes sense: the next resume takes it.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import get_args

import sqlalchemy as sa

from fleetctl.errors import BadInput, JournalDamaged, Refused, SelectionError
from fleetctl.model.rollout import Closed, Event, Opened, Request, Verb
from fleetctl.store import tables
from fleetctl.store.codec import decode, time_to_text
from fleetctl.store.database import Database
from fleetctl.store.lock import Claim, holder_of

VERBS: tuple[Verb, ...] = get_args(Verb)
ON_NODES: frozenset[Verb] = frozenset(("retry", "skip", "release"))
"""Verbs that name nodes; the others concern the whole rollout."""
TO_THE_LIVING: frozenset[Verb] = frozenset(("pause", "resume", "leave"))


def submit(database: Database, rollout: str, request: Request, now: datetime) -> Request:
    """Ask something of a rollout; the request with its number. Refused here, not later, if it can't be followed."""
    _check_words(request)
    opened, last = _ends(database, rollout)
    unknown = sorted(set(request.nodes) - set(opened.nodes))
    if unknown:
        raise SelectionError(f"rollout {rollout} has no node {', '.join(unknown[:5])}: see `fleetctl rollout show`")
    holder = holder_of(database, opened.site, now)
    epoch = holder.claim.epoch if holder is not None and holder.is_live and holder.claim.rollout == rollout else 0
    if not epoch and isinstance(last, Closed) and request.verb != "retry":
        raise Refused(f"rollout {rollout} is over ({last.status}): there is nothing to {request.verb}")
    if not epoch and request.verb in TO_THE_LIVING:
        raise Refused(f"rollout {rollout} is run by nobody: `fleetctl rollout resume {rollout}` takes it up")
    with database.write() as connection:
        row = connection.execute(
            tables.requests.insert().values(
                rollout=rollout,
                verb=request.verb,
                nodes=json.dumps(request.nodes),
                by=request.by,
                why=request.why,
                at=time_to_text(now),
                epoch=epoch,
            )
        )
        number = row.inserted_primary_key
        if number is None:
            raise RuntimeError("the database gave the request no number")
    return Request(request.verb, request.by, request.nodes, request.why, number[0])


class Requests:
    """The controller's side of one rollout's requests."""

    def __init__(self, database: Database, claim: Claim) -> None:
        self._database = database
        self._claim = claim
        self._handed_out = 0

    def pending(self) -> tuple[Request, ...]:
        """Requests that no event has come of yet, oldest first."""
        columns = tables.requests.c
        query = sa.select(tables.requests).where(columns.rollout == self._claim.rollout, columns.taken_at.is_(None))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(columns.id)).all()
        return tuple(
            Request(row.verb, row.by, tuple(json.loads(row.nodes)), row.why, row.id)
            for row in rows
            if row.verb not in TO_THE_LIVING or row.epoch == self._claim.epoch
        )

    def take(self) -> tuple[Request, ...]:
        """Those that this controller was not given before.

        A request counts as taken when its Requested is in the journal (Journal.append does both in one transaction):
        one handed out and then lost in a crash is handed out again by the next controller.
        """
        fresh = tuple(request for request in self.pending() if request.id > self._handed_out)
        if fresh:
            self._handed_out = fresh[-1].id
        return fresh


def _check_words(request: Request) -> None:
    if request.verb not in VERBS:
        raise BadInput(f"a rollout knows no verb {request.verb!r}: it knows {', '.join(VERBS)}")
    if request.verb in ON_NODES and not request.nodes:
        raise SelectionError(f"{request.verb} needs the names of nodes")
    if request.verb not in ON_NODES and request.nodes:
        raise BadInput(f"{request.verb} concerns the whole rollout: leave the nodes out")


def _ends(database: Database, rollout: str) -> tuple[Opened, Event]:
    """The first and the last event of a rollout."""
    columns = tables.events.c
    query = sa.select(columns.payload).where(columns.rollout == rollout).order_by(columns.seq)
    with database.read() as connection:
        length = connection.execute(
            sa.select(tables.rollouts.c.length).where(tables.rollouts.c.name == rollout)
        ).scalar()
        if length is None:
            raise SelectionError(f"there is no rollout {rollout}: see `fleetctl rollout history`")
        payloads = connection.execute(query.where(columns.seq.in_((1, length)))).scalars().all()
    ends = [decode(payload) for payload in payloads]
    if len(ends) != len({1, length}) or not isinstance(ends[0], Opened):
        raise JournalDamaged(f"the journal of {rollout} has lost its first or its last event: restore it")
    return ends[0], ends[-1]
