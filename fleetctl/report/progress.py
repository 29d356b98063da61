"""What a person sees while a rollout runs: a live board on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleetctl.decide.state import RolloutState
from fleetctl.model.record import NodeRecord
from fleetctl.model.rollout import Event, Requested, State, node_of

_STYLES = {
    State.DONE: "green",
    State.QUARANTINED: "bold red",
    State.ROLLED_BACK: "yellow",
    State.HELD: "magenta",
    State.UNHEALTHY: "red",
    State.DEFERRED: "yellow",
}
_ROWS_AT_MOST = 24


def span(seconds: float) -> str:
    """A duration as people read it: 0:42, 12:05, 3:07:12."""
    whole = max(0, int(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(slots=True)
class PlainProgress:
    """One line for each state that a node enters. A listener of flows.rollout.run."""

    state: RolloutState
    stream: IO[str] = field(default_factory=lambda: sys.stderr)
    _shown: dict[str, State] = field(default_factory=dict)

    def __call__(self, events: Sequence[Event]) -> None:
        lines = [line for event in events for line in self._lines(event)]
        try:
            for line in lines:
                print(line, file=self.stream, flush=True)
        except (OSError, ValueError):
            pass  # a lost terminal does not stop a rollout; the log has it all

    def _lines(self, event: Event) -> list[str]:
        clock = f"{event.at.astimezone():%H:%M:%S}"
        if isinstance(event, Requested):
            return [f"{clock} {event.request.verb} by {event.request.by}"]
        lines = []
        for name in _nodes_of(event, self.state):
            record = self.state.records[name]
            if self._shown.get(name, State.PENDING) is not record.state:
                self._shown[name] = record.state
                lines.append(f"{clock} {name:<12} {record.state:<12} {record.reason}".rstrip())
        return lines

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""


class LiveProgress:
    """The board: counts, and each node under way with the age of its state. A listener of flows.rollout.run."""

    def __init__(self, state: RolloutState, now: Callable[[], datetime], console: Console | None = None) -> None:
        self._state = state
        self._now = now
        self._plain = PlainProgress(state)
        self._console = console or Console(stderr=True)
        self._live = Live(get_renderable=self.board, console=self._console, refresh_per_second=2, transient=True)

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, events: Sequence[Event]) -> None:
        """Nodes that ended are printed above the board, where they stay."""
        for event in events:
            for name in _nodes_of(event, self._state):
                record = self._state.records[name]
                if record.state.is_final and event.at == record.entered_at:
                    text = f"{event.at.astimezone():%H:%M:%S} {name:<12} {record.state:<12} {record.reason}".rstrip()
                    self._console.print(Text(text, style=_STYLES.get(record.state, "")), highlight=False)

    def board(self) -> Group:
        """The live part, drawn from the state as it is now."""
        now, state = self._now(), self._state
        records = list(state.records.values())
        counts = Counter(record.state for record in records)
        under_way = sorted((r for r in records if r.is_under_way), key=lambda r: (r.entered_at or now, r.name))
        head = Text.assemble(
            (f"rollout {state.name}", "bold"),
            f"  {state.opened.summary if state.opened else ''}  ",
            f"{counts[State.DONE] + counts[State.SKIPPED]}/{len(records)} done  in flight {len(under_way)}",
            *(f"  {name.value} {counts[name]}" for name in _STYLES if name is not State.DONE and counts[name]),
            (f"  {span((now - state.opened.at).total_seconds())}" if state.opened else ""),
        )
        ended = sum(1 for record in records if record.state.is_final)
        parts: list[Text | ProgressBar | Table] = [
            head,
            ProgressBar(total=max(1, len(records)), completed=ended, width=60),
        ]
        if state.paused_by:
            parts.append(Text(f"paused by {state.paused_by}: `fleetctl rollout resume` goes on", style="yellow"))
        if state.stopping:
            parts.append(Text(f"no node is admitted any more: {state.stopping}", style="yellow"))
        return Group(*parts, _rows(under_way, now, state))


def _rows(under_way: Sequence[NodeRecord], now: datetime, state: RolloutState) -> Table:
    table = Table.grid(padding=(0, 2))
    for record in under_way[:_ROWS_AT_MOST]:
        age_s = (now - record.entered_at).total_seconds() if record.entered_at else 0
        back = " back" if record.course == "back" else ""
        table.add_row(f"  {record.name}", f"{record.state.value}{back}", span(age_s), Text(waiting_for(state, record)))
    if len(under_way) > _ROWS_AT_MOST:
        table.add_row(f"  and {len(under_way) - _ROWS_AT_MOST} more")
    return table


def waiting_for(state: RolloutState, record: NodeRecord) -> str:
    """Who or what a node under way waits for, in a few words."""
    limit = state.limit_of(record.state)
    until = f" (limit {span(limit.total_seconds())})" if limit is not None else ""
    work = state.seen.get(record.name)
    if record.state is State.DRAINING and work is not None and work.jobs:
        jobs = ", ".join(f"job {job.id}{_until(job.ends_by)}" for job in work.jobs[:3])
        return f"{jobs}{until}"
    return f"{record.reason}{until}".strip()


def _until(ends_by: datetime | None) -> str:
    if ends_by is None:
        return " (no limit)"
    return f" (limit in {span((ends_by - datetime.now(UTC)).total_seconds())})"


def _nodes_of(event: Event, state: RolloutState) -> list[str]:
    """The nodes whose record an event may have moved."""
    if isinstance(event, Requested):
        return list(state.records)
    node = node_of(event)
    if node is None:
        return []
    # The failure that opens the breaker turns the others home in the same step.
    return [node, *sorted(state.unsettled - {node})] if state.is_giving_back else [node]
