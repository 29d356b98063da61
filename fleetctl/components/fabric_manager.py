"""Fabric manager, which sets up the NVLink switches. It works only with the driver of its own build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.components import truths
from fleetctl.components.driver import closure_of, read_version
from fleetctl.components.driver_packages import fabric_manager_set, is_of_version
from fleetctl.components.driver_state import DriverDeclared
from fleetctl.components.truths import unknown_drift
from fleetctl.errors import InventoryError
from fleetctl.model.drift import Cause, Disturbance, Drift, Refusal, Severity
from fleetctl.model.fleet import HostVars, Json
from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading
from fleetctl.model.rollout import Closure
from fleetctl.model.versions import upstream_of
from fleetctl.parse import dpkg, fabric_manager, nvidia_smi, pci, rpm, systemd
from fleetctl.parse.fabric_manager import FabricLog
from fleetctl.parse.packages import Package
from fleetctl.parse.systemd import Unit

_ROLE = "drain, run the role"


@dataclass(frozen=True, slots=True)
class FabricManagerDeclared:
    """`enabled`: "auto" where the node itself shows whether it has NVLink switches."""

    version: str
    enabled: str

    def __str__(self) -> str:
        return self.version


@dataclass(frozen=True, slots=True)
class FabricManagerObserved:
    has_fabric: Reading[bool]
    packages: Reading[tuple[Package, ...]]
    binary: Reading[str]
    unit: Reading[Unit]
    log: Reading[FabricLog]
    smi: nvidia_smi.Smi


@dataclass(frozen=True, slots=True)
class FabricManager:
    name: str = "fabric_manager"
    role: str = "nvidia_fabric_manager"
    requires: frozenset[str] = frozenset({"driver"})
    moves_with: frozenset[str] = frozenset()

    def declared(self, host_vars: HostVars) -> FabricManagerDeclared | None:
        """None where it is switched off, or where neither its version nor the driver's is declared."""
        enabled = _read_enabled(host_vars.get("nvidia_fabric_manager_enabled", "auto"))
        name = "nvidia_fabric_manager_version" if host_vars.get("nvidia_fabric_manager_version") else ""
        name = name or "nvidia_driver_version"
        if enabled == "false" or host_vars.get(name) in (None, ""):
            return None
        if host_vars.get("nvidia_driver_owner") == "operator":
            return None
        return FabricManagerDeclared(read_version(name, host_vars[name]), enabled)

    def observed(self, raw: RawFacts) -> FabricManagerObserved:
        packages = dpkg.read_packages(raw)
        if packages.kind == "not_applicable":
            packages = rpm.read_packages(raw)
        names = fabric_manager_set()
        return FabricManagerObserved(
            has_fabric=pci.read_has_nvlink_fabric(raw),
            packages=packages.map(
                lambda every: tuple(found for found in every if names.match(found.name) and found.state != "absent")
            ),
            binary=fabric_manager.read_version(raw),
            unit=systemd.read_unit(raw, "nvidia-fabricmanager.service"),
            log=fabric_manager.read_log(raw),
            smi=nvidia_smi.read_smi(raw),
        )

    def compare(self, declared: FabricManagerDeclared, observed: FabricManagerObserved) -> tuple[Drift, ...]:
        if declared.enabled == "auto":
            if not observed.has_fabric.is_known:
                return (unknown_drift(self.name, truths.SERVICE, "as the hardware needs", observed.has_fabric),)
            if not observed.has_fabric.get():
                return tuple(self._without_switches(observed)) + tuple(self._fabric(observed, expected=False))
        return (
            *self._versions(declared, observed),
            *self._service(observed),
            *self._fabric(observed, expected=True),
        )

    def _drift(
        self,
        truth: str,
        declared: str,
        observed: str,
        disturbance: Disturbance,
        remedy: str,
        severity: Severity = "error",
        cause: Cause = "version",
    ) -> Drift:
        return Drift(self.name, truth, declared, observed, disturbance, severity, remedy, cause=cause)

    def _without_switches(self, observed: FabricManagerObserved) -> Iterator[Drift]:
        if observed.unit.value and observed.unit.value.active == "failed":
            shown = "installed and failing on a node without NVLink switches"
            yield self._drift(truths.SERVICE, "none", shown, Disturbance.NONE, "remove or mask it", "warning")

    def _versions(self, declared: FabricManagerDeclared, observed: FabricManagerObserved) -> Iterator[Drift]:
        if not observed.packages.is_known:
            yield unknown_drift(self.name, truths.PACKAGED, declared.version, observed.packages)
        else:
            yield from self._packaged(declared, observed.packages.get())
        if observed.binary.kind == "unknown":
            yield unknown_drift(self.name, truths.BINARY, declared.version, observed.binary)
        elif observed.binary.value != declared.version:
            shown = observed.binary.value or "none"
            yield self._drift(truths.BINARY, declared.version, shown, Disturbance.DRAIN, _ROLE)

    def _packaged(self, declared: FabricManagerDeclared, packages: tuple[Package, ...]) -> Iterator[Drift]:
        broken = [f"{package.name} {package.state}" for package in packages if not package.is_installed]
        if broken:
            step = "finish the broken packages by hand, then run the role"
            yield self._drift(truths.PACKAGE_STATE, "installed", ", ".join(broken), Disturbance.DRAIN, step)
        other = [package for package in packages if not is_of_version(package, declared.version)]
        if other or not packages:
            shown = ", ".join(f"{package.name} {package.version}" for package in other) or "none"
            yield self._drift(truths.PACKAGED, declared.version, shown, Disturbance.DRAIN, _ROLE)
        unheld = [package.name for package in packages if not package.is_held]
        if unheld:
            step = "hold missing: run the role"
            shown = f"{', '.join(unheld)} not held"
            yield self._drift(truths.HELD, "held", shown, Disturbance.NONE, step, "warning")

    def _service(self, observed: FabricManagerObserved) -> Iterator[Drift]:
        if observed.unit.kind == "unknown":
            yield unknown_drift(self.name, truths.SERVICE, "running and enabled", observed.unit)
            return
        log = observed.log.value
        if log is not None and log.is_mismatch and not (observed.unit.value and observed.unit.value.is_running):
            shown = f"refuses driver {log.driver_version}: it is {log.fabric_version}"
            step = "bring both to one build, drain and reboot"
            yield self._drift(truths.SERVICE, "running", shown, Disturbance.REBOOT, step)
            return
        unit = observed.unit.value
        if unit is None or not unit.is_running or not unit.is_enabled:
            shown = "no such unit" if unit is None else f"{unit}, {unit.enabled or 'not enabled'}"
            step = "drain, start it, see its journal"
            yield self._drift(truths.SERVICE, "running and enabled", shown, Disturbance.DRAIN, step)

    def _fabric(self, observed: FabricManagerObserved, expected: bool) -> Iterator[Drift]:
        """A running service is not enough: every GPU must have joined the fabric."""
        for gpu in observed.smi.gpus.value or ():
            state, status = gpu.fabric_state, gpu.fabric_status
            if state.kind == "not_applicable" and not expected:
                continue
            # Without switches of its own a node may have no fabric, or one whose manager runs elsewhere (NVL72).
            if not expected and state.value == "Not Started":
                continue
            if state.value == "Completed" and status.value == "Success":
                continue
            shown = f"{gpu.label}: state {state.value or state.reason}, status {status.value or status.reason}"
            step = "wait; then see the journal of nvidia-fabricmanager"
            yield self._drift(truths.FABRIC, "Completed, Success", shown, Disturbance.DRAIN, step, cause="health")

    def refusals(self, declared: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[Refusal, ...]:  # noqa: ARG002
        wanted, driver = declared.get(self.name), declared.get("driver")
        if not isinstance(wanted, FabricManagerDeclared) or not isinstance(driver, DriverDeclared):
            return ()
        if wanted.version == driver.version:
            return ()
        return (
            Refusal(
                self.name,
                f"fabric manager {wanted.version} refuses driver {driver.version}: they must be of one build",
                "leave nvidia_fabric_manager_version out, or set it to nvidia_driver_version",
            ),
        )

    def closure(self, observed: FabricManagerObserved) -> Closure:
        packages = observed.packages.value or ()
        if not packages or not all(package.is_installed for package in packages):
            return Closure()
        version = observed.binary.value or upstream_of(packages[0].version)
        variables: dict[str, Json] = {"nvidia_fabric_manager_version": version}
        return closure_of(packages, variables)

    def blocks_restart(self, declared: FabricManagerDeclared, observed: FabricManagerObserved) -> str:  # noqa: ARG002
        broken = [package for package in observed.packages.value or () if not package.is_installed]
        return f"half-configured: {broken[0].name} {broken[0].state}" if broken else ""

    def summary(self, observed: FabricManagerObserved) -> str:
        if observed.binary.is_known:
            return observed.binary.get()
        return "none" if observed.binary.kind == "not_applicable" else "unknown"


def _read_enabled(value: Json) -> str:
    text = str(value).lower()
    if text not in ("auto", "true", "false"):
        raise InventoryError(f"nvidia_fabric_manager_enabled: {value!r} is none of auto, true, false")
    return text
