"""Finding one fact in what the probe printed. Whatever is missing or of the wrong shape is unknown, never an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from fleetctl.model.fleet import Json
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ended. `lines`: how many it printed before the probe left out those that don't matter."""

    rc: int
    out: str
    err: str
    truncated: bool = False
    lines: int | None = None

    @property
    def said(self) -> str:
        """Both streams: some tools print their failures on stdout."""
        return "\n".join(part for part in (self.out.strip(), self.err.strip()) if part)

    @property
    def why(self) -> str:
        """One line that says how it ended, for people."""
        text = one_line(self.err) or one_line(self.out)
        return f"exit {self.rc}: {text}" if text else f"exit {self.rc}"


def one_line(text: str, limit: int = 160) -> str:
    return " ".join(text.split())[:limit]


def part_of(raw: Json, *path: str) -> Json:
    """What is at this place, or None."""
    for key in path:
        if not isinstance(raw, Mapping):
            return None
        raw = raw.get(key)
    return raw


def text_or_empty(found: Json) -> str:
    return found if isinstance(found, str) else ""


def list_or_empty(found: Json) -> list[Json]:
    return found if isinstance(found, list) else []


def number_or_none(found: Json) -> float | None:
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if isfinite(number) else None


def trouble_with(fact: Json, what: str) -> str:
    """Why this fact of the probe says nothing about the node; empty if it may."""
    if not isinstance(fact, Mapping):
        return f"the probe says nothing of {what}"
    if fact.get("timed_out"):
        return f"{what} did not answer in time"
    if "error" in fact:
        return f"{what}: {one_line(str(fact['error']))}"
    return ""


def read_command(fact: Json, what: str) -> Reading[Ran]:
    """A command's outcome, whatever its exit code; not applicable where the node has no such program."""
    trouble = trouble_with(fact, what)
    if trouble:
        return unknown(trouble)
    if fact.get("missing"):
        return not_applicable(f"no {what.split()[0]} on this node")
    rc = fact.get("rc")
    if not isinstance(rc, int) or isinstance(rc, bool):
        return unknown(f"{what}: no exit code")
    lines = fact.get("lines")
    return value_of(
        Ran(
            rc,
            text_or_empty(fact.get("out")),
            text_or_empty(fact.get("err")),
            bool(fact.get("truncated")),
            lines if isinstance(lines, int) else None,
        )
    )


def read_text(fact: Json, what: str) -> Reading[str]:
    """A file's text; not applicable where there is no such file."""
    trouble = trouble_with(fact, what)
    if trouble:
        return unknown(trouble)
    if fact.get("absent"):
        return not_applicable(f"no {what} on this node")
    text = fact.get("text")
    return value_of(text) if isinstance(text, str) else unknown(f"{what}: no text")


def command_of(raw: Json, name: str, what: str) -> Reading[Ran]:
    return read_command(part_of(raw, "commands", name), what)


def file_of(raw: Json, path: str) -> Reading[str]:
    return read_text(part_of(raw, "files", path), path)
