"""Fabric manager: its binary's version, and what it says when it does not start."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.raw import command_of, part_of, read_text

_VERSION = re.compile(r"\b(\d{3}(?:\.\d+){1,3})\b")
# The sentence differs between releases ("don't match", "doesn't match"): two versions beside these words.
_MISMATCH = re.compile(
    r"interface version\s+(?P<fabric>\d{3}(?:\.\d+)+).{0,80}?driver version\s+(?P<driver>\d{3}(?:\.\d+)+)",
    re.IGNORECASE | re.DOTALL,
)
_NO_SWITCH = re.compile(
    r"NV_WARN_NOTHING_TO_DO|Nothing to do|no NVSwitch|NVSwitch devices? (were )?not (found|detected)", re.IGNORECASE
)
_PRE_NVL5 = re.compile(r"Detected Pre-NVL5 system", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FabricLog:
    """What the service's log of this boot says. The versions are set where it refused the loaded driver."""

    fabric_version: str = ""
    driver_version: str = ""
    found_no_switch: bool = False
    is_pre_nvl5: bool = False

    @property
    def is_mismatch(self) -> bool:
        return self.fabric_version != self.driver_version


def read_version(raw: RawFacts) -> Reading[str]:
    """The binary's own version: dpkg may have a transitional package of another branch under this name."""
    ran = command_of(raw, "fabric_manager_version", "nv-fabricmanager --version")
    if ran.kind == "not_applicable":
        return not_applicable("fabric manager is not installed")
    if not ran.is_known:
        return unknown(ran.reason)
    found = _VERSION.search(ran.get().said)
    return value_of(found[1]) if found else unknown(f"nv-fabricmanager --version: {ran.get().why}")


def read_log_text(text: str) -> FabricLog:
    last = None
    for found in _MISMATCH.finditer(text):
        last = found
    return FabricLog(
        last["fabric"] if last else "",
        last["driver"] if last else "",
        bool(_NO_SWITCH.search(text)),
        bool(_PRE_NVL5.search(text)),
    )


def read_log(raw: RawFacts) -> Reading[FabricLog]:
    """The service's journal of this boot; its own log file, which goes back further, where the journal is empty."""
    ran = command_of(raw, "fabric_manager_log", "journalctl -u nvidia-fabricmanager")
    if ran.is_known and ran.get().rc == 0 and ran.get().out.strip():
        return value_of(read_log_text(ran.get().out))
    text = read_text(part_of(raw, "fabric_manager_log_file"), "/var/log/fabricmanager.log")
    if text.is_known:
        return value_of(read_log_text(text.get()))
    return value_of(FabricLog()) if ran.is_known and ran.get().rc == 0 else unknown(ran.reason or text.reason)
