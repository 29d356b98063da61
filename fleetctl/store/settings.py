"""Where a setting comes from: flag, else FLEETCTL_*, else fleet.yml, else the default. The order's one home."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import PolicyError
from fleetctl.store.yaml_file import KeyPath, YamlFile

_PREFIX = "FLEETCTL_"
_TOP_LEVEL = ("state_url", "state_group", "inventory_max_age_s")
# INVENTORY is read when the site is looked for; the others are what hooks and power_cycle are given.
_OTHERS = ("INVENTORY", "NODE", "ROLLOUT", "REASON")


@dataclass(frozen=True, slots=True)
class Overlaid:
    """The values of fleet.yml with flags and environment laid over them, and where each of those came from."""

    values: Mapping[str, Any]
    sources: Mapping[KeyPath, str]
    file: YamlFile

    def place(self, key: KeyPath) -> str:
        """What a message starts with: the flag, the variable of the environment, or file:line and key."""
        for length in range(len(key), 0, -1):
            if source := self.sources.get(key[:length]):
                return source
        dotted = ".".join(str(part) for part in key)
        return f"{self.file.place(key)}: {dotted}" if dotted else self.file.place(key)


def overlay(
    file: YamlFile, rollout_keys: Iterable[str], flags: Mapping[str, Any], environ: Mapping[str, str]
) -> Overlaid:
    """Lay flags over FLEETCTL_* over the file. Flags are rollout settings by name; None means not given."""
    paths: dict[str, KeyPath] = {key: ("rollout", key) for key in rollout_keys} | {key: (key,) for key in _TOP_LEVEL}
    values = {key: value for key, value in file.values.items() if value is not None}
    sources: dict[KeyPath, str] = {}
    _refuse_misspelt(environ, paths)
    given: list[tuple[str, Any, str]]
    given = [(key, environ[name], name) for key in paths if (name := _PREFIX + key.upper()) in environ]
    given += [(key, value, f"--{key.replace('_', '-')}") for key, value in flags.items() if value is not None]
    for key, value, source in given:
        path = paths[key]
        sources[path] = f"{source} {value}" if isinstance(value, str | int | float) else source
        if len(path) == 1:
            values[key] = value
            continue
        section = values.get("rollout", {})
        if isinstance(section, Mapping):  # else the file is wrong, and is told so
            values["rollout"] = {**section, key: value}
    return Overlaid(values, sources, file)


def _refuse_misspelt(environ: Mapping[str, str], paths: Mapping[str, KeyPath]) -> None:
    known = [_PREFIX + key.upper() for key in paths] + [_PREFIX + name for name in _OTHERS]
    for name in environ:
        if name.startswith(_PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if near:
                raise PolicyError(f"{name} in the environment is not a setting: did you mean {near[0]}?")
