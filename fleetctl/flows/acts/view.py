"""What every act of one rollout works with: the ports, the terms of the rollout, and fresh views of a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetctl.model.drift import Disturbance, Drift, Refusal
from fleetctl.model.fleet import Json, Node
from fleetctl.model.mark import Mark
from fleetctl.model.node_facts import Lease, NodeFacts, RawFacts
from fleetctl.model.policy import RolloutPolicy
from fleetctl.model.reading import Reading
from fleetctl.model.record import NodeRecord, Owed
from fleetctl.model.rollout import Closure, Course, Learnt, Outcome, Result
from fleetctl.model.work import Work
from fleetctl.ports import Answer, Change, Changer, Component, Nodes, Notifier, Scheduler, Verifier


@dataclass(frozen=True, slots=True)
class World:
    """The ports that acts use."""

    scheduler: Scheduler
    nodes: Nodes
    changer: Changer
    verifier: Verifier
    notifier: Notifier


@dataclass(frozen=True, slots=True)
class Terms:
    """What this rollout is about, the same for all its acts."""

    fleet: Mapping[str, Node]
    components: tuple[Component, ...]
    """In dependency order."""
    overrides: Mapping[str, Json]
    mark: Mark
    lease: Lease
    policy: RolloutPolicy
    summary: str
    """What people read behind the mark: "driver 570.195.03 -> 580.95.05"."""
    targets: Mapping[str, Mapping[str, Closure]]
    """What an undo installs, exactly; its nodes declare the versions of it. Empty: what is declared."""
    adoptable: frozenset[str]
    """Rollouts that are over: what they left drained may be taken up."""
    read_node_facts: Callable[[RawFacts], NodeFacts]


@dataclass(frozen=True, slots=True)
class View:
    """One node, probed now."""

    facts: NodeFacts
    observed: Mapping[str, Any]
    declared: Mapping[str, Any]
    components: tuple[Component, ...]

    @property
    def drifts(self) -> tuple[Drift, ...]:
        """All differences, in the order of the components."""
        return tuple(
            drift
            for component in self.components
            if component.name in self.declared
            for drift in component.compare(self.declared[component.name], self.observed[component.name])
        )

    @property
    def to_change(self) -> tuple[Drift, ...]:
        """What the roles are to bring back; nothing of it: they need not run."""
        return tuple(
            drift
            for drift in self.drifts
            if drift.cause == "version" and drift.severity == "error" and not drift.is_unknown
        )

    @property
    def troubles(self) -> tuple[Drift, ...]:
        """What no run of the roles would cure."""
        return tuple(drift for drift in self.drifts if drift.cause != "version" and drift.severity == "error")

    @property
    def unread(self) -> tuple[Drift, ...]:
        return tuple(drift for drift in self.drifts if drift.is_unknown)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(
            refusal
            for component in self.components
            if component.name in self.declared
            for refusal in component.refusals(self.declared, self.observed)
        )

    @property
    def blocks_restart(self) -> str:
        reasons = (
            component.blocks_restart(self.declared[component.name], self.observed[component.name])
            for component in self.components
            if component.name in self.declared
        )
        return next((reason for reason in reasons if reason), "")

    @property
    def closures(self) -> dict[str, Closure]:
        """The way back, for every component that has anything installed."""
        found = {
            component.name: component.closure(self.observed[component.name])
            for component in self.components
            if component.name in self.declared
        }
        return {name: closure for name, closure in found.items() if closure.packages}

    @property
    def learnt(self) -> Learnt:
        """What later acts may rest on."""
        return Learnt(
            identity=self.facts.identity.value,
            boot_id=self.facts.boot_id.value,
            disturbance=max((drift.disturbance for drift in self.to_change), default=Disturbance.NONE),
        )


class Rollout:
    """The acts' common ground."""

    def __init__(self, world: World, terms: Terms) -> None:
        self.world = world
        self.terms = terms

    def node(self, owed: Owed) -> Node:
        return self.terms.fleet[owed.intent.node]

    async def work(self, node: Node) -> Reading[Work]:
        return await self.world.scheduler.work(node.scheduler_name)

    async def view(self, node: Node, record: NodeRecord) -> Reading[View]:
        """Probe the node; declared is what `record`'s course leads to."""
        raw = await self.world.nodes.probe(node)
        return raw.map(lambda facts: self._view(node, record, facts))

    async def look(self, node: Node, record: NodeRecord) -> tuple[Reading[Work], Reading[View]]:
        """The scheduler's word and the node's own, read side by side."""
        work, view = await asyncio.gather(self.work(node), self.view(node, record))
        return work, view

    def _view(self, node: Node, record: NodeRecord, raw: RawFacts) -> View:
        declared, variables = {}, self.variables(node, record)
        for component in self.terms.components:
            value = component.declared(variables)
            if value is not None:
                declared[component.name] = value
        return View(
            facts=self.terms.read_node_facts(raw),
            observed={component.name: component.observed(raw) for component in self.terms.components},
            declared=declared,
            components=self.terms.components,
        )

    def variables(self, node: Node, record: NodeRecord) -> dict[str, Json]:
        """What is declared for the node on its course: the new versions, or the recorded ones of every component."""
        if record.course is Course.FORWARD:
            return {**node.variables, **self.terms.overrides}
        recorded = [record.closures[c.name].variables for c in self.terms.components if c.name in record.closures]
        return {**node.variables, **{name: value for variables in recorded for name, value in variables.items()}}

    def change(self, record: NodeRecord) -> Change:
        """What the roles are to do on the node's course."""
        target = self.terms.targets.get(record.name)
        if target and record.course is Course.FORWARD:
            return Change(tuple(component.name for component in self.terms.components), Course.BACK, {}, target)
        return Change(
            components=tuple(component.name for component in self.terms.components),
            course=record.course,
            variables=self.terms.overrides if record.course is Course.FORWARD else {},
            closures=record.closures,
            needs_way_back=self.terms.policy.on_failed_verify == "roll_back",
        )

    async def hold_lease(self, node: Node, facts: NodeFacts) -> Answer:
        """Make sure that the node's lease is ours in this epoch; a controller that took over raises it here."""
        if facts.lease.value == self.terms.lease:
            return Answer("ok")
        return await self.world.nodes.take_lease(node, self.terms.lease)

    async def tell(self, hook: Sequence[str], owed: Owed) -> None:
        """Run a hook of the site. It never stops a node."""
        environment = {
            "FLEETCTL_NODE": owed.intent.node,
            "FLEETCTL_ROLLOUT": self.terms.mark.rollout,
            "FLEETCTL_REASON": owed.record.reason,
        }
        await self.world.notifier.notify(hook, environment)


def outcome(
    owed: Owed, result: Result, reason: str = "", *, signature: str = "", learnt: Learnt | None = None
) -> Outcome:
    return Outcome(owed.intent.id, owed.intent.node, owed.intent.act, result, reason, signature, learnt or Learnt())
