"""What of the observed driver is not as declared, one drift for each truth, and what forbids a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from fleetctl.components import truths
from fleetctl.components.driver_packages import is_of_version
from fleetctl.components.driver_state import DriverDeclared, DriverObserved
from fleetctl.components.truths import unknown_drift
from fleetctl.model.drift import Cause, Disturbance, Drift, Severity
from fleetctl.model.versions import is_prefix, upstream_of
from fleetctl.parse.nvidia_smi import Gpu, SmiFailure
from fleetctl.parse.packages import Package

_NAME = "driver"
_ROLE = "drain, run the role, reboot"
_REBOOT = "reboot pending: drain and reboot"

# Reports of an application's fault, not of the GPU's (NVIDIA, "XID Errors"): 13 graphics exception, 31 page fault,
# 43 the application was stopped, 45 clean-up after it, 94 contained memory error.
_APPLICATION_XIDS = frozenset({13, 31, 43, 45, 94})
# The GPU is lost or can't go on without a reset or a repair: 48 double bit error, 64 row remapping failed, 79 off the
# bus, 95 uncontained memory error, 119 and 120 GSP does not answer, 140 unrecovered memory error, 169 firmware.
_FATAL_XIDS = frozenset({48, 64, 79, 95, 119, 120, 140, 169})

Finder = Callable[[DriverDeclared, DriverObserved], Iterator[Drift]]


def compare(declared: DriverDeclared, observed: DriverObserved) -> tuple[Drift, ...]:
    """Every truth is looked at; one that could not be read is a drift of its own."""
    found = [drift for finder in _FINDERS for drift in finder(declared, observed)]
    return tuple(found)


def _drift(
    truth: str,
    declared: str,
    observed: str,
    disturbance: Disturbance,
    remedy: str,
    severity: Severity = "error",
    cause: Cause = "version",
) -> Drift:
    return Drift(_NAME, truth, declared, observed, disturbance, severity, remedy, cause=cause)


def _packaged(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    if not observed.packages.is_known:
        yield unknown_drift(_NAME, truths.PACKAGED, declared.version, observed.packages)
        return
    packages = observed.packages.get()
    broken = [f"{package.name} {package.state}" for package in packages if not package.is_installed]
    if broken:
        yield _drift(
            truths.PACKAGE_STATE,
            "installed",
            _some(broken),
            Disturbance.REBOOT,
            "finish the broken packages by hand (dpkg --configure -a), then run the role",
        )
    if declared.owner == "operator":
        if packages:
            step = "remove the host's driver packages, or set nvidia_driver_owner: host"
            yield _drift(truths.PACKAGED, "none on the host", _versions(packages), Disturbance.NONE, step, "warning")
        return
    if not packages:
        yield _drift(truths.PACKAGED, declared.version, "none", Disturbance.REBOOT, _ROLE)
    other = tuple(package for package in packages if not is_of_version(package, declared.version))
    if other:
        yield _drift(truths.PACKAGED, declared.version, _versions(other), Disturbance.REBOOT, _ROLE)


def _held(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    if declared.owner == "operator":
        return
    unheld = [package.name for package in observed.packages.value or () if not package.is_held]
    if unheld:
        yield _drift(
            truths.HELD, "held", f"{_some(unheld)} not held", Disturbance.NONE, "hold missing: run the role", "warning"
        )


def _moved_by_others(_declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    if not observed.moved_by.is_known:
        yield unknown_drift(_NAME, truths.AUTOMATIC_UPGRADES, "none", observed.moved_by)
    elif observed.moved_by.get():
        yield _drift(
            truths.AUTOMATIC_UPGRADES,
            "kept from the driver's packages",
            f"{observed.moved_by.get()} may move them",
            Disturbance.NONE,
            "exclude nvidia-.*, libnvidia-.* and cuda-.* from automatic upgrades",
            "warning",
        )


def _on_disk(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    if declared.owner == "operator":
        return
    if observed.on_disk is None:
        yield unknown_drift(_NAME, truths.ON_DISK, str(declared), observed.kernel)
        return
    module, kernel = observed.on_disk.module, observed.on_disk.kernel
    if module.kind == "unknown":
        yield unknown_drift(_NAME, truths.ON_DISK, str(declared), module)
    elif module.value is None:
        yield _drift(truths.ON_DISK, str(declared), f"no module for kernel {kernel}", Disturbance.REBOOT, _ROLE)
    elif not _is_version(module.value.version, declared.version) or module.value.flavour != declared.flavour:
        flavour = module.value.flavour or f"licence {module.value.license!r}"
        shown = f"{module.value.version} ({flavour}) for kernel {kernel}"
        yield _drift(truths.ON_DISK, str(declared), shown, Disturbance.REBOOT, _ROLE)
    initramfs = observed.on_disk.initramfs
    if initramfs.kind == "unknown" and module.is_known:
        yield unknown_drift(_NAME, truths.INITRAMFS, declared.version, initramfs)
    elif initramfs.value:
        step = f"rebuild the initramfs of {kernel}, drain and reboot"
        yield _drift(truths.INITRAMFS, declared.version, initramfs.value, Disturbance.REBOOT, step)


def _signed(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    if declared.owner == "operator":
        return
    if observed.signature.kind == "unknown":
        yield unknown_drift(_NAME, truths.SECURE_BOOT, "signed by an enrolled key", observed.signature)
    elif observed.signature.value:
        step = (
            "sign the module with an enrolled key, or enrol the key (MOK: needs the console at the next boot), by hand"
        )
        # The role enrols no key and turns nothing off: it would refuse, and the node would be drained for nothing.
        yield _drift(
            truths.SECURE_BOOT,
            "signed by an enrolled key",
            f"{observed.signature.value}, Secure Boot on",
            Disturbance.REBOOT,
            step,
            cause="health",
        )


def _dkms(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    if declared.owner == "operator" or observed.dkms.kind == "not_applicable":
        return
    if not observed.dkms.is_known:
        yield unknown_drift(_NAME, truths.DKMS, "installed", observed.dkms)
        return
    kernel = observed.kernel.value or ""
    for row in observed.dkms.get().rows:
        if not row.module.startswith("nvidia") or row.module.startswith(("nvidia-fs", "nvidia-peermem")):
            continue
        shown = f"{row.module}/{row.version}: {row.state} {row.note}".rstrip()
        if not _is_version(row.version, declared.version):
            if row.kernel in ("", kernel):
                yield _drift(truths.DKMS, declared.version, shown, Disturbance.NONE, "run the role", "warning")
        elif row.kernel == kernel and not row.is_clean:
            yield _drift(truths.DKMS, "installed", shown, Disturbance.REBOOT, f"build it again for {kernel}, reboot")
    ours = [error for error in observed.dkms.get().errors if "nvidia" in error]
    if ours:
        yield _drift(truths.DKMS, "no error", ours[0], Disturbance.NONE, "remove the broken dkms tree", "warning")


def _loaded(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    loaded = observed.loaded
    if loaded.kind == "unknown":
        yield unknown_drift(_NAME, truths.LOADED, str(declared), loaded)
        return
    remedy = _REBOOT if _next_boot_is_right(declared, observed) else _ROLE
    if loaded.value is None:
        yield _drift(truths.LOADED, str(declared), "not loaded", Disturbance.REBOOT, remedy)
    elif not _is_version(loaded.value.version, declared.version) or loaded.value.flavour != declared.flavour:
        shown = f"{loaded.value.version} ({loaded.value.flavour})"
        yield _drift(truths.LOADED, str(declared), shown, Disturbance.REBOOT, remedy)


def _next_boot_is_right(declared: DriverDeclared, observed: DriverObserved) -> bool:
    module = observed.on_disk.module.value if observed.on_disk else None
    return module is not None and _is_version(module.version, declared.version) and module.flavour == declared.flavour


def _modules(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    """A module that was built against another ABI breaks only when it is loaded anew: the one of this boot counts."""
    if not declared.load_modules or declared.owner == "operator":
        return
    if not observed.modules.is_known:
        yield unknown_drift(_NAME, truths.MODULES, ", ".join(declared.load_modules), observed.modules)
        return
    for module in sorted({*declared.load_modules} - observed.modules.get()):
        step = f"run the role and reboot; if it stays away, build {module} again for this kernel and driver"
        yield _drift(truths.MODULES, f"{module} loaded", "not loaded", Disturbance.REBOOT, step)


def _nvml(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    failure, version = observed.smi.failure, observed.smi.driver_version
    if failure is not None:
        yield from _failure(declared, observed, failure)
    elif not version.is_known:
        yield unknown_drift(_NAME, truths.NVML, declared.version, version)
    elif not _is_version(version.get(), declared.version):
        remedy = _REBOOT if _next_boot_is_right(declared, observed) else _ROLE
        yield _drift(truths.NVML, declared.version, version.get(), Disturbance.REBOOT, remedy)


def _failure(declared: DriverDeclared, observed: DriverObserved, failure: SmiFailure) -> Iterator[Drift]:
    if failure.kind == "mismatch":
        library = failure.nvml_version or "another build"
        agrees = bool(failure.nvml_version) and is_prefix(failure.nvml_version, declared.version)
        remedy = _REBOOT if agrees and _next_boot_is_right(declared, observed) else _ROLE
        loaded = observed.loaded.value.version if observed.loaded.value else "another build"
        shown = f"reboot-pending-mismatch: library {library}, loaded module {loaded}"
        yield _drift(truths.NVML, declared.version, shown, Disturbance.REBOOT, remedy)
    elif failure.kind in ("timed_out", "stuck"):
        step = "keep it drained and power-cycle it through its BMC: an ordinary reboot may hang too"
        shown = f"gpu-driver-unresponsive: {failure.text}"
        yield _drift(truths.RESPONSE, "answers", shown, Disturbance.REBOOT, step, cause="health")
    elif failure.kind == "lost":
        step = f"reboot; if it comes again, exchange the GPU {failure.bus_id}".rstrip()
        yield _drift(
            truths.GPU_STATE, "present", f"gpu-lost: {failure.text}", Disturbance.REBOOT, step, cause="hardware"
        )
    elif failure.kind in ("not_loaded", "missing", "no_library"):
        yield _drift(truths.NVML, declared.version, failure.text, Disturbance.REBOOT, _ROLE)
    elif failure.kind != "no_devices":
        yield unknown_drift(_NAME, truths.NVML, declared.version, observed.smi.gpus)


def _counts(declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    """Declared, on the PCI bus, and in NVML: all three, and which GPU it is."""
    bus, gpus = observed.bus, observed.smi.gpus
    if bus.kind == "unknown":
        yield unknown_drift(_NAME, truths.GPU_COUNT, _count(declared), bus)
        return
    plugged = {gpu.bus_id for gpu in bus.value.gpus} if bus.value else set()
    if declared.gpu_count is not None and len(plugged) != declared.gpu_count:
        step = "a GPU is missing on the PCI bus: look at the hardware"
        shown = f"{len(plugged)} on the PCI bus"
        yield _drift(truths.GPU_COUNT, str(declared.gpu_count), shown, Disturbance.NONE, step, cause="hardware")
    if not gpus.is_known or (not gpus.get() and not plugged):
        return
    seen = {gpu.bus_id for gpu in gpus.get()}
    missing, extra = sorted(plugged - seen), sorted(seen - plugged)
    if missing or extra:
        shown = f"{len(seen)} in NVML, {len(plugged)} on the PCI bus: " + _some(
            [f"{bus_id} not in NVML" for bus_id in missing] + [f"{bus_id} not on the bus" for bus_id in extra]
        )
        step = "hardware suspect: its siblings work with this driver" if seen else _why_none(observed)
        cause: Cause = "hardware" if seen else "health"
        yield _drift(truths.GPU_COUNT, _count(declared), shown, Disturbance.NONE, step, cause=cause)


def _count(declared: DriverDeclared) -> str:
    return "as on the PCI bus" if declared.gpu_count is None else str(declared.gpu_count)


def _why_none(observed: DriverObserved) -> str:
    if observed.log.value and observed.log.value.needs_open:
        return "these GPUs need the open kernel module: set nvidia_driver_flavour: open"
    return "the driver started no GPU: see the kernel log"


def _states(_declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    for gpu in observed.smi.gpus.value or ():
        for shown, step in _troubles(gpu):
            yield _drift(
                truths.GPU_STATE, "no error", f"{gpu.label}: {shown}", Disturbance.REBOOT, step, cause="hardware"
            )


def _troubles(gpu: Gpu) -> Iterator[tuple[str, str]]:
    if gpu.recovery_action.is_known and gpu.recovery_action.get().lower() != "none":
        action = gpu.recovery_action.get()
        yield f"recovery action {action}", f"drain, then as it asks: {action.lower()}"
    for error in gpu.errors:
        # Without the right to see it a value is unknown, not wrong.
        if "permission" not in error.lower():
            yield error, "reset the GPU or reboot; if it comes again, exchange it"


def _log(_declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    if not observed.log.is_known:
        yield unknown_drift(_NAME, truths.XID, "none since boot", observed.log)
        return
    log = observed.log.get()
    for (number, bus_id, is_switch), times in Counter((x.number, x.bus_id, x.is_switch) for x in log.xids).items():
        severity: Severity = "warning"
        if not is_switch and number in _APPLICATION_XIDS:
            severity = "info"
        elif not is_switch and number in _FATAL_XIDS:
            severity = "error"
        shown = f"{'SXid' if is_switch else 'Xid'} {number} on {bus_id}, {times} times since boot"
        yield _drift(
            truths.XID, "none", shown, Disturbance.NONE, "see NVIDIA's list of Xid errors", severity, "hardware"
        )
    if log.init_failed:
        shown = f"the driver could not start {_some(list(log.init_failed))}"
        seen = {gpu.bus_id for gpu in observed.smi.gpus.value or ()}
        if not all(any(bus_id[:10] == other[:10] for other in seen) for bus_id in log.init_failed):
            cause: Cause = "hardware" if seen else "health"
            yield _drift(truths.GPU_STATE, "started", shown, Disturbance.REBOOT, _why_none(observed), cause=cause)


def _persistence(_declared: DriverDeclared, observed: DriverObserved) -> Iterator[Drift]:
    unit = observed.persistence
    if unit.kind == "unknown":
        yield unknown_drift(_NAME, truths.SERVICE, "nvidia-persistenced running", unit)
    elif unit.value and (unit.value.active == "failed" or (unit.value.is_enabled and not unit.value.is_running)):
        shown = f"nvidia-persistenced {unit.value}"
        yield _drift(truths.SERVICE, "running", shown, Disturbance.SERVICE, "start nvidia-persistenced", "warning")


_FINDERS: tuple[Finder, ...] = (
    _packaged,
    _held,
    _moved_by_others,
    _on_disk,
    _signed,
    _dkms,
    _loaded,
    _modules,
    _nvml,
    _counts,
    _states,
    _log,
    _persistence,
)


def blocks_restart(declared: DriverDeclared, observed: DriverObserved) -> str:
    """The first reason why the next boot would not come up with the declared driver."""
    if declared.owner == "operator":
        return ""
    if not observed.packages.is_known:
        return f"packages can't be read: {observed.packages.reason}"
    broken = [f"{package.name} {package.state}" for package in observed.packages.get() if not package.is_installed]
    if broken:
        return f"half-configured: {_some(broken)}"
    if observed.on_disk is None:
        return f"the next boot's kernel is not known: {observed.kernel.reason}"
    module, kernel = observed.on_disk.module, observed.on_disk.kernel
    if module.value is None:
        why = module.reason if module.kind == "unknown" else "none"
        return f"module of the declared driver for kernel {kernel}, which the next boot starts: {why}"
    if not _next_boot_is_right(declared, observed):
        return f"kernel {kernel} would load {module.value.version} ({module.value.flavour or module.value.license})"
    if observed.on_disk.initramfs.kind == "unknown":
        return observed.on_disk.initramfs.reason
    if observed.on_disk.initramfs.value:
        return observed.on_disk.initramfs.value
    if observed.signature.kind == "unknown":
        return observed.signature.reason
    why_not = observed.signature.value
    return f"Secure Boot is on and would reject the module for kernel {kernel}: {why_not}" if why_not else ""


def _is_version(found: str, declared: str) -> bool:
    return is_prefix(found, declared) and is_prefix(declared, found)


def _versions(packages: tuple[Package, ...]) -> str:
    counts = Counter(upstream_of(package.version) for package in packages)
    return ", ".join(
        f"{version} ({count} package{'s' if count > 1 else ''})" for version, count in sorted(counts.items())
    )


def _some(texts: list[str], at_most: int = 3) -> str:
    rest = len(texts) - at_most
    return ", ".join(texts[:at_most]) + (f" and {rest} more" if rest > 0 else "")
