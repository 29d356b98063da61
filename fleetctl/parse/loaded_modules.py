"""The kernel modules that are loaded now, of those that a node may be asked to load beside the nvidia module."""

from __future__ import annotations

from typing import Final

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.parse.raw import file_of

LOADABLE: Final = ("nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem", "nvidia-fs", "gdrdrv")
"""By modprobe's names with dashes."""


def read_loaded_modules(raw: RawFacts) -> Reading[frozenset[str]]:
    """Those of LOADABLE that are live; one that is still coming or going (/sys/module/NAME/initstate) is not."""
    states = {name: file_of(raw, f"/sys/module/{name.replace('-', '_')}/initstate") for name in LOADABLE}
    for name, state in states.items():
        if not state.is_known and state.kind != "not_applicable":
            return unknown(f"whether {name} is loaded can't be told")
    return value_of(
        frozenset(name for name, state in states.items() if state.is_known and state.get().strip() == "live")
    )
