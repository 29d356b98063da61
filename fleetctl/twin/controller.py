"""A whole controller in the twin: the production loop, acts and state over simulated ports; it can be killed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from fleetctl.decide.state import RolloutState
from fleetctl.flows.acts.view import Rollout, Terms
from fleetctl.flows.acts.view import World as Ports
from fleetctl.flows.performer import ActPerformer
from fleetctl.flows.rollout import run
from fleetctl.flows.watch import watch
from fleetctl.model.fleet import Connection, Node
from fleetctl.model.mark import Mark
from fleetctl.model.node_facts import Lease
from fleetctl.model.policy import RolloutPolicy
from fleetctl.model.rollout import Closed, Closure, Event, Opened, Outcome, Polled, Request, Resumed
from fleetctl.twin.component import VERSION, TwinDriver, read_node_facts
from fleetctl.twin.ports import TwinChanger, TwinNodes, TwinNotifier, TwinScheduler, TwinVerifier
from fleetctl.twin.virtual_time import VirtualClock, VirtualLoop

if TYPE_CHECKING:
    from fleetctl.twin.world import World

Arrival = Outcome | Polled | Request


STEPS_IN_ONE_MOMENT = 100_000


class Killed(BaseException):
    """SIGKILL: nothing of the controller runs after it, not even its handlers of errors."""


class KillSwitch(Protocol):
    def after_line(self, line: int) -> bool:
        """True: the controller dies once this many journal lines are durable."""
        ...


@dataclass(slots=True)
class TwinJournal:
    """Implements ports.Journal in memory; survives the controller. Dies between any two lines on demand."""

    events: list[Event] = field(default_factory=list)
    kill: KillSwitch | None = None

    def append(self, events: Sequence[Event]) -> None:
        for event in events:
            self.events.append(event)
            if self.kill is not None and self.kill.after_line(len(self.events)):
                raise Killed


@dataclass(slots=True)
class _Judged:
    """The journal, with the laws judged before each of its lines is written."""

    journal: TwinJournal
    world: World

    def append(self, events: Sequence[Event]) -> None:
        self.world.laws.judge()
        self.journal.append(events)


class TwinInbox:
    """Implements ports.Inbox: lets the world's time pass until something arrives."""

    def __init__(self, loop: VirtualLoop, clock: VirtualClock) -> None:
        self._loop = loop
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.kill_at_s: float | None = None
        self._steps_at: tuple[float, int] = (0.0, 0)

    def deliver(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def take(self, until: datetime | None) -> Sequence[Arrival]:
        if not self._arrivals:
            self._loop.run_until_complete(self._wait(until))
        if self.kill_at_s is not None and self._loop.time() >= self.kill_at_s:
            raise Killed
        at_s, steps = self._steps_at
        self._steps_at = (self._loop.time(), steps + 1 if at_s == self._loop.time() else 0)
        if steps > STEPS_IN_ONE_MOMENT:
            raise RuntimeError(f"the loop turns and turns at {at_s} s and nothing moves")
        arrived = tuple(self._arrivals)
        self._arrivals.clear()
        return arrived

    async def _wait(self, until: datetime | None) -> None:
        self._waiting = self._loop.create_future()
        ends = [self._clock.elapsed_s(until)] if until is not None else []
        if self.kill_at_s is not None:
            ends.append(self.kill_at_s)
        pause_s = max(0.0, min(ends) - self._loop.time()) if ends else None
        await asyncio.wait([self._waiting], timeout=pause_s)


@dataclass(slots=True)
class TwinController:
    """One controller process of one rollout over one world."""

    world: World
    journal: TwinJournal
    policy: RolloutPolicy
    to: str
    name: str = "ctl-1"
    nodes: Sequence[str] = ()
    rollout: str = "r-twin"
    requests: Sequence[tuple[float, Request]] = ()
    kill_at_s: float | None = None
    targets: Mapping[str, Mapping[str, Closure]] = field(default_factory=dict)
    state: RolloutState = field(init=False)

    def run(self) -> Closed | None:
        """Run to the end, or until killed (then None); what it had started in the world goes on."""
        loop = self.world.loop
        clock = VirtualClock(loop)
        inbox = TwinInbox(loop, clock)
        inbox.kill_at_s = self.kill_at_s
        self.state = self._open(clock)
        performer = ActPerformer(Rollout(self._ports(), self._terms()), loop, inbox.deliver)
        names = {name: name for name in self.world.nodes}
        watcher = loop.create_task(
            watch(performer.rollout.world.scheduler, names, clock, self.policy.poll_s, inbox.deliver)
        )
        for at_s, request in self.requests:
            loop.call_at(at_s, inbox.deliver, request)
        try:
            return run(self.state, _Judged(self.journal, self.world), inbox, performer, clock)
        except Killed:
            return None
        finally:
            watcher.cancel()
            loop.run_until_complete(performer.cancel_all())
            self.world.laws.judge()

    def _open(self, clock: VirtualClock) -> RolloutState:
        domains: Mapping[str, list[tuple[str, str]]] = {
            node.name: [("rack", node.rack)] for node in self.world.nodes.values()
        }
        state = RolloutState(self.policy, domains)
        for event in self.journal.events:
            state.fold(event)
        if state.opened is None:
            opened = Opened(
                clock.now(),
                self.rollout,
                "twin",
                ("driver",),
                tuple(self.nodes or self.world.nodes),
                "test",
                self.name,
                "abc123",
            )
            self.journal.events.append(opened)
            state.fold(opened)
        resumed = Resumed(clock.now(), self.name, state.epoch + 1)
        self.journal.events.append(resumed)
        state.fold(resumed)
        return state

    def _ports(self) -> Ports:
        world = self.world
        return Ports(TwinScheduler(world), TwinNodes(world), TwinChanger(world), TwinVerifier(world), TwinNotifier())

    def _terms(self) -> Terms:
        fleet = {
            node.name: Node(node.name, Connection(node.name), node.name, {"rack": node.rack}, {VERSION: self.to})
            for node in self.world.nodes.values()
        }
        return Terms(
            fleet=fleet,
            components=(TwinDriver(),),
            overrides={},
            mark=Mark(self.rollout, "abc123"),
            lease=Lease(self.rollout, self.name, self.state.epoch, "abc123"),
            policy=self.policy,
            summary=f"driver to {self.to}",
            targets=self.targets,
            adoptable=frozenset(),
            read_node_facts=read_node_facts,
        )
