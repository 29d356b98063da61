"""The simulated machines and their scheduler: plain truth, changed only by what happens, never by what is decided."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Literal
from uuid import UUID

from fleetctl.model.node_facts import Lease
from fleetctl.twin.laws import Laws
from fleetctl.twin.virtual_time import VirtualLoop

Fault = Literal[
    "none",
    "apply_fails",
    "module_missing",
    "reboot_hangs",
    "gpu_lost",
    "verify_fails",
    "preflight_blocked",
    "unreachable",
]


@dataclass(frozen=True, slots=True)
class Durations:
    """How long things take, in seconds; each is drawn between half and one and a half times."""

    probe_s: float = 2
    preflight_s: float = 30
    apply_s: float = 180
    reboot_s: float = 240
    verify_s: float = 40
    scheduler_s: float = 0.5
    ssh_s: float = 1


@dataclass(slots=True)
class TwinJob:
    id: str
    nodes: tuple[str, ...]
    limit_at_s: float


@dataclass(slots=True)
class TwinNode:
    """One machine. `installed` and `on_disk` are what a reboot will load; `loaded` changes only there."""

    name: str
    rack: str
    installed: str
    on_disk: str
    loaded: str
    boot_id: str
    machine_id: str
    fault: Fault = "none"
    fault_for: str = ""
    """The version that the fault belongs to; empty: any."""
    gpus: int = 8
    is_up: bool = True
    down: bool = False
    drain_reason: str = ""
    cordoned: bool = False
    reason_by: str = ""
    taken_out_at_s: float = float("-inf")
    """When somebody else took it out: a controller can't know of that before its next poll."""
    jobs: dict[str, TwinJob] = field(default_factory=dict)
    lease: Lease | None = None
    change_under_way: str = ""
    """What a package manager is doing here now."""
    half_configured: bool = False
    proven: bool = True
    """A verify has passed since the last thing that could break the node."""

    def has_fault(self, fault: Fault) -> bool:
        return self.fault == fault and self.fault_for in ("", self.installed)


class World:
    """All machines, the scheduler's book, and the record that the laws are judged from."""

    def __init__(self, loop: VirtualLoop, seed: int, durations: Durations, laws: Laws) -> None:
        self.loop = loop
        self.random = Random(seed)  # noqa: S311  a simulation must repeat, not be unguessable
        self.durations = durations
        self.laws = laws
        self.nodes: dict[str, TwinNode] = {}
        self.withdrawn: set[str] = set()
        """Versions that the repository of all machines no longer has."""
        self._last_job = 0

    def draw(self, typical_s: float) -> float:
        return typical_s * self.random.uniform(0.5, 1.5)

    def uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))

    def add(self, name: str, rack: str, version: str, fault: Fault = "none", fault_for: str = "") -> TwinNode:
        node = TwinNode(
            name, rack, version, version, version, self.uuid(), self.uuid().replace("-", ""), fault, fault_for
        )
        if fault == "unreachable":
            node.is_up = False
        self.nodes[name] = node
        return node

    # --- jobs

    def start_job(self, nodes: list[TwinNode], runs_s: float, limit_s: float | None = None) -> None:
        """A user's job begins; it ends by itself, at its limit at the latest."""
        self._last_job += 1
        limit = limit_s if limit_s is not None else runs_s * 2
        job = TwinJob(str(self._last_job), tuple(node.name for node in nodes), self.loop.time() + limit)
        for node in nodes:
            self.laws.job_started(node)
            node.jobs[job.id] = job
        self.loop.call_later(min(runs_s, limit), self._end_job, job)

    def _end_job(self, job: TwinJob) -> None:
        for name in job.nodes:
            self.nodes[name].jobs.pop(job.id, None)

    # --- what people do

    def admin_drains(self, name: str, reason: str) -> None:
        node = self.nodes[name]
        if node.cordoned:
            return  # Slurm drops a second drain's reason while a node is drained
        node.cordoned, node.drain_reason, node.reason_by = True, reason, "admin"
        node.taken_out_at_s = self.loop.time()

    def admin_resumes(self, name: str) -> None:
        node = self.nodes[name]
        node.cordoned, node.drain_reason, node.reason_by, node.down = False, "", "", False
        self.laws.resumed_by_admin(node)

    # --- what a change does to a machine, whoever watches it

    def start_change(self, node: TwinNode, version: str, lease: Lease) -> asyncio.Future[str]:
        """The roles begin on a node. They run on though their controller dies; the future holds why they failed."""
        self.laws.change_started(node, lease)
        node.change_under_way = version
        node.proven = False
        future: asyncio.Future[str] = self.loop.create_future()
        takes_s = self.draw(self.durations.apply_s)
        self.loop.call_later(takes_s / 2, self._half_way, node, version)
        self.loop.call_later(takes_s, self._end_change, node, version, future)
        return future

    def _half_way(self, node: TwinNode, version: str) -> None:
        node.installed = version
        node.half_configured = True

    def _end_change(self, node: TwinNode, version: str, future: asyncio.Future[str]) -> None:
        node.change_under_way = ""
        failure = ""
        if node.has_fault("apply_fails"):
            failure = "post-installation script of the kernel module package failed"
        else:
            node.half_configured = False
            node.on_disk = "" if node.has_fault("module_missing") else version
        self.laws.change_ended(node)
        if not future.done():
            future.set_result(failure)

    def restart(self, node: TwinNode, lease: Lease | None) -> None:
        """The machine goes down now, and comes back later with another boot id."""
        self.laws.restarted(node, lease)
        node.is_up = False
        node.down = True
        node.proven = False
        if node.has_fault("reboot_hangs") and lease is not None:
            return
        self.loop.call_later(self.draw(self.durations.reboot_s), self._booted, node)

    def _booted(self, node: TwinNode) -> None:
        node.is_up = True
        node.boot_id = self.uuid()
        node.loaded = node.on_disk
        node.gpus = 7 if node.has_fault("gpu_lost") else 8
        if not node.cordoned:
            node.down = False

    def is_well(self, node: TwinNode, version: str) -> list[str]:
        """What a true verify finds wrong, for the version that should run."""
        found = []
        if node.loaded != version or node.installed != version or node.on_disk != version:
            found.append(f"driver: {node.loaded} loaded, {node.installed} installed, not {version}")
        if node.has_fault("verify_fails"):
            found.append("cuda: cuInit returns 802")
        if node.gpus != 8:
            found.append(f"hardware: 8 on PCI, {node.gpus} in NVML")
        return found
