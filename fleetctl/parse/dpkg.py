"""dpkg: packages with their state, the audit, and holds."""

from __future__ import annotations

import re

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.packages import Package
from fleetctl.parse.raw import command_of

# dpkg-query(1), ${db:Status-Abbrev}: wanted, state, error flag.
_STATES = {
    "n": "absent",
    "c": "absent",
    "H": "half-installed",
    "U": "unpacked",
    "F": "half-configured",
    "W": "triggers-awaited",
    "t": "triggers-pending",
    "i": "installed",
}
_WANTED = "uihrp"
_AUDITED = re.compile(r"^ (?P<name>[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?)(?:\s|$)")


def read_packages(raw: RawFacts) -> Reading[tuple[Package, ...]]:
    """Not applicable where there is no dpkg. A line that can't be read makes the whole list unknown."""
    ran = command_of(raw, "dpkg_list", "dpkg-query -W")
    if ran.kind == "not_applicable":
        return not_applicable(ran.reason)
    if not ran.is_known:
        return unknown(ran.reason)
    if ran.get().rc != 0 or ran.get().truncated:
        return unknown(f"dpkg-query: {'list cut off' if ran.get().truncated else ran.get().why}")
    if ran.get().lines == 0:
        return unknown("dpkg-query: no package at all")
    held = read_holds(raw)
    names_held = held.get() if held.is_known else frozenset[str]()
    packages = []
    for line in ran.get().out.splitlines():
        if not line.strip():
            continue
        package = _read_line(line, names_held)
        if package is None:
            return unknown(f"dpkg-query: can't read {line[:80]!r}")
        packages.append(package)
    return value_of(tuple(packages))


def _read_line(line: str, held: frozenset[str]) -> Package | None:
    fields = line.split("\t")
    if len(fields) != 4 or len(fields[0]) < 2 or not fields[1]:
        return None
    flags, name, architecture, version = fields
    if flags[0] not in _WANTED or flags[1] not in _STATES:
        return None
    state = _STATES[flags[1]]
    if flags[2:].strip():
        state = "reinstall required"
    is_held = flags[0] == "h" or name in held or f"{name}:{architecture}" in held
    return Package(name, version.strip(), architecture, state, is_held)


def read_holds(raw: RawFacts) -> Reading[frozenset[str]]:
    """Names on hold; a name of a foreign architecture carries it, as apt-mark prints it."""
    ran = command_of(raw, "apt_holds", "apt-mark showhold")
    if not ran.is_known:
        return not_applicable(ran.reason) if ran.kind == "not_applicable" else unknown(ran.reason)
    if ran.get().rc != 0:
        return unknown(f"apt-mark showhold: {ran.get().why}")
    return value_of(frozenset(ran.get().out.split()))


def read_audit(raw: RawFacts) -> Reading[tuple[str, ...]]:
    """Names that `dpkg --audit` complains of. Text without a name that we can read is unknown, not clean."""
    ran = command_of(raw, "dpkg_audit", "dpkg --audit")
    if not ran.is_known:
        return not_applicable(ran.reason) if ran.kind == "not_applicable" else unknown(ran.reason)
    names = tuple(found["name"] for line in ran.get().out.splitlines() if (found := _AUDITED.match(line)))
    if not names and (ran.get().rc != 0 or ran.get().out.strip()):
        return unknown(f"dpkg --audit: {ran.get().why}")
    return value_of(names)


def read_broken(raw: RawFacts) -> Reading[tuple[str, ...]]:
    """Packages that are neither installed nor absent, as "name (state)", from the list and from the audit."""
    packages, audited = read_packages(raw), read_audit(raw)
    if not packages.is_known:
        return Reading(packages.kind, None, packages.reason)
    if not audited.is_known:
        return unknown(audited.reason or "dpkg --audit was not run")
    broken = {package.name: package.state for package in packages.get() if package.state not in ("installed", "absent")}
    for name in audited.get():
        broken.setdefault(name.partition(":")[0], "see dpkg --audit")
    return value_of(tuple(f"{name} ({state})" for name, state in sorted(broken.items())))
