"""`nvidia-smi -q -x`: only what an older nvidia-smi does not give as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree import ElementTree as ET

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.parse.nvidia_smi import short_bus_id
from fleetctl.parse.raw import part_of, read_command

# CSV column -> path below <gpu>; the names differ between the two outputs.
_PATHS = {
    "gpu_recovery_action": ("gpu_recovery_action",),
    "fabric.state": ("fabric", "state"),
    "fabric.status": ("fabric", "status"),
    "driver_version": (),
    "name": ("product_name",),
    "uuid": ("uuid",),
    "memory.total": ("fb_memory_usage", "total"),
    "mig.mode.current": ("mig_mode", "current_mig"),
    "pci.device_id": ("pci", "pci_device_id"),
}


def read_xml(text: str) -> Reading[ET.Element]:
    """The document's root. Declared entities are refused: nvidia-smi has none, and they can be made to explode."""
    if "<!ENTITY" in text:
        return unknown("nvidia-smi -x: an entity is declared")
    try:
        return value_of(ET.fromstring(text.strip()))  # noqa: S314  # entities were refused above
    except (ET.ParseError, ValueError) as error:
        return unknown(f"nvidia-smi -x: {error}")


def columns_of(root: ET.Element) -> dict[str, dict[str, str]]:
    """By bus id (the kernel's form), under the names of the CSV's columns."""
    found: dict[str, dict[str, str]] = {}
    driver_version = (root.findtext("driver_version") or "").strip()
    for gpu in root.iter("gpu"):
        columns = {}
        for column, path in _PATHS.items():
            text = gpu.findtext("/".join(path)) if path else driver_version
            if text is not None and text.strip():
                columns[column] = " ".join(text.split())
        bus_id = gpu.get("id") or gpu.findtext("pci/pci_bus_id") or ""
        found[short_bus_id(bus_id)] = columns
    return found


def read_columns(raw: RawFacts) -> Mapping[str, Mapping[str, str]]:
    """What the XML adds to the CSV of the same probe; empty where it was not asked for or can't be read."""
    ran = read_command(part_of(raw, "nvidia_smi", "xml"), "nvidia-smi -q -x")
    if not ran.is_known or ran.get().rc != 0 or ran.get().truncated:
        return {}
    root = read_xml(ran.get().out)
    return columns_of(root.get()) if root.is_known else {}
