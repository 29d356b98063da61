"""The names of the several truths that a drift can speak of, and what kind of trouble each is."""

from __future__ import annotations

from fleetctl.model.drift import Disturbance, Drift
from fleetctl.model.reading import Reading

PACKAGED = "packaged"
PACKAGE_STATE = "package_state"
HELD = "held"
ON_DISK = "on_disk"
LOADED = "loaded"
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

_HEALTH = frozenset({GPU_COUNT, GPU_STATE, FABRIC, XID, RESPONSE})
_HARDWARE = frozenset({GPU_COUNT, GPU_STATE, XID})


def is_health(drift: Drift) -> bool:
    """True if the versions are not what is wrong: applying the role again would not close this drift."""
    return drift.truth in _HEALTH


def is_hardware(drift: Drift) -> bool:
    """True if no other version of the software would cure it."""
    return drift.truth in _HARDWARE and drift.severity == "error" and not is_unknown(drift)


def is_unknown(drift: Drift) -> bool:
    """True if nothing was read, so that nothing is proven."""
    return drift.observed.startswith("unknown: ")


def unknown_drift(component: str, truth: str, declared: str, reading: Reading[object]) -> Drift:
    return Drift(
        component,
        truth,
        declared,
        f"unknown: {reading.reason or reading.kind}",
        Disturbance.NONE,
        "error",
        "look again; nothing was read",
    )
