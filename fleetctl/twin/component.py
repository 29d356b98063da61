"""One thing that has a version in the twin: a driver with what is packaged, on disk and loaded, kept apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleetctl.model.drift import Disturbance, Drift, Refusal
from fleetctl.model.fleet import HostVars
from fleetctl.model.node_facts import Identity, Lease, NodeFacts, RawFacts
from fleetctl.model.reading import not_applicable, value_of
from fleetctl.model.rollout import Closure

VERSION = "nvidia_driver_version"


@dataclass(frozen=True, slots=True)
class TwinObserved:
    installed: str
    on_disk: str
    loaded: str


class TwinDriver:
    """Implements ports.Component over the twin's own facts."""

    name = "driver"
    role = "nvidia_driver"
    requires: frozenset[str] = frozenset()
    moves_with: frozenset[str] = frozenset()

    def declared(self, host_vars: HostVars) -> str | None:
        return host_vars.get(VERSION)

    def observed(self, raw: RawFacts) -> TwinObserved:
        return TwinObserved(raw["installed"], raw["on_disk"], raw["loaded"])

    def compare(self, declared: str, observed: TwinObserved) -> tuple[Drift, ...]:
        truths = (("packaged", observed.installed), ("on_disk", observed.on_disk), ("loaded", observed.loaded))
        return tuple(
            Drift(self.name, truth, declared, found or "nothing", Disturbance.REBOOT)
            for truth, found in truths
            if found != declared
        )

    def refusals(self, declared: Mapping[str, str], observed: Mapping[str, TwinObserved]) -> tuple[Refusal, ...]:
        del declared, observed
        return ()

    def closure(self, observed: TwinObserved) -> Closure:
        return Closure({"driver": observed.installed}, ("driver",), {VERSION: observed.installed})

    def blocks_restart(self, declared: str, observed: TwinObserved) -> str:
        return "" if observed.on_disk == declared else f"module missing for the next boot's kernel: {declared}"

    def summary(self, observed: TwinObserved) -> str:
        return observed.loaded


def read_node_facts(raw: RawFacts) -> NodeFacts:
    """The twin's facts in the words of the model."""
    lease = raw["lease"]
    return NodeFacts(
        identity=value_of(Identity(machine_id=raw["machine_id"])),
        boot_id=value_of(raw["boot_id"]),
        work_processes=value_of(tuple(f"slurmstepd ({job})" for job in raw["jobs"])),
        package_processes=value_of(("dpkg (1)",) if raw["change_under_way"] else ()),
        broken_packages=value_of(("nvidia-kernel-open-dkms",) if raw["half_configured"] else ()),
        lease=value_of(Lease(*lease)) if lease else not_applicable("no lease"),
        kept_packages=value_of({}),
    )
