"""The ports of the flows, on the simulated world. Each answer takes time, and what it says may be old by then."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from fleetctl.model.fleet import Json, Node
from fleetctl.model.mark import Mark, read_mark
from fleetctl.model.node_facts import Lease, RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.rollout import Course
from fleetctl.model.work import Job, Work
from fleetctl.ports import Answer, Applied, Change, Verdict
from fleetctl.twin.component import VERSION
from fleetctl.twin.virtual_time import EPOCH
from fleetctl.twin.world import TwinNode, World


class TwinScheduler:
    """Implements ports.Scheduler."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_readable = True

    def _work(self, node: TwinNode) -> Work:
        states = {"DOWN" if node.down else ("ALLOCATED" if node.jobs else "IDLE")}
        if node.cordoned:
            states.add("DRAIN")
        if not node.is_up:
            states.add("NOT_RESPONDING")
        return Work(
            states=frozenset(states),
            cordoned=node.cordoned,
            empty=not node.jobs,
            registered=node.is_up,
            down=node.down,
            jobs=tuple(
                Job(job.id, "user", EPOCH + timedelta(seconds=job.limit_at_s), len(job.nodes))
                for job in node.jobs.values()
            ),
            reason=node.drain_reason,
            reason_by=node.reason_by,
        )

    async def _answers(self) -> bool:
        await asyncio.sleep(self._world.draw(self._world.durations.scheduler_s))
        return self.is_readable

    async def snapshot(self) -> Reading[Mapping[str, Work]]:
        seen = {name: self._work(node) for name, node in self._world.nodes.items()}
        if not await self._answers():
            return unknown("slurmctld does not answer")
        return value_of(seen)

    async def work(self, scheduler_name: str) -> Reading[Work]:
        if not await self._answers():
            return unknown("slurmctld does not answer")
        return value_of(self._work(self._world.nodes[scheduler_name]))

    async def drain(self, scheduler_name: str, mark: Mark, replaces: Mark | None = None) -> Answer:
        if not await self._answers():
            return Answer("unknown", "slurmctld does not answer")
        node = self._world.nodes[scheduler_name]
        found = read_mark(node.drain_reason)
        ours = {mark.token} | ({replaces.token} if replaces else set())
        if node.cordoned and (found is None or found.token not in ours):
            return Answer("foreign", f'drained by {node.reason_by}: "{node.drain_reason}"')
        before = node.cordoned, node.drain_reason
        node.cordoned, node.drain_reason, node.reason_by = True, str(mark), "fleetctl"
        self._world.laws.drained(node, str(mark), *before)
        return Answer("ok")

    async def undrain(self, scheduler_name: str, mark: Mark) -> Answer:
        if not await self._answers():
            return Answer("unknown", "slurmctld does not answer")
        node = self._world.nodes[scheduler_name]
        if not node.cordoned:
            return Answer("ok")
        found = read_mark(node.drain_reason)
        if found is None or found.token != mark.token:
            return Answer("foreign", f'drained by {node.reason_by}: "{node.drain_reason}"')
        if not node.is_up:
            return Answer("unknown", "not registered yet")
        self._world.laws.undrained(node)
        node.cordoned, node.drain_reason, node.reason_by, node.down = False, "", "", False
        return Answer("ok")


class TwinNodes:
    """Implements ports.Nodes."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def _reach(self, node: Node, takes_s: float) -> TwinNode | None:
        await asyncio.sleep(self._world.draw(takes_s))
        machine = self._world.nodes[node.name]
        return machine if machine.is_up else None

    async def probe(self, node: Node) -> Reading[RawFacts]:
        machine = await self._reach(node, self._world.durations.probe_s)
        if machine is None:
            return unknown("ssh: timeout")
        lease = machine.lease
        return value_of(
            {
                "installed": machine.installed,
                "on_disk": machine.on_disk,
                "loaded": machine.loaded,
                "boot_id": machine.boot_id,
                "machine_id": machine.machine_id,
                "jobs": sorted(machine.jobs),
                "change_under_way": machine.change_under_way,
                "half_configured": machine.half_configured,
                "lease": [lease.rollout, lease.controller, lease.epoch, lease.nonce] if lease else None,
            }
        )

    async def take_lease(self, node: Node, lease: Lease) -> Answer:
        machine = await self._reach(node, self._world.durations.ssh_s)
        if machine is None:
            return Answer("unknown", "ssh: timeout")
        held = machine.lease
        if held is not None and (held.rollout != lease.rollout or held.epoch > lease.epoch):
            return Answer("foreign", f"leased by rollout {held.rollout} of {held.controller}, epoch {held.epoch}")
        machine.lease = lease
        return Answer("ok")

    async def release_lease(self, node: Node, lease: Lease) -> Answer:
        machine = await self._reach(node, self._world.durations.ssh_s)
        if machine is None:
            return Answer("unknown", "ssh: timeout")
        held = machine.lease
        if held is not None and (held.rollout != lease.rollout or held.epoch > lease.epoch):
            return Answer("foreign", f"leased by rollout {held.rollout} of {held.controller}, epoch {held.epoch}")
        machine.lease = None
        return Answer("ok")

    async def boot_id(self, node: Node) -> Reading[str]:
        machine = await self._reach(node, self._world.durations.ssh_s)
        return value_of(machine.boot_id) if machine else unknown("ssh: timeout")

    async def restart(self, node: Node, lease: Lease) -> Answer:
        machine = await self._reach(node, self._world.durations.ssh_s)
        if machine is None:
            return Answer("unknown", "ssh: timeout")
        if machine.lease != lease:
            return Answer("foreign", "the lease is another controller's")
        self._world.restart(machine, lease)
        return Answer("ok")

    async def lost_packages(self, node: Node, packages: Mapping[str, Mapping[str, str]]) -> Reading[tuple[str, ...]]:
        machine = await self._reach(node, self._world.durations.probe_s)
        if machine is None:
            return unknown("ssh: timeout")
        asked = [item for closure in packages.values() for item in closure.items()]
        return value_of(tuple(f"{name}={version}" for name, version in asked if version in self._world.withdrawn))

    async def power_cycle(self, node: Node, command: Sequence[str]) -> Answer:
        del command
        await asyncio.sleep(self._world.draw(self._world.durations.ssh_s))
        machine = self._world.nodes[node.name]
        machine.fault = "none" if machine.fault == "reboot_hangs" else machine.fault
        self._world.restart(machine, None)
        return Answer("ok")


class TwinChanger:
    """Implements ports.Changer. A change goes on in the world though its caller is gone."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def preflight(self, node: Node, change: Change, lease: Lease) -> Applied:
        del lease
        await asyncio.sleep(self._world.draw(self._world.durations.preflight_s))
        machine = self._world.nodes[node.name]
        if not machine.is_up:
            return Applied("unknown", "ssh: timeout")
        if machine.has_fault("preflight_blocked"):
            return Applied("blocked", "apt would refuse the change", "apt would refuse the change")
        if change.course is Course.FORWARD and change.needs_way_back and machine.installed in self._world.withdrawn:
            reason = f"no way back: driver={machine.installed} is in no repository"
            return Applied("blocked", reason, reason)
        return Applied("ok")

    async def apply(self, node: Node, change: Change, lease: Lease) -> Applied:
        machine = self._world.nodes[node.name]
        if not machine.is_up:
            return Applied("unknown", "ssh: timeout")
        if machine.lease != lease:
            return Applied("failed", "the lease is another controller's")
        version = {**node.variables, **change.variables}[VERSION]
        if change.course is Course.BACK:
            version = change.closures["driver"].packages["driver"]
        failure = await asyncio.shield(self._world.start_change(machine, version, lease))
        if failure:
            return Applied("failed", failure, failure, changed=True)
        return Applied("ok", changed=True, reboot_required=machine.loaded != version)


class TwinVerifier:
    """Implements ports.Verifier: tells the truth, late."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def verify(
        self, node: Node, components: Sequence[str], declared: Mapping[str, Json], *, passive: bool
    ) -> Verdict:
        del components
        await asyncio.sleep(self._world.draw(self._world.durations.verify_s))
        machine = self._world.nodes[node.name]
        if not machine.is_up:
            return Verdict(unknown="ssh: timeout")
        failures = self._world.is_well(machine, declared[VERSION])
        self._world.laws.verified(machine, failures, passive)
        return Verdict(passed=11 - len(failures), failures=tuple(failures))


class TwinNotifier:
    """Implements ports.Notifier; remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    async def notify(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        self.told.append((*command, environment["FLEETCTL_NODE"]))
        return ""
