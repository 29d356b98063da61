"""Where a node gets its packages from: files that the roles keep on it, and its repositories."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping

from fleetctl.model.fleet import Json
from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.parse.raw import command_of, file_of, list_or_empty, part_of, text_or_empty, trouble_with


def read_kept(raw: RawFacts) -> Reading[Mapping[str, frozenset[str]]]:
    """By role, the packages of roles/package_closure's archives: name=version, of an rpm name-version-release."""
    fact = part_of(raw, "kept_packages")
    trouble = trouble_with(fact, "the list of kept packages")
    roles = part_of(fact, "roles")
    if trouble or not isinstance(roles, Mapping):
        return unknown(trouble or "the list of kept packages can't be read")
    ran = command_of(raw, "dpkg_architecture", "dpkg --print-architecture")
    native = ran.get().out.strip() if ran.is_known and ran.get().rc == 0 else ""
    return value_of({role: frozenset(_packages(names, native)) for role, names in roles.items()})


def _packages(names: Json, native: str) -> Iterator[str]:
    for name in map(text_or_empty, list_or_empty(names)):
        if name.endswith(".rpm"):
            yield name.rsplit(".", 2)[0]
            continue
        # name_version_architecture.deb; apt writes the colon of an epoch as %3a.
        package, _, rest = name.removesuffix(".deb").replace("%3a", ":").partition("_")
        version, _, architecture = rest.rpartition("_")
        if version and architecture in (native, "all"):
            yield f"{package}={version}"
            yield f"{package}:{architecture}={version}"


def read_sources(raw: RawFacts) -> str:
    """One text for the release and all repositories; what could not be read is part of it as such."""
    release = file_of(raw, "/etc/os-release")
    told = re.findall(r"^(?:ID|VERSION_ID)=.*$", release.value or release.reason, re.MULTILINE)
    for family in ("apt_sources", "yum_repositories"):
        files = part_of(raw, family, "files")
        for fact in files.values() if isinstance(files, Mapping) else [part_of(raw, family)]:
            text = text_or_empty(part_of(fact, "text"))
            lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
            told.append("\n".join(lines) if text else str(part_of(fact, "error") or ""))
    return hashlib.sha256("\0".join(sorted(told)).encode(errors="replace")).hexdigest()
