"""`systemctl show` of several units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.raw import command_of


@dataclass(frozen=True, slots=True)
class Unit:
    load: str
    active: str
    sub: str = ""
    result: str = ""
    enabled: str = ""

    @property
    def is_running(self) -> bool:
        return self.active == "active"

    @property
    def is_enabled(self) -> bool:
        return self.enabled in ("enabled", "enabled-runtime", "alias")

    def __str__(self) -> str:
        return " ".join(part for part in (self.active, self.sub and f"({self.sub})") if part)


def read_units_text(text: str) -> dict[str, Unit]:
    """Blocks of Key=Value, one for each unit, in any order of keys."""
    units = {}
    for block in text.replace("\r", "").split("\n\n"):
        fields = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if fields.get("Id") and fields.get("LoadState"):
            units[fields["Id"]] = Unit(
                fields["LoadState"],
                fields.get("ActiveState", ""),
                fields.get("SubState", ""),
                fields.get("Result", ""),
                fields.get("UnitFileState", ""),
            )
    return units


def read_units(raw: RawFacts) -> Reading[Mapping[str, Unit]]:
    ran = command_of(raw, "units", "systemctl show")
    if not ran.is_known:
        return unknown(ran.reason)
    units = read_units_text(ran.get().out)
    # With units that do not exist systemctl still answers for each, and exits 0.
    if ran.get().rc != 0 or not units:
        return unknown(f"systemctl show: {ran.get().why}")
    return value_of(units)


def read_unit(raw: RawFacts, name: str) -> Reading[Unit]:
    """Not applicable where the node has no such unit; masked counts as having it."""
    units = read_units(raw)
    if not units.is_known:
        return unknown(units.reason)
    unit = units.get().get(name)
    if unit is None:
        return unknown(f"systemctl did not answer for {name}")
    if unit.load == "not-found":
        return not_applicable(f"no unit {name}")
    return value_of(unit)
