"""Aligned columns of plain text that fit a screen, with long cells wrapped rather than cut."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

WIDTH = 100
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """`at_most` characters wide; the one without it takes what is left of the screen."""

    title: str
    at_most: int | None = None
    is_right: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """The lines of a table with its head."""
    widths = _widths(columns, rows, width)
    lines = _row([column.title for column in columns], columns, widths)
    for row in rows:
        lines += _row(row, columns, widths)
    return lines


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    natural = [max(len(row[index]) for row in [[c.title for c in columns], *rows]) for index in range(len(columns))]
    widths = [
        need if column.at_most is None else max(min(need, column.at_most), len(column.title))
        for need, column in zip(natural, columns, strict=True)
    ]
    over = sum(widths) + len(_GAP) * (len(columns) - 1) - width
    free = [index for index, column in enumerate(columns) if column.at_most is None]
    for index in free:
        cut = max(0, min(over, widths[index] - len(columns[index].title) - 8))
        widths[index] -= cut
        over -= cut
    return widths


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    wrapped = [wrap(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for parts in zip_longest(*wrapped, fillvalue=""):
        padded = [
            part.rjust(width) if column.is_right else part.ljust(width)
            for part, column, width in zip(parts, columns, widths, strict=True)
        ]
        lines.append(_GAP.join(padded).rstrip())
    return lines


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width`, broken at blanks and behind commas; a longer word is broken where it must be."""
    # A comma of folded names is a place to break, though no blank follows it.
    spaced = re.sub(r",(?=\S)", ",\u200b", text)
    pieces = re.split(r"([ \u200b])", spaced)
    lines, line = [], ""
    for piece in pieces:
        if piece == "\u200b":
            continue
        if len(line) + len(piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = piece.lstrip()
        else:
            line += piece
        while len(line.rstrip()) > width:
            lines.append(line[:width])
            line = line[width:]
    return [*lines, line.rstrip()] if line.strip() or not lines else lines


def sentence(text: str, width: int = WIDTH, indent: str = "") -> list[str]:
    """Prose wrapped at the screen's width; further lines are indented."""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
