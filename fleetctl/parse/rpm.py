"""rpm: packages, and the locks of dnf's versionlock."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.packages import Package
from fleetctl.parse.raw import command_of, file_of

_LOCK_LIST = "/etc/dnf/plugins/versionlock.list"
_LOCK_TOML = "/etc/dnf/versionlock.toml"


def read_packages(raw: RawFacts) -> Reading[tuple[Package, ...]]:
    """Not applicable where there is no rpm, or where rpm is there but keeps no package (a Debian node)."""
    ran = command_of(raw, "rpm_list", "rpm -qa")
    if ran.kind == "not_applicable":
        return not_applicable(ran.reason)
    if not ran.is_known:
        return unknown(ran.reason)
    if ran.get().rc != 0 or ran.get().truncated:
        return unknown(f"rpm -qa: {'list cut off' if ran.get().truncated else ran.get().why}")
    if ran.get().lines == 0:
        return not_applicable("rpm keeps no package here")
    locks = read_locks(raw)
    patterns = locks.get() if locks.is_known else ()
    packages = []
    for line in ran.get().out.splitlines():
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) != 5 or not fields[0]:
            return unknown(f"rpm -qa: can't read {line[:80]!r}")
        name, epoch, version, release, architecture = fields
        evr = f"{version}-{release}" if epoch in ("", "0", "(none)") else f"{epoch}:{version}-{release}"
        held = any(_is_locked(name, epoch, version, release, architecture, pattern) for pattern in patterns)
        packages.append(Package(name, evr, architecture, is_held=held))
    return value_of(tuple(packages))


def _is_locked(name: str, epoch: str, version: str, release: str, architecture: str, pattern: str) -> bool:
    number = epoch if epoch.isdigit() else "0"
    full = f"{name}-{number}:{version}-{release}.{architecture}"
    plain = f"{name}-{version}-{release}.{architecture}"
    return any(
        fnmatchcase(text, pattern)
        for text in (name, full, plain, full.rpartition(".")[0], plain.rpartition(".")[0], f"{name}-{version}")
    )


def read_locks(raw: RawFacts) -> Reading[tuple[str, ...]]:
    """Patterns of locked packages: dnf 4's list of specs, or the names of dnf 5's file."""
    listed, toml = file_of(raw, _LOCK_LIST), file_of(raw, _LOCK_TOML)
    if listed.kind == "not_applicable" and toml.kind == "not_applicable":
        return not_applicable("dnf's versionlock is not set up")
    for reading in (listed, toml):
        if reading.kind == "unknown":
            return unknown(reading.reason)
    patterns = [line.strip() for line in (listed.value or "").splitlines()]
    found = [pattern for pattern in patterns if pattern and not pattern.startswith(("#", "!"))]
    try:
        rows = tomllib.loads(toml.value or "").get("packages", [])
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return unknown(f"{_LOCK_TOML}: {error}")
    if not isinstance(rows, list):
        return unknown(f"{_LOCK_TOML}: packages is not a list")
    found += [str(row["name"]) for row in rows if isinstance(row, dict) and "name" in row]
    return value_of(tuple(found))
