"""The state of one rollout: events are folded into it, and the loop's questions are answered from it.

Mutable, with one owner: the deciding thread. No I/O, no clock, no randomness. A replay of the journal through `fold`
gives the same records, since every decision (admission too) is an event. What was last seen of the scheduler is not
journalled: it is read anew after a restart.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from fleetctl.decide.breaker import Breaker
from fleetctl.decide.budget import Budget, Domain
from fleetctl.decide.lifecycle import LIFECYCLE, Turn
from fleetctl.decide.order import Queue
from fleetctl.decide.waves import CanaryGate
from fleetctl.model import rollout as words
from fleetctl.model.drift import Disturbance
from fleetctl.model.mark import Mark
from fleetctl.model.policy import RolloutPolicy
from fleetctl.model.record import NodeRecord
from fleetctl.model.rollout import Act, Course, Outcome, Result, State
from fleetctl.model.work import Work

LIFTS_AT_MOST = 2
"""How often a deferred node is tried again within one rollout."""


class RolloutState:
    """Everything that one rollout knows. Cost of a fold: that of the one node concerned."""

    def __init__(self, policy: RolloutPolicy, fleet_domains: Mapping[str, Iterable[Domain]]) -> None:
        """`fleet_domains` has every node of the site, also those not in this rollout: whoever is out counts."""
        self.policy = policy
        self.records: dict[str, NodeRecord] = {}
        self.budget = Budget(fleet_domains, policy.max_unavailable, policy.max_unavailable_per)
        self.breaker = Breaker(policy.max_failures, policy.same_signature_stops_at)
        self.gate = CanaryGate(policy)
        self.queue = Queue(self.budget.domains)
        self.seen: dict[str, Work] = {}
        self.is_blind = True
        """The last poll of the scheduler was not readable, or there was none yet: nothing is admitted."""
        self.opened: words.Opened | None = None
        self.closed: words.Closed | None = None
        self.epoch = 0
        self.paused_by = ""
        self.stopping = ""
        """Why no node is admitted any more; empty while the rollout goes on."""
        self.is_giving_back = False
        """Nodes under way that are unchanged are returned: the breaker opened, or a person aborted."""
        self.due: dict[str, None] = {}
        """Nodes to look at in this step, in the order in which they came up."""
        self.unsettled: set[str] = set()
        """Nodes that keep the rollout open: under way, with an act under way, or owing one."""
        self.next_intent_id = 1
        self._timers: list[tuple[datetime, str]] = []

    @property
    def name(self) -> str:
        return self.opened.rollout if self.opened else ""

    def mark(self, why: str = "") -> Mark:
        if self.opened is None:
            raise ValueError("a rollout has no mark before it was opened")
        return Mark(self.opened.rollout, self.opened.nonce, why)

    def in_state(self, *states: State) -> list[str]:
        return [name for name, record in self.records.items() if record.state in states]

    def counts(self) -> Counter[State]:
        return Counter(record.state for record in self.records.values())

    # --- what was last seen of the scheduler: not events, read anew by every controller

    def see(self, node: str, work: Work | None) -> None:
        """Take in what a poll showed of a node of the fleet; None: the scheduler does not know it."""
        if work is None:
            self.seen.pop(node, None)
        else:
            self.seen[node] = work
        record = self.records.get(node)
        if record is not None and record.state is State.PENDING:
            self.queue.put(node, work)
        self._count_out(node, record)

    def _count_out(self, node: str, record: NodeRecord | None) -> None:
        ours = record is not None and (record.is_under_way or record.state is State.QUARANTINED)
        work = self.seen.get(node)
        # A node that the scheduler does not show is out: what can't be read is not available.
        self.budget.count(node, out=ours or work is None or work.is_out)

    # --- time

    def wake(self, now: datetime) -> None:
        """Make due whatever waited for a time that has come."""
        while self._timers and self._timers[0][0] <= now:
            self.due[heapq.heappop(self._timers)[1]] = None

    def next_deadline(self) -> datetime | None:
        """When something will be owed though nothing happens; may be early, never late."""
        soak_ends = None if self.stopping else self.gate.next_look()
        times = [self._timers[0][0] if self._timers else None, soak_ends]
        return min((time for time in times if time is not None), default=None)

    def limit_of(self, state: State) -> timedelta | None:
        """How long a node may stay in a state; None: for ever."""
        if LIFECYCLE[state].late is None:
            return None
        return timedelta(seconds=getattr(self.policy.limits, f"{state.value}_s"))

    # --- events

    def fold(self, event: words.Event) -> None:
        """Take one event in. Folding the same events in the same order always gives the same records."""
        match event:
            case words.Opened():
                self.opened = event
                for name in event.nodes:
                    self._store(NodeRecord(name, entered_at=event.at))
            case words.Resumed():
                self._resume(event)
            case words.Admitted():
                record = self.records[event.node]
                fresh = replace(record, wave=event.wave, course=Course.FORWARD, turned_by="")
                self._enter(fresh, State.CHECKING, event.at)
            case words.Intended():
                self._intend(event)
            case words.Concluded():
                self._conclude(event.outcome, event.at)
            case words.Emptied():
                self._go(self.records[event.node], State.PREFLIGHT, event.at)
            case words.Taken():
                self._go(self.records[event.node], State.HELD, event.at, event.reason)
            case words.Lifted():
                self._lift(self.records[event.node], event)
            case words.Expired():
                self._expire(self.records[event.node], event.at)
            case words.Relapsed():
                record = self._fail(self.records[event.node], "", event.at)
                self._enter(record, State.UNHEALTHY, event.at, event.reason)
            case words.Requested():
                self._request(event.request, event.at)
            case words.Closed():
                self.closed = event
        node = words.node_of(event)
        if self.is_giving_back and node is not None:
            self._give_back(node, event.at)

    def _resume(self, event: words.Resumed) -> None:
        self.epoch = event.epoch
        if self.closed is not None:
            # A person has looked at why it stopped and lets it go on.
            self.closed, self.stopping, self.is_giving_back = None, "", False
            self.breaker.close()
        self.paused_by = ""
        self.is_blind = True
        for name in tuple(self.unsettled):
            # An intent without an outcome means: observe again. Its id is dead, a late outcome finds no taker.
            record = self.records[name]
            attempts = record.attempts + (1 if record.intent else 0)
            # The limit of its state begins anew: meanwhile nobody could do what it owes, or see that it was empty.
            self._store(replace(record, intent=None, not_before=None, attempts=attempts, entered_at=event.at))
            self._arm(name)
            self._give_back(name, event.at)

    def _lift(self, record: NodeRecord, event: words.Lifted) -> None:
        if record.state in (State.DONE, State.ROLLED_BACK):
            # Proven as it is now: what it had before that is no way back any more.
            record = replace(record, changed=False, closures={})
        self._enter(replace(record, lifts=record.lifts + 1), State.PENDING, event.at, event.reason)

    def _intend(self, event: words.Intended) -> None:
        intent = event.intent
        record = self.records[intent.node]
        fields: dict[str, Any] = {"intent": intent, "not_before": None}
        if intent.act is Act.DRAIN:
            fields["marked"] = True
        elif intent.act is Act.APPLY:
            fields["changed"] = True
        elif intent.act is Act.POWER_CYCLE:
            fields |= {"power_cycled": True, "next_act": None}
        self.next_intent_id = max(self.next_intent_id, intent.id + 1)
        self._store(replace(record, **fields))

    def _conclude(self, outcome: Outcome, at: datetime) -> None:
        record = self.records[outcome.node]
        if record.intent is None or record.intent.id != outcome.intent:
            return
        if outcome.learnt.changed is False and outcome.act is Act.APPLY:
            record = replace(record, changed=record.course is Course.BACK)
        record = replace(record.learning(outcome.learnt), intent=None)
        if outcome.act is Act.LABEL and outcome.result is Result.OK:
            record = replace(record, marked=True)
        if outcome.act is Act.RECHECK:
            self._recheck(record, outcome, at)
        elif outcome.act is Act.POWER_CYCLE or outcome.result is Result.UNKNOWN:
            self._again(record, at, outcome.reason)
        else:
            if outcome.act is Act.DRAIN and outcome.result is Result.OK:
                record = replace(record, marked_at=at)
            target = LIFECYCLE[record.state].results.get(outcome.result, Turn.AGAIN)
            self._go(record, target, at, outcome.reason, outcome.signature)

    def _recheck(self, record: NodeRecord, outcome: Outcome, at: datetime) -> None:
        if outcome.result is Result.OK:
            self._store(replace(record, soaked=True))
        elif outcome.result is Result.UNKNOWN:
            self._again(record, at, outcome.reason)
        else:
            failed = self._fail(record, outcome.signature, at)
            self._enter(failed, State.QUARANTINED, at, f"failed after its soak: {outcome.reason}")

    def _expire(self, record: NodeRecord, at: datetime) -> None:
        late = LIFECYCLE[record.state].late
        reason = f"{record.state.value} for more than {self.limit_of(record.state)}"
        reason += f": {record.reason}" if record.reason else ""
        if late is Turn.AGAIN:
            # What can't be told yet never moves a node: the clock of the state starts anew, and so does its act.
            self._enter(record, record.state, at, reason)
        elif late is not None:
            late_record = replace(record, intent=None)
            self._go(late_record, late, at, reason, signature=f"{record.state.value}: past its limit")

    def _go(
        self, record: NodeRecord, target: State | Turn, at: datetime, reason: str = "", signature: str = ""
    ) -> None:
        """Carry out one cell of the lifecycle table."""
        match target:
            case Turn.AGAIN:
                self._again(record, at, reason)
                return
            case Turn.STAY:
                self._store(replace(record, act_is_over=True, reason=record.reason or reason))
                return
            case Turn.POWER_CYCLE if self.policy.power_cycle and not record.power_cycled:
                self._enter(replace(record, next_act=Act.POWER_CYCLE), State.RESTARTING, at, reason)
                return
            case Turn.CONCLUDE:
                self._enter(replace(record, marked=False), record.conclusion, at, record.turned_by or record.reason)
                return
            case Turn.BY_DISTURBANCE:
                undisturbed = record.disturbance is Disturbance.NONE and not record.marked
                state = State.APPLYING if undisturbed else State.DRAINING
                overfull = self.budget.overfull(record.name)
                if overfull is not None and not record.marked:
                    # Others went out while it was checked: nothing was touched yet, so it waits its turn again.
                    state, reason = State.PENDING, str(overfull)
            case Turn.ONWARD:
                needs_restart = record.disturbance >= Disturbance.REBOOT
                state = State.RESTARTING if needs_restart else State.VERIFYING
            case Turn.UNCHANGED_OR_BACK if not record.changed:
                state = State.RETURNING
            case Turn.BACK | Turn.UNCHANGED_OR_BACK | Turn.POWER_CYCLE:
                self._turn_back(self._fail(record, signature, at), target, at, reason)
                return
            case State():
                state = target
        if record.marked and state in (State.DEFERRED, State.UNHEALTHY, State.SKIPPED):
            # Only a passed verify gives a node back: one that we hold stays with us.
            state = State.QUARANTINED
        if state is State.QUARANTINED:
            record = self._fail(record, signature, at)
        if state is State.RETURNING:
            record = replace(record, course=Course.UNCHANGED, turned_by=reason)
        self._enter(record, state, at, reason)

    def _turn_back(self, record: NodeRecord, turn: Turn, at: datetime, reason: str) -> None:
        """Forward becomes back where the policy says so and a way back is recorded; else the node is quarantined."""
        may_go_back = (
            turn is not Turn.POWER_CYCLE  # a node that does not answer can't be brought back
            and record.course is Course.FORWARD
            and self.policy.on_failed_verify == "roll_back"
            and bool(record.closures)
        )
        if may_go_back:
            self._enter(replace(record, course=Course.BACK, turned_by=reason), State.APPLYING, at, reason)
        else:
            why = f"{record.turned_by}; on the way back: {reason}" if record.course is Course.BACK else reason
            self._enter(record, State.QUARANTINED, at, why)

    def _fail(self, record: NodeRecord, signature: str, at: datetime) -> NodeRecord:
        """Count a failure of the change, once per node and try; too many of them open the breaker."""
        if record.failed:
            return record
        self.breaker.count(record.name, signature)
        if self.breaker.is_open and not self.is_giving_back:
            self.stopping, self.is_giving_back = self.breaker.reason, True
            for name in sorted(self.unsettled - {record.name}):
                self._give_back(name, at)
        return replace(record, failed=True)

    def _request(self, request: words.Request, at: datetime) -> None:
        match request.verb:
            case "pause":
                self.paused_by = request.by
            case "resume":
                self.paused_by = ""
            case "stop":
                self.stopping = self.stopping or f"stopped by {request.by}"
            case "abort":
                self.stopping, self.is_giving_back = f"aborted by {request.by}", True
                for name in sorted(self.unsettled):
                    self._give_back(name, at)
            case "retry" | "skip" | "release":
                for name in request.nodes:
                    self._request_of(self.records[name], request, at)
            case "leave":
                pass

    def _request_of(self, record: NodeRecord, request: words.Request, at: datetime) -> None:
        """What concerns single nodes; one that it does not fit (any more) stays where it is."""
        state = record.state
        if request.verb == "retry" and state.is_final and state is not State.DONE:
            self.breaker.forget(record.name)
            fresh = replace(record, lifts=0, failed=False, course=Course.FORWARD, intent=None)
            self._enter(fresh, State.PENDING, at, f"retried by {request.by}")
        elif request.verb == "skip" and state is State.PENDING:
            self._enter(record, State.SKIPPED, at, f"skipped by {request.by}")
        elif request.verb == "release" and record.is_under_way:
            # One that is not drained would be lifted from its hold at the next poll.
            is_begun = record.marked or state is not State.CHECKING
            self._enter(record, State.HELD if is_begun else State.SKIPPED, at, f"released to {request.by}")

    # --- moving one record

    def _give_back(self, name: str, at: datetime) -> None:
        """While giving back: turn an unchanged node home as soon as no act of ours is under way on it."""
        record = self.records[name]
        if (
            not self.is_giving_back
            or record.state is State.RETURNING
            or record.intent is not None
            or not record.is_unchanged_under_way
        ):
            return
        if record.marked:
            home = replace(record, course=Course.UNCHANGED, turned_by=self.stopping)
            self._enter(home, State.RETURNING, at, self.stopping)
        else:
            self._enter(record, State.PENDING, at, self.stopping)

    def _again(self, record: NodeRecord, at: datetime, reason: str) -> None:
        pause_s = min(self.policy.retry_after_s * 2 ** min(record.attempts, 16), self.policy.retry_at_most_s)
        not_before = at + timedelta(seconds=pause_s)
        self._store(
            replace(
                record,
                intent=None,
                attempts=record.attempts + 1,
                not_before=not_before,
                # Why a node ended says more than what delays the clearing up behind it.
                reason=record.reason if record.state.is_final and record.reason else reason or record.reason,
            )
        )
        heapq.heappush(self._timers, (not_before, record.name))

    def _enter(self, record: NodeRecord, state: State, at: datetime, reason: str = "") -> None:
        self._store(
            replace(
                record,
                state=state,
                entered_at=at,
                intent=None,
                attempts=0,
                not_before=None,
                act_is_over=False,
                reason=reason,
            )
        )
        self._arm(record.name)
        if state is State.DEFERRED:
            heapq.heappush(self._timers, (at + timedelta(seconds=self.policy.deferred_again_after_s), record.name))

    def _arm(self, name: str) -> None:
        """Have the node looked at when the limit of its state ends."""
        since, limit = self.records[name].entered_at, self.limit_of(self.records[name].state)
        if since is not None and limit is not None:
            heapq.heappush(self._timers, (since + limit, name))

    def _store(self, record: NodeRecord) -> None:
        """Keep a record and every index over it true."""
        self.records[record.name] = record
        owes = LIFECYCLE[record.state].owes is not None and not record.act_is_over
        if record.is_under_way or record.intent is not None or owes:
            self.unsettled.add(record.name)
        else:
            self.unsettled.discard(record.name)
        if owes and record.intent is None:
            self.due[record.name] = None
        if record.state is State.PENDING:
            self.queue.put(record.name, self.seen.get(record.name))
        else:
            self.queue.remove(record.name)
        self.gate.update(record)
        self._count_out(record.name, record)
