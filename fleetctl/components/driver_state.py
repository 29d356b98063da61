"""What is declared of the driver and what is observed, the several truths kept apart."""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.model.reading import Reading
from fleetctl.parse.boot import NextBoot
from fleetctl.parse.dkms import DkmsStatus
from fleetctl.parse.kernel_log import KernelLog
from fleetctl.parse.kernels import KernelOnDisk
from fleetctl.parse.nvidia_smi import Smi
from fleetctl.parse.packages import Package
from fleetctl.parse.pci import PciBus
from fleetctl.parse.proc_version import Banner
from fleetctl.parse.systemd import Unit


@dataclass(frozen=True, slots=True)
class DriverDeclared:
    """`owner` is "operator" where a GPU operator's container brings the driver: audited then, never installed."""

    version: str
    flavour: str
    source: str
    owner: str = "host"
    gpu_count: int | None = None
    load_modules: tuple[str, ...] = ()
    """What each boot is to load besides the nvidia module, by modprobe's names with dashes."""

    def __str__(self) -> str:
        return f"{self.version} ({self.flavour})"


@dataclass(frozen=True, slots=True)
class DriverObserved:
    family: Reading[str]
    packages: Reading[tuple[Package, ...]]
    """Packages of the driver's set, whatever their branch, that are not merely leftover configuration."""
    next_boot: Reading[NextBoot]
    kernel: Reading[str]
    """The kernel that the next boot starts."""
    on_disk: KernelOnDisk | None
    """What that kernel will find; None where the kernel is not known."""
    loaded: Reading[Banner]
    modules: Reading[frozenset[str]]
    """Names with dashes of the modules that are loaded, of NVIDIA's and those built against it."""
    smi: Smi
    dkms: Reading[DkmsStatus]
    bus: Reading[PciBus]
    log: Reading[KernelLog]
    persistence: Reading[Unit]
    signature: Reading[str]
    """Of that kernel's module: empty if Secure Boot would let it load, else why not. Not applicable: nothing checks."""
    moved_by: Reading[str]
    """What upgrades packages by itself and is not kept from the driver's; empty if nothing."""

    @property
    def needs_build(self) -> bool:
        """True unless the modules come ready-built for a kernel (linux-modules-nvidia-*, kmod-nvidia-<version>)."""
        names = [package.name for package in self.packages.value or ()]
        return not any(name.startswith(("linux-modules-nvidia", "kmod-nvidia-5", "kmod-nvidia-6")) for name in names)
