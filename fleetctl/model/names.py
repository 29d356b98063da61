"""Names of nodes as people read and write them: folded, and in natural order."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(\d+)", re.ASCII)


def fold(names: Iterable[str]) -> str:
    """`gpu[001-016],login1` for a set of names; n01 and n001 stay apart. Text of no names is empty."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    plain: list[str] = []
    odd: list[str] = []
    for name in names:
        # NodeSet gives these a meaning of their own.
        (odd if re.search(r"[\[\],!&^@%\s]", name) else plain).append(name)
    folded = str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP)) if plain else ""
    return ",".join(filter(None, [folded, *sorted(odd)]))


def natural_key(name: str) -> tuple[tuple[int, str, int], ...]:
    """Sorts gpu2 before gpu10; names that differ only in width stay apart."""
    parts = _NUMBER.split(name)
    return tuple((int(part), "", len(part)) if index % 2 else (0, part, 0) for index, part in enumerate(parts))
