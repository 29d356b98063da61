"""The loaded driver: /proc/driver/nvidia/version and /sys/module/nvidia/version."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.raw import file_of, one_line

# The date behind the version is in the builder's locale, and a builder's name may stand before it: never read on.
_OPEN = re.compile(r"NVIDIA UNIX Open Kernel Module for\s+(?P<architecture>\S+)\s+(?P<version>\d+(?:\.\d+)+)(?=\s|$)")
_PROPRIETARY = re.compile(r"NVIDIA UNIX\s+(?P<architecture>\S+)\s+Kernel Module\s+(?P<version>\d+(?:\.\d+)+)(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Banner:
    """How the loaded module names itself."""

    version: str
    flavour: str
    architecture: str


def read_banner(text: str) -> Reading[Banner]:
    for pattern, flavour in ((_OPEN, "open"), (_PROPRIETARY, "proprietary")):
        found = pattern.search(text)
        if found:
            return value_of(Banner(found["version"], flavour, found["architecture"]))
    return unknown(f"not a driver's banner: {one_line(text, 80)!r}")


def read_loaded(raw: RawFacts) -> Reading[Banner]:
    """Not applicable: no NVIDIA module is loaded. Two sources that differ, or one that is cut off, are unknown."""
    banner = file_of(raw, "/proc/driver/nvidia/version")
    module = file_of(raw, "/sys/module/nvidia/version").map(str.strip)
    if banner.kind == "not_applicable":
        if module.is_known:
            return unknown(f"module nvidia {module.get()} is in the kernel, but /proc/driver/nvidia/version is absent")
        return not_applicable("the module is not loaded")
    if not banner.is_known:
        return unknown(banner.reason)
    read = read_banner(banner.get())
    if read.is_known and module.is_known and module.get() != read.get().version:
        return unknown(f"/proc says {read.get().version}, /sys/module says {one_line(module.get())}")
    return read
