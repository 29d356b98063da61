"""The one loop: take what happened, write it down, fold it in, ask what is owed, write that down, start it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from fleetctl.decide.notice import events_from
from fleetctl.decide.owing import admissions, closing, expirations, intents
from fleetctl.decide.state import RolloutState
from fleetctl.model.record import Owed
from fleetctl.model.rollout import Closed, Event, Intended, Outcome, Polled, Request
from fleetctl.ports import Clock, Inbox, Journal, Performer

Listener = Callable[[Sequence[Event]], None]
"""Told of events after they are on disk (progress, log); it must not raise and must not wait."""


def run(
    state: RolloutState,
    journal: Journal,
    inbox: Inbox,
    performer: Performer,
    clock: Clock,
    listener: Listener = lambda _events: None,
) -> Closed | None:
    """Run until the rollout closes, or until a person says leave (None: resume goes on from here).

    Nothing is started before its intent is on disk. An error of the journal ends the loop before the next start.
    """
    arrivals: Sequence[Outcome | Polled | Request] = ()
    while True:
        events, owed = advance(state, arrivals, clock.now())
        if events:
            journal.append(events)
            listener(events)
        performer.start(owed)
        if state.closed is not None:
            return state.closed
        if any(isinstance(arrival, Request) and arrival.verb == "leave" for arrival in arrivals):
            return None
        arrivals = inbox.take(state.next_deadline())


def advance(
    state: RolloutState, arrivals: Iterable[Outcome | Polled | Request], now: datetime
) -> tuple[list[Event], list[Owed]]:
    """One step, decided: the events to write down, all folded in already, and the acts to start after that."""
    events: list[Event] = []

    def fold(stream: Iterable[Event]) -> None:
        for event in stream:
            state.fold(event)
            events.append(event)

    for arrival in arrivals:
        fold(events_from(state, arrival, now))
    fold(expirations(state, now))
    fold(admissions(state, now))
    fold(intents(state, now))
    end = closing(state, now)
    if end is not None:
        fold([end])
    owed = [
        Owed(event.intent, state.records[event.intent.node])
        for event in events
        if isinstance(event, Intended) and state.records[event.intent.node].intent == event.intent
    ]
    return events, owed
