"""Reads a fleet: one probe of each chosen node and one snapshot of the scheduler, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleetctl.errors import InventoryError
from fleetctl.flows.acts.view import View
from fleetctl.model.drift import Disturbance
from fleetctl.model.fleet import Json, Node
from fleetctl.model.node_facts import NodeFacts, RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown
from fleetctl.model.survey import Observation, Survey
from fleetctl.model.work import Work
from fleetctl.ports import Component, Nodes, Scheduler

Progress = Callable[[int, int], None]
"""Told how many nodes have answered, of how many."""

DEADLINE_S = 300.0
"""After this long what is known is reported, and the rest is named."""
AT_ONCE = 256
"""Probes under way; the SSH adapter has its own, lower limit of connections."""
_CANCEL_S = 5.0


@dataclass(frozen=True, slots=True)
class Lookout:
    """What looking at nodes takes: the port, the components in their order, and what is overridden."""

    nodes: Nodes
    components: tuple[Component, ...]
    read_node_facts: Callable[[RawFacts], NodeFacts]
    overrides: Mapping[str, Json]

    def declared(self, node: Node) -> dict[str, Any]:
        """By component, what is declared for the node; InventoryError names the node."""
        variables = {**node.variables, **self.overrides}
        found = {}
        for component in self.components:
            try:
                value = component.declared(variables)
            except InventoryError as exc:
                # A value that came with the command is wrong for every node alike.
                where = "--to" if str(exc).startswith(tuple(self.overrides)) else node.name
                raise InventoryError(f"{where}: {exc}") from exc
            if value is not None:
                found[component.name] = value
        return found

    async def look(self, node: Node, declared: Mapping[str, Any]) -> Reading[Observation]:
        """Probe one node and let its components judge it."""
        raw = await self.nodes.probe(node)
        return raw.map(lambda facts: self._judge(declared, facts))

    def _judge(self, declared: Mapping[str, Any], raw: RawFacts) -> Observation:
        components = tuple(component for component in self.components if component.name in declared)
        view = View(
            facts=self.read_node_facts(raw),
            observed={component.name: component.observed(raw) for component in components},
            declared=declared,
            components=components,
        )
        return Observation(
            facts=view.facts,
            declared={name: str(value) for name, value in declared.items()},
            found={component.name: component.summary(view.observed[component.name]) for component in components},
            drifts=view.drifts,
            to_change=view.to_change,
            troubles=view.troubles,
            unread=view.unread,
            refusals=view.refusals,
            closures=view.closures,
            disturbance=view.learnt.disturbance or Disturbance.NONE,
        )


async def observe(
    lookout: Lookout,
    chosen: Sequence[Node],
    scheduler: Scheduler | None = None,
    fleet: Iterable[Node] = (),
    *,
    now: datetime,
    deadline_s: float = DEADLINE_S,
    progress: Progress = lambda _done, _total: None,
) -> Survey:
    """Read the chosen nodes, and of the scheduler all of `fleet`. A node that does not answer is data.

    `now` is the time at which it begins: nothing of what happens later is in the survey for sure.
    """
    declared = {node.name: lookout.declared(node) for node in chosen}
    snapshot = asyncio.ensure_future(_snapshot(scheduler, fleet, deadline_s))
    observed = await _probe(lookout, chosen, declared, deadline_s, progress)
    return Survey(
        read_at=now,
        components=tuple(component.name for component in lookout.components),
        observed=observed,
        work=await snapshot,
    )


async def _snapshot(
    scheduler: Scheduler | None, fleet: Iterable[Node], deadline_s: float
) -> Reading[Mapping[str, Work]]:
    if scheduler is None:
        return unknown("the scheduler was not asked")
    try:
        async with asyncio.timeout(deadline_s):
            seen = await scheduler.snapshot()
    except TimeoutError:
        return unknown(f"no answer within {deadline_s:g} s")
    return seen.map(
        lambda work: {node.name: work[node.scheduler_name] for node in fleet if node.scheduler_name in work}
    )


async def _probe(
    lookout: Lookout,
    chosen: Sequence[Node],
    declared: Mapping[str, Mapping[str, Any]],
    deadline_s: float,
    progress: Progress,
) -> dict[str, Reading[Observation]]:
    found: dict[str, Reading[Observation]] = {
        node.name: unknown(f"not read within {deadline_s:g} s")
        if declared[node.name]
        else not_applicable(f"nothing is declared for {', '.join(c.name for c in lookout.components)}")
        for node in chosen
    }
    asked = [node for node in chosen if declared[node.name]]
    slots = asyncio.Semaphore(AT_ONCE)
    answered = 0

    async def look(node: Node) -> None:
        nonlocal answered
        async with slots:
            try:
                found[node.name] = await lookout.look(node, declared[node.name])
            except Exception as error:  # noqa: BLE001  a fault of ours in one node's facts must not hide the others
                found[node.name] = unknown(f"unexpected {type(error).__name__}: {error}")
        answered += 1
        progress(answered, len(asked))

    progress(0, len(asked))
    tasks = [asyncio.ensure_future(look(node)) for node in asked]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=deadline_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_S)
    return found
