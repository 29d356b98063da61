"""How long a rollout may take, and what it costs.

The model, kept simple so that a person can check it by hand:
- A node that is admitted waits until its work must have ended by its limits (true ends are earlier, and not known),
  then spends the typical time of each step. Typical is the median measured so far, else a default.
- Who is admitted when is what the rollout itself would decide: same order, same budgets, canary and soak. Nothing
  fails, no new work arrives on nodes that wait, nodes that are out now stay out.
- A node's GPUs are lost from the moment its work has ended until it is given back. GPUs that stand free beside the
  last running job are not counted.
Nodes that are already current take a moment each and are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from statistics import median

from fleetctl.decide.budget import FLEET, Budget, Full
from fleetctl.decide.order import Queue, last_end
from fleetctl.decide.waves import CANARY, MAIN
from fleetctl.model.drift import Disturbance
from fleetctl.model.policy import RolloutPolicy
from fleetctl.model.rollout import Act, Concluded, Event, Intended, Result
from fleetctl.model.work import Work


@dataclass(frozen=True, slots=True)
class Typical:
    """Typical seconds of each step of one node. The defaults are those of an eight-GPU server, reboot and all."""

    check_s: float = 20
    preflight_s: float = 120
    apply_s: float = 420
    restart_s: float = 600
    verify_s: float = 120
    undrain_s: float = 20
    measured: int = 0
    """Steps that were measured; 0: all of it is default."""

    def node_s(self, disturbance: Disturbance) -> float:
        """From the moment its work has ended until the node is given back."""
        steps_s = self.check_s + self.apply_s + self.verify_s
        if disturbance > Disturbance.NONE:
            steps_s += self.preflight_s + self.undrain_s
        return steps_s + (self.restart_s if disturbance >= Disturbance.REBOOT else 0)


_STEPS = frozenset(step.name for step in fields(Typical)) - {"measured"}


def measure(events: Iterable[Event], default: Typical | None = None) -> Typical:
    """The median of each step over all intents that ended ok; a step never measured keeps its default."""
    begun: dict[int, tuple[datetime, Act]] = {}
    took_s: dict[str, list[float]] = {}
    for event in events:
        if isinstance(event, Intended):
            begun[event.intent.id] = (event.at, event.intent.act)
        elif isinstance(event, Concluded) and event.outcome.intent in begun:
            at, act = begun.pop(event.outcome.intent)
            step = f"{act.value}_s"
            if event.outcome.result is Result.OK and step in _STEPS:
                took_s.setdefault(step, []).append((event.at - at).total_seconds())
    medians = {step: median(values) for step, values in took_s.items()}
    return replace(default or Typical(), **medians, measured=sum(map(len, took_s.values())))


@dataclass(frozen=True, slots=True)
class Load:
    """What the forecast needs of one node to change: its work, and what changing it takes away."""

    work: Work
    disturbance: Disturbance

    def free_at(self, now: datetime) -> datetime:
        """When its work must have ended by its limits. Work without a limit is never planned."""
        end = None if self.work.empty else last_end(self.work)
        return max(now, end) if end else now


@dataclass(frozen=True, slots=True)
class WaveForecast:
    """One wave, in seconds from its own beginning."""

    nodes: tuple[str, ...]
    """In the order in which they would be admitted."""
    took_s: float
    out_at_once: int
    """At most, nodes of this wave alone."""
    limited_by: tuple[str, ...]
    """Kinds of failure domain (or "fleet") that kept a node waiting."""


@dataclass(frozen=True, slots=True)
class Forecast:
    waves: Mapping[str, WaveForecast]
    soak_s: float
    total_s: float
    never: Mapping[str, Full]
    """Nodes that can't be admitted while those that are out now stay out, each with what is in the way."""


def forecast(
    loads: Mapping[str, Load], budget: Budget, policy: RolloutPolicy, typical: Typical, now: datetime
) -> Forecast:
    """Play the rollout through. `budget` has whoever is out now, and is used up by this."""
    play = _Play(loads, budget, policy, typical, now)
    play.run()
    return play.result()


class _Play:
    def __init__(
        self, loads: Mapping[str, Load], budget: Budget, policy: RolloutPolicy, typical: Typical, now: datetime
    ) -> None:
        self._loads, self._budget, self._typical = loads, budget, typical
        self._free_s = {node: (load.free_at(now) - now).total_seconds() for node, load in loads.items()}
        self._already_out = budget.nodes_out & loads.keys()
        """Left drained by an earlier rollout: taking them up adds nothing to what is out."""
        self._queue = Queue(budget.domains)
        for node, load in loads.items():
            self._queue.put(node, load.work)
        self._canaries_left = min(policy.canary, len(loads))
        self._soak_s = policy.soak_s + typical.verify_s if policy.soak_s and self._canaries_left else 0.0
        self._main_from_s = 0.0 if not self._canaries_left else None
        self._under_way: list[tuple[float, str, str]] = []
        self._at_s = 0.0
        self._waves: dict[str, _Wave] = {}
        self._limits: set[str] = set()

    def run(self) -> None:
        while self._queue or self._under_way:
            self._admit()
            if self._under_way:
                self._finish_next()
            elif self._main_from_s is not None and self._main_from_s > self._at_s:
                self._at_s = self._main_from_s
            else:
                return  # what is left can't be admitted at all

    def result(self) -> Forecast:
        never: dict[str, Full] = {}
        for node in self._queue:
            full = self._budget.obstacle(node)
            if full is not None:
                never[node] = full
        waves = {name: wave.result() for name, wave in self._waves.items()}
        total_s = max((wave.ends_s for wave in self._waves.values()), default=0.0)
        if CANARY in self._waves:  # the rollout closes only after the soak, whoever else there is
            total_s = max(total_s, self._waves[CANARY].ends_s + self._soak_s)
        return Forecast(waves, self._soak_s, total_s, never)

    def _admit(self) -> None:
        while True:
            is_main = self._main_from_s is not None and self._at_s >= self._main_from_s
            name = MAIN if is_main else CANARY
            if not is_main and not self._canaries_left:
                return
            node = None if self._is_full() else self._queue.cheapest(self._may_go)
            if node is None:
                if self._queue and name in self._waves:
                    self._waves[name].limited_by |= self._limits
                return
            self._limits.clear()
            self._queue.remove(node)
            if not is_main:
                self._canaries_left -= 1
            self._begin(node, name)

    def _is_full(self) -> bool:
        """True if no node at all can go; spares the look at each rack."""
        if self._already_out or self._budget.out() < self._budget.allowed():
            return False
        self._limits.add(FLEET[0])
        return True

    def _may_go(self, node: str) -> bool:
        full = self._budget.obstacle(node)
        if full is not None:
            self._limits.add(full.domain[0])
        return full is None

    def _begin(self, node: str, name: str) -> None:
        ends_s = max(self._at_s, self._free_s[node]) + self._typical.node_s(self._loads[node].disturbance)
        self._budget.count(node, out=True)
        self._already_out -= {node}
        wave = self._waves.setdefault(name, _Wave(self._at_s))
        wave.begin(node, ends_s)
        heapq.heappush(self._under_way, (ends_s, node, name))

    def _finish_next(self) -> None:
        next_s = self._under_way[0][0]
        if self._main_from_s is not None and self._at_s < self._main_from_s < next_s and self._queue:
            self._at_s = self._main_from_s
            return
        self._at_s, node, name = heapq.heappop(self._under_way)
        self._waves[name].out -= 1
        self._budget.count(node, out=False)
        canaries_over = name == CANARY and not self._canaries_left and not self._waves[CANARY].out
        if canaries_over and self._main_from_s is None:
            self._main_from_s = self._at_s + self._soak_s


class _Wave:
    def __init__(self, begins_s: float) -> None:
        self.nodes: list[str] = []
        self.begins_s = begins_s
        self.ends_s = begins_s
        self.out = 0
        self.out_at_once = 0
        self.limited_by: set[str] = set()

    def begin(self, node: str, ends_s: float) -> None:
        self.nodes.append(node)
        self.ends_s = max(self.ends_s, ends_s)
        self.out += 1
        self.out_at_once = max(self.out_at_once, self.out)

    def result(self) -> WaveForecast:
        kinds = tuple(sorted(self.limited_by, key=lambda kind: (kind != FLEET[0], kind)))
        return WaveForecast(tuple(self.nodes), self.ends_s - self.begins_s, self.out_at_once, kinds)
