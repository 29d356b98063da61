"""A rollout for people and for scripts: how each node stands or ended, and why."""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import datetime

from fleetctl.decide.lifecycle import LIFECYCLE
from fleetctl.decide.owing import obstacle
from fleetctl.decide.state import RolloutState
from fleetctl.model.fleet import Json
from fleetctl.model.names import fold
from fleetctl.model.record import NodeRecord
from fleetctl.model.rollout import State
from fleetctl.report.progress import span, waiting_for
from fleetctl.report.words import age

_ORDER = (
    State.QUARANTINED,
    State.UNHEALTHY,
    State.HELD,
    State.ROLLED_BACK,
    State.DEFERRED,
    State.PENDING,
    State.SKIPPED,
    State.DONE,
)
_MEANING = {
    State.QUARANTINED: "drained until a person releases it",
    State.UNHEALTHY: "as declared but not well; not touched",
    State.HELD: "somebody else's; not ours to undo",
    State.ROLLED_BACK: "back on its earlier versions, verified, at work",
    State.DEFERRED: "given back as it was found",
    State.PENDING: "not touched",
    State.SKIPPED: "nothing to do, verified",
    State.DONE: "changed, verified, at work",
}


def summary(state: RolloutState, now: datetime) -> str:
    """How a rollout stands: one block for each state, nodes with the same reason folded."""
    lines = []
    under_way = [record for record in state.records.values() if record.is_under_way]
    if under_way:
        lines.append(f"under way     {len(under_way):>5}  {fold([record.name for record in under_way])}")
        lines += [f"{'':<20} {name}: past its limit: {why}" for name, why in overdue(state, now).items()]
    for ended in _ORDER:
        names = state.in_state(ended)
        if not names:
            continue
        lines.append(f"{ended.value:<13} {len(names):>5}  {fold(names)}  ({_MEANING[ended]})")
        if ended not in (State.DONE, State.SKIPPED):
            lines += [
                f"{'':<20} {fold(group)}: {reason}" for reason, group in _by_reason(state, names).items() if reason
            ]
    return "\n".join(lines)


def overdue(state: RolloutState, now: datetime) -> Mapping[str, str]:
    """Nodes under way past the limit of their state, and what each waits for.

    A controller that runs turns them, so they are those that nobody looks after.
    """
    return {
        record.name: f"{record.state.value} for {age(record.entered_at, now)} (limit {span(limit.total_seconds())}): "
        f"{record.reason or _owed_by(record)}"
        for record in state.records.values()
        if record.is_under_way
        and record.entered_at is not None
        and (limit := state.limit_of(record.state)) is not None
        and now - record.entered_at > limit
    }


def _owed_by(record: NodeRecord) -> str:
    act = LIFECYCLE[record.state].owes
    assert act is not None  # a state that has a limit owes an act
    return "waits for its work to end" if record.act_is_over else f"waits for the outcome of its {act.value}"


def _by_reason(state: RolloutState, names: list[str]) -> Mapping[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(state.records[name].reason, []).append(name)
    return groups


def explain(state: RolloutState, node: str, now: datetime) -> str:
    """Why a node is where it is, in one line."""
    record = state.records[node]
    if record.state is State.PENDING:
        if state.stopping:
            return f"not touched: {state.stopping}"
        if state.paused_by:
            return f"paused by {state.paused_by}"
        if not state.gate.is_open and not state.gate.wants_another:
            return "waits for the canary"
        return str(obstacle(state, node, now)) or "its turn has not come"
    return waiting_for(state, record) if record.is_under_way else record.reason


def show_node(state: RolloutState, node: str, now: datetime) -> str:
    """Everything a person wants to know of one node."""
    record = state.records[node]
    since = f" since {span((now - record.entered_at).total_seconds())}" if record.entered_at else ""
    lines = [f"{node}  {record.state.value}{since}  {explain(state, node, now)}".rstrip()]
    if record.wave:
        lines.append(f"  wave      {record.wave}, course {record.course.value}")
    if record.changed:
        lines.append("  changed   yes")
    for component, closure in record.closures.items():
        lines.append(f"  way back  {component}: {len(closure.packages)} packages, {closure.variables}")
    return "\n".join(lines)


def as_json(state: RolloutState, now: datetime) -> Json:
    """The same for scripts. Keys are stable."""
    closed, late = state.closed, overdue(state, now)
    return {
        "rollout": state.name,
        "summary": state.opened.summary if state.opened else "",
        "status": closed.status if closed else "open",
        "reason": closed.reason if closed else state.stopping,
        "paused_by": state.paused_by,
        "out": state.budget.out(),
        "max_unavailable": state.budget.allowed(),
        "nodes": {name: _node_json(state, record, now, late) for name, record in state.records.items()},
    }


def _node_json(state: RolloutState, record: NodeRecord, now: datetime, late: Container[str]) -> Json:
    return {
        "state": record.state.value,
        "wave": record.wave,
        "course": record.course.value,
        "since": record.entered_at.isoformat() if record.entered_at else None,
        "changed": record.changed,
        "reason": explain(state, record.name, now),
        "past_limit": record.name in late,
    }
