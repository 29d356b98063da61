"""Where in an inventory's files a variable is given: for messages only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from pathlib import Path

_AT_MOST = 3


def find_places(variable: str, directory: Path, groups: Set[str], hosts: Set[str]) -> list[str]:
    """ "file:line" of each place that gives `variable` to one of these groups or hosts; the first few.

    A search in the text: where a script or a plugin gives the variable, there is no place to be found.
    """
    given = re.compile(rf"""(?:^|[\s{{,])["']?{re.escape(variable)}["']?\s*[:=]""")
    found: list[str] = []
    for path in _candidates(directory, groups, hosts):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        name = path.relative_to(directory)
        found += [f"{name}:{number}" for number, line in enumerate(lines, 1) if given.search(line.partition(" #")[0])]
    return found if len(found) <= _AT_MOST else [*found[:_AT_MOST], "..."]


def _candidates(directory: Path, groups: Set[str], hosts: Set[str]) -> Iterator[Path]:
    yield from sorted(path for path in directory.iterdir() if path.is_file() and path.name != "fleet.yml")
    for kind, names in (("group_vars", groups | {"all"}), ("host_vars", hosts)):
        for entry in sorted((directory / kind).glob("*")):
            if entry.name in names or entry.stem in names:
                yield from sorted(path for path in entry.rglob("*") if path.is_file()) if entry.is_dir() else [entry]
