"""What a fresh probe says of the node itself, apart from any component."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetctl.model.fleet import Json
from fleetctl.model.reading import Reading, unknown

RawFacts = Mapping[str, Json]
"""What the probe printed, schema 1 (fleetctl/probe/README.md)."""

_NOT_PROBED: Reading[str] = unknown("not probed")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which machine answers under a name. Two identities are the same machine if no part known to both differs."""

    dmi_uuid: str = ""
    serial: str = ""
    machine_id: str = ""

    def differs_from(self, other: Identity) -> str:
        """The first part that is known on both sides and differs, or an empty text."""
        for part in ("dmi_uuid", "serial", "machine_id"):
            mine, theirs = getattr(self, part), getattr(other, part)
            if mine and theirs and mine != theirs:
                return f"{part} is {mine}, was {theirs}"
        return ""


@dataclass(frozen=True, slots=True)
class Lease:
    """Which rollout and controller may change a node; a file on the node, root-owned, created exclusively."""

    rollout: str
    controller: str
    epoch: int
    nonce: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Node-level facts of one probe; each may be unknown, and unknown means busy or not safe to touch."""

    identity: Reading[Identity] = field(default_factory=lambda: unknown("not probed"))
    boot_id: Reading[str] = _NOT_PROBED
    work_processes: Reading[tuple[str, ...]] = field(default_factory=lambda: unknown("not probed"))
    """Job steps and GPU processes but declared daemons, as "name (pid)"."""
    package_processes: Reading[tuple[str, ...]] = field(default_factory=lambda: unknown("not probed"))
    """apt, dpkg, dnf, rpm, dkms or ansible running now, as "name (pid)"."""
    broken_packages: Reading[tuple[str, ...]] = field(default_factory=lambda: unknown("not probed"))
    """Packages that are neither installed nor absent (half-configured, unpacked, ...)."""
    lease: Reading[Lease] = field(default_factory=lambda: unknown("not probed"))
    """Not applicable where no lease file exists."""
    kept_packages: Reading[Mapping[str, frozenset[str]]] = field(default_factory=lambda: unknown("not probed"))
    """By role, packages of which the node keeps a file: name=version, of an rpm name-version-release."""
    repositories: str = ""
    """Equal for nodes of the same release of a distribution with the same repositories."""
