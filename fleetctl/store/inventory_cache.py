"""What an inventory gave last time, kept beside the site's state; never a secret, never more than fleetctl needs."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.model.fleet import HostVars

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Host:
    """One host of an inventory: the variables that fleetctl reads, rendered.

    `withheld` are variables that are given, but not here: each with the reason (a secret, a template that needs facts).
    """

    variables: HostVars = field(default_factory=dict)
    withheld: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """An inventory as Ansible understood it: hosts in order, and every group with all hosts below it."""

    hosts: Mapping[str, Host]
    groups: Mapping[str, tuple[str, ...]]


def read_cache(path: Path, key: str, now_s: float, max_age_s: float | None) -> Listing | None:
    """The listing stored under `key`, if it is there, whole, and not older than `max_age_s` (None: any age)."""
    try:
        if path.stat().st_uid not in (os.geteuid(), 0):
            return None
        stored = json.loads(path.read_bytes())
        if stored["schema"] != _SCHEMA or stored["key"] != key:
            return None
        if max_age_s is not None and not 0 <= now_s - stored["at_s"] <= max_age_s:
            return None
        names = list(stored["hosts"])
        hosts = {
            name: Host(variables, {variable: (kind, text) for variable, (kind, text) in withheld.items()})
            for name, (variables, withheld) in stored["hosts"].items()
        }
        groups = {group: tuple(names[index] for index in members) for group, members in stored["groups"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        # Absent, cut short, or not ours: asked anew.
        return None
    return Listing(hosts, groups)


def write_cache(path: Path, key: str, now_s: float, listing: Listing) -> None:
    """Store the listing, readable for its owner alone. A cache that can't be written is only slower."""
    index = {name: position for position, name in enumerate(listing.hosts)}
    stored = {
        "schema": _SCHEMA,
        "key": key,
        "at_s": now_s,
        "hosts": {name: [host.variables, host.withheld] for name, host in listing.hosts.items()},
        "groups": {group: [index[name] for name in members] for group, members in listing.groups.items()},
    }
    with contextlib.suppress(OSError):
        # mkstemp makes the file 0600.
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(stored, file, separators=(",", ":"))
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
