"""The NVIDIA driver: kernel module, libraries and tools of one build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.components import driver_drift, driver_packages
from fleetctl.components.driver_state import DriverDeclared, DriverObserved
from fleetctl.components.gpu_generations import FIRST_OPEN_ONLY_BRANCH, generations_on
from fleetctl.errors import InventoryError
from fleetctl.model.drift import Drift, Refusal
from fleetctl.model.fleet import HostVars, Json
from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import unknown
from fleetctl.model.rollout import Closure
from fleetctl.model.versions import branch_of, upstream_of
from fleetctl.parse import (
    boot,
    dkms,
    dpkg,
    host,
    kernel_log,
    kernels,
    loaded_modules,
    nvidia_smi,
    pci,
    proc_version,
    rpm,
    signing_keys,
    systemd,
)
from fleetctl.parse.packages import Package

_VERSION = re.compile(r"\d{3}\.\d{1,3}(?:\.\d{1,3})?\Z")


def read_version(name: str, value: Json) -> str:
    """A declared upstream version. Raises InventoryError for anything but text of that form."""
    if not isinstance(value, str):
        raise InventoryError(f'{name}: {value!r} is not text; write it in quotes: {name}: "580.95.05"')
    if not _VERSION.match(value):
        raise InventoryError(f'{name}: "{value}" is not an exact driver version such as "580.95.05"')
    return value


def read_choice(name: str, value: Json, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InventoryError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return str(value)


def read_modules(value: Json) -> tuple[str, ...]:
    """nvidia_driver_load_modules. Raises InventoryError for another module than the role can answer for."""
    name = "nvidia_driver_load_modules"
    if not isinstance(value, list):
        raise InventoryError(f"{name}: {value!r} is not a list; write {name}: [nvidia-peermem]")
    return tuple(read_choice(name, module, loaded_modules.LOADABLE) for module in value)


@dataclass(frozen=True, slots=True)
class Driver:
    name: str = "driver"
    role: str = "nvidia_driver"
    requires: frozenset[str] = frozenset()
    moves_with: frozenset[str] = frozenset({"fabric_manager"})

    def declared(self, host_vars: HostVars) -> DriverDeclared | None:
        """None where no version is declared."""
        version = host_vars.get("nvidia_driver_version")
        if version in (None, ""):
            return None
        count = host_vars.get("nvidia_driver_gpu_count")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise InventoryError(f"nvidia_driver_gpu_count: {count!r} is not a number of GPUs; leave it out if unknown")
        return DriverDeclared(
            version=read_version("nvidia_driver_version", version),
            flavour=self._choice(host_vars, "flavour", ("open", "proprietary")),
            source=self._choice(host_vars, "source", ("nvidia", "distribution")),
            owner=self._choice(host_vars, "owner", ("host", "operator")),
            gpu_count=count,
            load_modules=read_modules(host_vars.get("nvidia_driver_load_modules", [])),
        )

    @staticmethod
    def _choice(host_vars: HostVars, field: str, choices: tuple[str, ...]) -> str:
        """The first choice is the role's default."""
        name = f"nvidia_driver_{field}"
        return read_choice(name, host_vars.get(name, choices[0]), choices)

    def observed(self, raw: RawFacts) -> DriverObserved:
        family = host.read_family(raw)
        packages = dpkg.read_packages(raw)
        if packages.kind == "not_applicable":
            packages = rpm.read_packages(raw)
        names = driver_packages.driver_set(family.value or "debian", driver_packages.source_of(packages.value or ()))
        found = packages.map(
            lambda every: tuple(package for package in every if names.match(package.name) and package.state != "absent")
        )
        next_boot = boot.read_next_boot(raw)
        kernel = kernels.kernel_to_boot(raw, next_boot)
        on_disk = kernels.read_kernel(raw, kernel.get()) if kernel.is_known else None
        unheld = tuple(package.name for package in found.value or () if not package.is_held)
        return DriverObserved(
            family=family,
            packages=found,
            next_boot=next_boot,
            kernel=kernel,
            on_disk=on_disk,
            loaded=proc_version.read_loaded(raw),
            modules=loaded_modules.read_loaded_modules(raw),
            smi=nvidia_smi.read_smi(raw),
            dkms=dkms.read_dkms(raw),
            bus=pci.read_pci(raw),
            log=kernel_log.read_kernel_log(raw),
            persistence=systemd.read_unit(raw, "nvidia-persistenced.service"),
            signature=signing_keys.read_signature(raw, on_disk.module if on_disk else unknown(kernel.reason)),
            moved_by=host.read_automatic_upgrades(raw, unheld or ("nvidia-driver", "libnvidia-compute")),
        )

    def compare(self, declared: DriverDeclared, observed: DriverObserved) -> tuple[Drift, ...]:
        return driver_drift.compare(declared, observed)

    def refusals(self, declared: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[Refusal, ...]:
        wanted, found = declared.get(self.name), observed.get(self.name)
        if not isinstance(wanted, DriverDeclared) or not isinstance(found, DriverObserved):
            return ()
        return tuple(Refusal(self.name, reason, step) for reason, step in self._refuse(wanted, found))

    def _refuse(self, wanted: DriverDeclared, found: DriverObserved) -> list[tuple[str, str]]:
        if wanted.owner == "operator":
            step = "change the version in the operator's ClusterPolicy, or set nvidia_driver_owner: host"
            return [("the GPU operator owns this node's driver", step)]
        refused = []
        branch = int(branch_of(wanted.version))
        for generation in generations_on(found.bus.value, found.smi.gpus.value or ()):
            if wanted.flavour == "open" and not generation.takes_open:
                reason = f"the open kernel module does not drive {generation.name} GPUs"
                refused.append((reason, "set nvidia_driver_flavour: proprietary"))
            if wanted.flavour == "proprietary" and not generation.takes_proprietary:
                reason = f"the proprietary kernel module does not drive {generation.name} GPUs"
                refused.append((reason, "set nvidia_driver_flavour: open"))
            if generation.last_branch is not None and branch > generation.last_branch:
                reason = f"branch {branch} does not drive {generation.name} GPUs"
                refused.append((reason, f"declare a version of branch {generation.last_branch} or older"))
        if wanted.flavour == "proprietary" and branch >= FIRST_OPEN_ONLY_BRANCH:
            refused.append((f"branch {branch} has no proprietary kernel module", "set nvidia_driver_flavour: open"))
        if found.on_disk is not None and found.needs_build and found.on_disk.has_headers.value is False:
            kernel = found.on_disk.kernel
            refused.append(
                (f"no kernel headers for {kernel}, which the next boot starts", f"install the headers of {kernel}")
            )
        return refused

    def closure(self, observed: DriverObserved) -> Closure:
        """Empty where the packages are not known or not whole: then there is no way back here."""
        packages = observed.packages.value or ()
        if not packages or not all(package.is_installed for package in packages):
            return Closure()
        variables: dict[str, Json] = {"nvidia_driver_source": driver_packages.source_of(packages)}
        module = observed.on_disk.module.value if observed.on_disk else None
        if module is not None and module.flavour:
            variables |= {"nvidia_driver_version": module.version, "nvidia_driver_flavour": module.flavour}
        else:
            variables["nvidia_driver_version"] = max(upstream_of(package.version) for package in packages)
        return closure_of(packages, variables)

    def blocks_restart(self, declared: DriverDeclared, observed: DriverObserved) -> str:
        return driver_drift.blocks_restart(declared, observed)

    def summary(self, observed: DriverObserved) -> str:
        if observed.loaded.is_known:
            return f"{observed.loaded.get().version} ({observed.loaded.get().flavour})"
        if observed.loaded.kind == "unknown":
            return "unknown"
        module = observed.on_disk.module.value if observed.on_disk else None
        return f"{module.version} on disk, not loaded" if module else "none"


def closure_of(packages: tuple[Package, ...], variables: Mapping[str, Json]) -> Closure:
    """Name to version; a name that is installed for two architectures carries the architecture."""
    names = [package.name for package in packages]
    keys = {
        package: package.name if names.count(package.name) == 1 else f"{package.name}:{package.architecture}"
        for package in packages
    }
    return Closure(
        packages={keys[package]: package.version for package in packages},
        held=tuple(keys[package] for package in packages if package.is_held),
        variables=dict(variables),
    )
