"""Hosts whose templates must render alike: of ten thousand hosts of one group, one is rendered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fleetctl.model.fleet import HostVars, Json

_WORD = re.compile(r"[A-Za-z_]\w*")
# With one of these words a template sees more than the variables that it names: who the host is, or other hosts.
_SEES_MORE = frozenset(
    {
        "group_names",
        "groups",
        "hostvars",
        "inventory_dir",
        "inventory_file",
        "inventory_hostname",
        "inventory_hostname_short",
        "lookup",
        "q",
        "query",
        "random",
        "shuffle",
        "vars",
    }
)


def find_alike(hostvars: Mapping[str, HostVars], templated: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """Each host of `templated` to the first host with the same templates over the same values.

    None if a template sees more than its own host's variables: then every host is rendered, with all others at hand.
    """
    first: dict[str, str] = {}
    alike: dict[str, str] = {}
    for host, names in templated.items():
        used = _used(hostvars[host], names)
        if used is None:
            return None
        key = json.dumps([names, used], sort_keys=True)
        alike[host] = first.setdefault(key, host)
    return alike


def _used(variables: HostVars, names: Sequence[str]) -> dict[str, Json] | None:
    """The named variables and all that their texts may name, directly or through others, as they are given."""
    used: dict[str, Json] = {}
    owed = list(names)
    while owed:
        name = owed.pop()
        if name in used or name not in variables:
            continue
        used[name] = variables[name]
        words = _words(json.dumps(variables[name]))
        if not words.isdisjoint(_SEES_MORE):
            return None
        owed += words
    return used


@lru_cache(maxsize=10_000)
def _words(text: str) -> frozenset[str]:
    """Every word of a value: more than the variables that it names, never fewer."""
    return frozenset(_WORD.findall(text))
