"""What NVIDIA's modules wrote into this boot's kernel log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.parse.nvidia_smi import short_bus_id
from fleetctl.parse.raw import command_of, one_line

# "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., ..."; older drivers without "PCI:". NVSwitches say SXid.
_XID = re.compile(r"\b(?P<kind>S?Xid) \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]+)\):? ?(?P<number>[0-9]{1,6})\b(?P<text>[^\n]*)")
_NOT_SUPPORTED = re.compile(
    r"NVIDIA GPU (?P<bus>[0-9A-Fa-f:.]+) \(PCI ID: [0-9a-f:]+\)(?:(?!NVIDIA GPU).){0,200}?not supported by",
    re.DOTALL,
)
_NEEDS_OPEN = re.compile(r"requires use of the NVIDIA open kernel modules", re.IGNORECASE)
_INIT_FAILED = re.compile(r"NVRM: GPU (?P<bus>[0-9A-Fa-f:.]+): (?:RmInitAdapter failed|rm_init_adapter failed)")
_KEY_REJECTED = re.compile(r"Key was rejected by service|module verification failed", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Xid:
    """One error report of a GPU, or of an NVSwitch (`is_switch`)."""

    bus_id: str
    number: int
    text: str = ""
    is_switch: bool = False

    def __str__(self) -> str:
        return f"{'SXid' if self.is_switch else 'Xid'} {self.number} on {self.bus_id}"


@dataclass(frozen=True, slots=True)
class KernelLog:
    xids: tuple[Xid, ...] = ()
    not_supported: tuple[str, ...] = ()
    """Bus ids of GPUs that the loaded driver calls unsupported."""
    init_failed: tuple[str, ...] = ()
    needs_open: bool = False


def read_log_text(text: str) -> KernelLog:
    xids = tuple(
        Xid(
            short_bus_id(found["bus"]),
            int(found["number"]),
            one_line(found["text"].lstrip(", ")),
            found["kind"] != "Xid",
        )
        for found in _XID.finditer(text)
    )
    return KernelLog(
        xids=xids,
        not_supported=tuple(dict.fromkeys(short_bus_id(found["bus"]) for found in _NOT_SUPPORTED.finditer(text))),
        init_failed=tuple(dict.fromkeys(short_bus_id(found["bus"]) for found in _INIT_FAILED.finditer(text))),
        needs_open=bool(_NEEDS_OPEN.search(text)),
    )


def read_kernel_log(raw: RawFacts) -> Reading[KernelLog]:
    """From the journal; from the ring buffer where the journal holds no line of the kernel."""
    why = ""
    for name, what in (("kernel_log", "journalctl -k"), ("dmesg", "dmesg")):
        ran = command_of(raw, name, what)
        if ran.is_known and ran.get().rc == 0 and ran.get().lines:
            return value_of(read_log_text(ran.get().out))
        why = why or ran.reason or (f"{what}: {ran.get().why}" if ran.get().rc else f"{what}: no line of the kernel")
    return unknown(why)
