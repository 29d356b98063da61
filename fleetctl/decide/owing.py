"""What is owed now: limits that ran out, nodes to admit, acts to start. Each is an event before it is done."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from fleetctl.decide.budget import Full
from fleetctl.decide.lifecycle import LIFECYCLE
from fleetctl.decide.order import last_end
from fleetctl.decide.state import LIFTS_AT_MOST, RolloutState
from fleetctl.decide.waves import CANARY, MAIN
from fleetctl.model.record import NodeRecord
from fleetctl.model.rollout import Act, Admitted, Closed, Event, Expired, Intended, Intent, Lifted, State
from fleetctl.model.work import Work


def expirations(state: RolloutState, now: datetime) -> Iterator[Event]:
    """Nodes past the limit of their state, and deferred ones whose pause is over."""
    state.wake(now)
    for name in tuple(state.due):
        record = state.records[name]
        if record.entered_at is None:
            continue
        if record.state is State.DEFERRED:
            del state.due[name]
            pause = timedelta(seconds=state.policy.deferred_again_after_s)
            if record.lifts < LIFTS_AT_MOST and not state.stopping and record.entered_at + pause <= now:
                yield Lifted(now, name, record.reason)
            continue
        limit = state.limit_of(record.state)
        if limit is not None and name in state.unsettled and record.entered_at + limit <= now:
            yield Expired(now, name, record.state)


def admissions(state: RolloutState, now: datetime) -> Iterator[Event]:
    """Nodes that may start now, cheapest first; the caller folds each before it asks for the next."""
    while not (state.stopping or state.paused_by or state.is_blind):
        is_main = state.gate.is_open
        if not is_main and not state.gate.wants_another:
            return
        node = state.queue.cheapest(lambda name: not obstacle(state, name, now))
        if node is None:
            return
        yield Admitted(now, node, MAIN if is_main else CANARY)


def obstacle(state: RolloutState, node: str, now: datetime) -> Full | str:
    """Why this node may not start now; empty text: nothing."""
    work = state.seen.get(node)
    if work is None:
        return "the scheduler does not show it"
    if outlasts(work, now, state.policy.limits.draining_s):
        return "its work may outlast the drain limit"
    return state.budget.obstacle(node) or ""


def outlasts(work: Work, now: datetime, draining_s: float) -> bool:
    """True if the work on a node has no limit, or one beyond the time that a drain may take."""
    if work.empty:
        return False
    end = last_end(work)
    return end is None or end > now + timedelta(seconds=draining_s)


def intents(state: RolloutState, now: datetime) -> Iterator[Event]:
    """The acts that due nodes owe, as intents."""
    for record in state.gate.owing_recheck(now):
        if not state.is_giving_back:
            yield Intended(now, _intent(state, record, Act.RECHECK))
    for name in tuple(state.due):
        record = state.records[name]
        if record.not_before is not None and record.not_before > now:
            del state.due[name]  # its timer makes it due again
            continue
        del state.due[name]
        act = record.next_act or LIFECYCLE[record.state].owes
        if act is not None and record.intent is None and not record.act_is_over:
            yield Intended(now, _intent(state, record, act))


def _intent(state: RolloutState, record: NodeRecord, act: Act) -> Intent:
    return Intent(
        id=state.next_intent_id,
        node=record.name,
        act=act,
        course=record.course,
        boot_id=record.boot_id if act in (Act.RESTART, Act.POWER_CYCLE) else "",
        conclusion=record.conclusion if act is Act.UNDRAIN else None,
        why=record.reason,
    )


def closing(state: RolloutState, now: datetime) -> Closed | None:
    """The rollout's end, when nothing is owed any more and nothing more can be admitted."""
    if state.unsettled or state.closed is not None:
        return None
    if state.stopping:
        return Closed(now, "stopped", state.stopping)
    if state.paused_by or state.is_blind:
        return None
    may_come = any(_may_come(state, name, now) for name in state.queue)
    if state.gate.is_soaking or may_come:
        return None
    ended_well = all(record.state in (State.DONE, State.SKIPPED) for record in state.records.values())
    return Closed(now, "complete" if ended_well else "incomplete")


def _may_come(state: RolloutState, name: str, now: datetime) -> bool:
    """True if waiting can help: only a node whose work has an end, and that the scheduler knows, can still come."""
    work: Work | None = state.seen.get(name)
    return work is not None and not outlasts(work, now, state.policy.limits.draining_s)
