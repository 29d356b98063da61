"""GPU generations by PCI device id, and what driver each can have."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from fleetctl.parse.nvidia_smi import Gpu
from fleetctl.parse.pci import PciBus


@dataclass(frozen=True, slots=True)
class Generation:
    """`last_branch`: the last release branch that drives it, None while it goes on."""

    name: str
    takes_open: bool
    takes_proprietary: bool
    last_branch: int | None = None


KEPLER = Generation("Kepler or older", takes_open=False, takes_proprietary=True, last_branch=470)
MAXWELL = Generation("Maxwell", takes_open=False, takes_proprietary=True, last_branch=580)
PASCAL = Generation("Pascal", takes_open=False, takes_proprietary=True, last_branch=580)
VOLTA = Generation("Volta", takes_open=False, takes_proprietary=True, last_branch=580)
TURING = Generation("Turing", takes_open=True, takes_proprietary=True)
AMPERE = Generation("Ampere", takes_open=True, takes_proprietary=True)
HOPPER = Generation("Hopper", takes_open=True, takes_proprietary=True)
GRACE_HOPPER = Generation("Grace Hopper", takes_open=True, takes_proprietary=False)
ADA = Generation("Ada", takes_open=True, takes_proprietary=True)
BLACKWELL = Generation("Blackwell or newer", takes_open=True, takes_proprietary=False)

# First device id of each generation's range. NVIDIA gives ids by chip, in rising order: the list of supported GPUs in
# the README of NVIDIA/open-gpu-kernel-modules has Turing from 1E02, GA100 from 20B0, TU116 from 2182, GA10x from 2203,
# GH100 from 2321, GA103 from 2414, AD10x 2684 to 28F8; Blackwell begins with 2901 (B200).
# Which flavour: NVIDIA Driver Installation Guide, "Kernel Modules", and "NVIDIA Transitions Fully Towards Open-Source
# GPU Kernel Modules" (Grace Hopper and Blackwell need open; Maxwell, Pascal and Volta need proprietary). The last
# branch of these three is 580.
_RANGES = (
    (0x0000, KEPLER),
    (0x1340, MAXWELL),
    (0x15F0, PASCAL),
    (0x1600, MAXWELL),
    (0x1B00, PASCAL),
    (0x1D80, VOLTA),
    (0x1E00, TURING),
    (0x2080, AMPERE),
    (0x2180, TURING),
    (0x2200, AMPERE),
    (0x2300, HOPPER),
    (0x2400, AMPERE),
    (0x2600, ADA),
    (0x2900, BLACKWELL),
)
# GH200 120GB and 480GB; GH200 144G HBM3e.
_GRACE_HOPPER = frozenset({0x2342, 0x2345, 0x2348})
_STARTS = [start for start, _ in _RANGES]

# From this branch on NVIDIA ships the open flavour only (Driver Installation Guide for 620, "Kernel Modules").
FIRST_OPEN_ONLY_BRANCH = 620


def generation_of(device_id: int) -> Generation:
    if device_id in _GRACE_HOPPER:
        return GRACE_HOPPER
    return _RANGES[bisect_right(_STARTS, device_id) - 1][1]


def generations_on(bus: PciBus | None, gpus: tuple[Gpu, ...]) -> frozenset[Generation]:
    """From the PCI bus; from NVML's names too, which tell a GH200 whose id is not in the table."""
    found = {generation_of(gpu.device_id) for gpu in bus.gpus} if bus else set()
    found |= {GRACE_HOPPER for gpu in gpus if "GH200" in gpu.name}
    return frozenset(found)
