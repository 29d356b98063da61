"""What happened, turned into events: the only way from the inbox into the state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from fleetctl.decide.state import RolloutState
from fleetctl.model.mark import Ownership, owner_of
from fleetctl.model.record import NodeRecord
from fleetctl.model.rollout import (
    Concluded,
    Emptied,
    Event,
    Lifted,
    Outcome,
    Polled,
    Relapsed,
    Request,
    Requested,
    State,
    Taken,
)
from fleetctl.model.work import Work

_GIVEN_BACK = frozenset({State.DONE, State.SKIPPED, State.DEFERRED, State.ROLLED_BACK})


def events_from(state: RolloutState, arrival: Outcome | Polled | Request, now: datetime) -> Iterator[Event]:
    """The events that one arrival amounts to; the caller folds each before it asks for the next."""
    match arrival:
        case Outcome():
            record = state.records.get(arrival.node)
            # An outcome that comes twice, or from an act that was given up, finds no open intent.
            if record is not None and record.intent is not None and record.intent.id == arrival.intent:
                yield Concluded(now, arrival)
        case Request():
            yield Requested(now, arrival)
        case Polled():
            yield from _polled(state, arrival, now)


def _polled(state: RolloutState, poll: Polled, now: datetime) -> Iterator[Event]:
    state.is_blind = not poll.is_readable
    if not poll.is_readable:
        return
    for node, work in poll.changed.items():
        state.see(node, work)
    for node in sorted(state.unsettled):
        work = state.seen.get(node)
        if work is not None:
            yield from _under_way(state, state.records[node], work, poll.read_at, now)
    for node, work in poll.changed.items():
        record = state.records.get(node)
        if record is not None and work is not None:
            yield from _final(state, record, work, poll.read_at, now)


def _under_way(
    state: RolloutState, record: NodeRecord, work: Work, read_at: datetime, now: datetime
) -> Iterator[Event]:
    if record.marked_at is None or read_at < record.marked_at or not record.marked or not record.is_under_way:
        return
    if record.state is State.UNDRAINING:
        return  # the act itself reads back; a poll may show either side of it
    owner = owner_of(work.reason, state.mark())
    if not work.cordoned:
        yield Taken(now, record.name, _taken_reason("given back by others", work))
    elif owner in (Ownership.FOREIGN, Ownership.OTHER_ROLLOUT):
        yield Taken(now, record.name, _taken_reason("drained by others", work))
    elif record.state is State.DRAINING and record.act_is_over and owner is Ownership.OURS and work.empty:
        yield Emptied(now, record.name)


def _final(state: RolloutState, record: NodeRecord, work: Work, read_at: datetime, now: datetime) -> Iterator[Event]:
    if record.entered_at is None or read_at < record.entered_at:
        return
    owner = owner_of(work.reason, state.mark())
    if work.cordoned and owner is Ownership.OURS and record.state in _GIVEN_BACK:
        # A drain of ours that came late, sent before a crash or by a controller that was stopped: nothing may be
        # left behind, and only a verify gives back.
        yield Lifted(now, record.name, "drained by us again")
    elif record.state is State.DONE:
        if work.cordoned and owner is not Ownership.OURS:
            yield Relapsed(now, record.name, _taken_reason("drained after it was done", work))
        elif work.down:
            yield Relapsed(now, record.name, _taken_reason("down after it was done", work))
    elif record.state is State.HELD and not record.changed and not work.cordoned and not work.down:
        yield Lifted(now, record.name, "the hold is gone")


def _taken_reason(what: str, work: Work) -> str:
    by = f" by {work.reason_by}" if work.reason_by else ""
    return f'{what}{by}: "{work.reason}"' if work.reason else what
