"""NVIDIA's devices on the PCI bus: what is plugged in, whatever the driver thinks of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.nvidia_smi import short_bus_id
from fleetctl.parse.raw import list_or_empty, part_of, text_or_empty, trouble_with

# PCI classes: 0x0300 VGA, 0x0302 3D controller; 0x0680 other bridge, which NVSwitches are.
_GPU_CLASSES = ("0x0300", "0x0302")
_SWITCH_CLASS = "0x0680"


@dataclass(frozen=True, slots=True)
class PciDevice:
    bus_id: str
    device_id: int


@dataclass(frozen=True, slots=True)
class PciBus:
    gpus: tuple[PciDevice, ...]
    switches: tuple[PciDevice, ...]


def read_pci(raw: RawFacts) -> Reading[PciBus]:
    """Not applicable where there is no PCI bus at all."""
    fact = part_of(raw, "pci")
    trouble = trouble_with(fact, "the PCI bus")
    if trouble:
        return unknown(trouble)
    if part_of(fact, "absent"):
        return not_applicable("no PCI bus")
    if not isinstance(part_of(fact, "devices"), list):
        return unknown("the PCI bus was not listed")
    if part_of(fact, "unread"):
        return unknown("some PCI devices can't be read")
    gpus, switches = [], []
    for device in list_or_empty(part_of(fact, "devices")):
        kind = text_or_empty(part_of(device, "class"))[:6]
        number = text_or_empty(part_of(device, "device"))
        if not re.fullmatch("0x[0-9a-f]{4}", number):
            return unknown(f"a PCI device has no id: {number[:20]!r}")
        found = PciDevice(short_bus_id(text_or_empty(part_of(device, "address"))), int(number, 16))
        if kind in _GPU_CLASSES:
            gpus.append(found)
        elif kind == _SWITCH_CLASS:
            switches.append(found)
    return value_of(PciBus(tuple(gpus), tuple(switches)))


def read_has_nvlink_fabric(raw: RawFacts) -> Reading[bool]:
    """True if NVLink switches are attached to this machine: as PCI devices, or behind ports that manage NVLink 5's."""
    bus = read_pci(raw)
    if bus.kind == "unknown":
        return unknown(bus.reason)
    if bus.is_known and bus.get().switches:
        return value_of(True)
    fact = part_of(raw, "nvlink5")
    trouble = trouble_with(fact, "the ports of NVLink switches")
    if trouble:
        return unknown(trouble)
    return value_of(bool(list_or_empty(part_of(fact, "ports"))))
