"""Changes nodes through Ansible: nodes that become ready together share a run, and each is answered for itself."""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fleetctl.adapters.ansible_events import NodeStory, RunStory
from fleetctl.adapters.ansible_log import NodeLog, line_of
from fleetctl.adapters.ansible_run import AnsibleSettings, RunOrder, run_playbook
from fleetctl.adapters.nodes import LEASE_PROGRAM
from fleetctl.model.fleet import Json, Node
from fleetctl.model.node_facts import Lease
from fleetctl.model.secret import scrub, secrets_in
from fleetctl.ports import Applied, Change

WINDOW_S = 0.5
"""Starting a run costs more than a second of CPU: the first node waits this long for others."""
NODES_PER_RUN = 64
RESCUE_S = 3.0
"""A failed task may be in a block with a rescue, whose first task then starts within moments."""


class AnsibleChanger:
    """ports.Changer. `roles` gives the role of each component, by which the playbooks know its closure."""

    def __init__(self, settings: AnsibleSettings, roles: Mapping[str, str]) -> None:
        self._settings = settings
        self._roles = dict(roles)
        self._waiting: dict[str, _Batch] = {}
        self._runs: set[_Run] = set()

    async def preflight(self, node: Node, change: Change, lease: Lease) -> Applied:
        return await self._join("preflight.yml", node, change, lease)

    async def apply(self, node: Node, change: Change, lease: Lease) -> Applied:
        return await self._join("apply.yml", node, change, lease)

    async def _join(self, playbook: str, node: Node, change: Change, lease: Lease) -> Applied:
        """Take part in the next run for an equal change. Cancelled: the run goes on for the others."""
        loop = asyncio.get_running_loop()
        terms = [playbook, change.components, change.course, dict(change.variables), change.needs_way_back]
        terms += [lease.rollout, lease.epoch]
        key = json.dumps(terms, sort_keys=True, default=str)
        batch = self._waiting.get(key)
        if batch is None or node.name in batch.members or len(batch.members) >= NODES_PER_RUN:
            batch = self._waiting[key] = _Batch(playbook, change, lease)
            loop.call_later(WINDOW_S, self._launch, key, batch)
        member = batch.members[node.name] = _Member(node, change, loop.create_future())
        return await member.answer

    def _launch(self, key: str, batch: _Batch) -> None:
        if self._waiting.get(key) is batch:
            del self._waiting[key]
        members = {name: member for name, member in batch.members.items() if not member.answer.done()}
        if not members:
            return  # all were cancelled before it began
        run = _Run(self._settings, self._order(batch, members), members, asyncio.get_running_loop())
        self._runs.add(run)
        run.start(when_over=self._runs.discard)

    def _order(self, batch: _Batch, members: Mapping[str, _Member]) -> RunOrder:
        change, lease = batch.change, batch.lease
        return RunOrder(
            playbook=batch.playbook,
            nodes=tuple(member.node for member in members.values()),
            extra_vars={
                **change.variables,
                "fleetctl_components": list(change.components),
                "fleetctl_course": str(change.course),
                "fleetctl_needs_way_back": change.needs_way_back,
                "fleetctl_closures": {name: self._closures(member.change) for name, member in members.items()},
            },
            rollout=lease.rollout,
            epoch=lease.epoch,
            become=f"sudo -n python3 {LEASE_PROGRAM} exec {shlex.quote(lease.rollout)} {lease.epoch:d} -- sudo",
        )

    def _closures(self, change: Change) -> dict[str, Json]:
        return {
            self._roles[component]: {**asdict(closure), "held": list(closure.held)}
            for component, closure in change.closures.items()
            if component in self._roles
        }


@dataclass(slots=True, eq=False)
class _Member:
    node: Node
    change: Change
    answer: asyncio.Future[Applied]


@dataclass(slots=True, eq=False)
class _Batch:
    playbook: str
    change: Change
    lease: Lease
    members: dict[str, _Member] = field(default_factory=dict)


class _Run:
    """One run under way. Its thread only hands events over; everything is decided on the loop."""

    def __init__(
        self,
        settings: AnsibleSettings,
        order: RunOrder,
        members: Mapping[str, _Member],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings = settings
        self._order = order
        self._members = members
        self._loop = loop
        self._story = RunStory.of(members)
        self._rescues: dict[str, asyncio.TimerHandle] = {}
        self._secrets = {name: secrets_in(member.node.variables) for name, member in members.items()}
        self._logs = {
            name: NodeLog(settings.state_directory, order.rollout, name, secrets)
            for name, secrets in self._secrets.items()
        }

    def start(self, when_over: Any) -> None:
        def work() -> None:
            try:
                why = run_playbook(self._order, self._settings, self._hand_over, self._is_cancelled)
            except Exception as error:  # noqa: BLE001  # the run is lost, whatever the reason: its nodes are unknown
                why = f"the run was lost: {type(error).__name__}: {error}"
            self._on_loop(self._end, why, when_over)

        # A daemon: a controller that leaves at once must not wait for the run; it is found again as an orphan.
        threading.Thread(target=work, name=f"ansible {self._order.playbook}", daemon=True).start()

    # --- in the run's thread

    def _hand_over(self, event: Mapping[str, Any]) -> None:
        log = self._logs.get((event.get("event_data") or {}).get("host", ""))
        if log is not None:
            log.append(line_of(event))
        self._on_loop(self._fold, event)

    def _is_cancelled(self) -> bool:
        """True once nobody waits for any node that is not finished: ending it for one would end it for all."""
        answers = [member.answer for member in self._members.values()]
        return all(answer.done() for answer in answers) and any(answer.cancelled() for answer in answers)

    def _on_loop(self, act: Any, *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act, *arguments)

    # --- on the loop

    def _fold(self, event: Mapping[str, Any]) -> None:
        for node in self._story.fold(event):
            self._settle(node)

    def _settle(self, node: NodeStory) -> None:
        if node.verdict is not None:
            self._answer(node.name, node.verdict)
        elif node.failed is not None and node.name not in self._rescues:
            self._rescues[node.name] = self._loop.call_later(RESCUE_S, self._give_up, node)
        elif node.failed is None and node.name in self._rescues:
            self._rescues.pop(node.name).cancel()

    def _give_up(self, node: NodeStory) -> None:
        """No rescue came: the node has failed, however long the others take."""
        if node.failed is not None and node.verdict is None:
            node.verdict = node.failed
            self._answer(node.name, node.verdict)

    def _answer(self, name: str, verdict: Applied) -> None:
        answer = self._members[name].answer
        if not answer.done():
            secrets = self._secrets[name]
            clean = replace(verdict, reason=scrub(verdict.reason, secrets), signature=scrub(verdict.signature, secrets))
            answer.set_result(clean)

    def _end(self, why: str, when_over: Any) -> None:
        for timer in self._rescues.values():
            timer.cancel()
        for node in self._story.conclude(why):
            assert node.verdict is not None
            self._answer(node.name, node.verdict)
        when_over(self)
