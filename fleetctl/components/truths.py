"""The names of the several truths that a drift can speak of."""

from __future__ import annotations

from fleetctl.model.drift import Disturbance, Drift
from fleetctl.model.reading import Reading

PACKAGED = "packaged"
PACKAGE_STATE = "package_state"
HELD = "held"
ON_DISK = "on_disk"
LOADED = "loaded"
MODULES = "modules"
NVML = "nvml"
DKMS = "dkms"
INITRAMFS = "initramfs"
SECURE_BOOT = "secure_boot"
AUTOMATIC_UPGRADES = "automatic_upgrades"
BINARY = "binary"
SERVICE = "service"
GPU_COUNT = "gpu_count"
GPU_STATE = "gpu_state"
FABRIC = "fabric"
XID = "xid"
RESPONSE = "response"


def unknown_drift(component: str, truth: str, declared: str, reading: Reading[object]) -> Drift:
    """A truth that could not be read: never equal, and never taken for another value."""
    return Drift(
        component,
        truth,
        declared,
        f"unknown: {reading.reason or reading.kind}",
        Disturbance.NONE,
        "error",
        "look again; nothing was read",
        is_unknown=True,
    )
