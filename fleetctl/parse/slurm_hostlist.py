"""Slurm's folded node lists: `gpu[001-003,007],login1`.

ClusterShell's NodeSet is not used for them: it refuses ranges that Slurm prints (`n[08-101]`), sorts, and reads `!`,
`&`, `^` and `@` in a name as operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from fleetctl.model.reading import Reading, unknown, value_of

# Brackets never nest; what is outside them holds neither bracket, comma nor blank.
_ELEMENT = re.compile(r"(?:[^\[\],\s]+|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],\s]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)

# Slurm's own limit on one range is 64k (MAX_RANGE in hostlist.h); more is not a fleet but a broken text.
_MAX_NAMES = 200_000


class _Malformed(Exception):
    pass


def expand_hostlist(text: str) -> Reading[tuple[str, ...]]:
    """Names in the order written, widths kept, products of several brackets; unknown, naming the text, if malformed."""
    try:
        names: list[str] = []
        for element in _split_elements(text.strip()):
            names.extend(_expand_element(element, _MAX_NAMES - len(names)))
    except _Malformed as error:
        return unknown(f"node list {text[:200]!r}: {error}")
    return value_of(tuple(names))


def _split_elements(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        found = _ELEMENT.match(text, position)
        if found is None:
            raise _Malformed(f"no node name at {text[position : position + 20]!r}")
        yield found.group()
        position = found.end()
        if position < len(text):
            if text[position] != "," or position + 1 == len(text):
                raise _Malformed(f"unexpected {text[position : position + 20]!r}")
            position += 1


def _expand_element(element: str, room: int) -> Iterator[str]:
    parts: list[list[str]] = []
    size = 1
    for found in _PART.finditer(element):
        numbers = _expand_ranges(found[1], room) if found[1] is not None else [found[2]]
        size *= len(numbers)
        if size > room:
            raise _Malformed(f"more than {_MAX_NAMES} names")
        parts.append(numbers)
    return ("".join(combination) for combination in product(*parts))


def _expand_ranges(ranges: str, room: int) -> list[str]:
    numbers: list[str] = []
    for one in ranges.split(","):
        found = _RANGE.fullmatch(one)
        if found is None:
            raise _Malformed(f"bad range {one!r}")
        first, last = found[1], found[2] or found[1]
        count = int(last) - int(first) + 1
        if count < 1:
            raise _Malformed(f"range {one!r} runs backwards")
        if len(numbers) + count > room:
            raise _Malformed(f"more than {_MAX_NAMES} names")
        numbers.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return numbers
