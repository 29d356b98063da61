"""What was done to one node, event by event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fleetctl.model.rollout import Concluded, Event, Expired, Intended, Relapsed, Taken, node_of


def story(events: Iterable[Event], node: str) -> Iterator[str]:
    """One line for each event of the node, oldest first."""
    for event in events:
        if node_of(event) == node:
            yield f"  {event.at.astimezone():%m-%d %H:%M:%S}  {_tell(event)}"


def _tell(event: Event) -> str:
    match event:
        case Intended():
            return f"{event.intent.act.value} begins" + (" (back)" if event.intent.course == "back" else "")
        case Concluded():
            reason = f": {event.outcome.reason}" if event.outcome.reason else ""
            return f"{event.outcome.act.value} {event.outcome.result.value}{reason}"
        case Expired():
            return f"past the limit of {event.state.value}"
        case Taken() | Relapsed():
            return f"{event.kind}: {event.reason}"
        case _:
            return event.kind
