"""What the listings of Slurm say of one node or one job, before they are joined."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from fleetctl.model.work import Job


class Malformed(Exception):
    """A listing that has not the form this program knows; its text says where."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node in a node listing. `is_allocated`: CPUs, memory or GRES of it are in use, or it is not known."""

    name: str
    states: frozenset[str]
    is_allocated: bool
    reason: str = ""
    reason_by: str = ""
    reason_at: datetime | None = None
    partitions: frozenset[str] = frozenset()
    gpus_configured: int | None = None


NodeListing = Mapping[str, NodeRecord]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job that holds nodes."""

    job: Job
    nodes: tuple[str, ...]


_GRES = re.compile(
    r"(?P<name>[^:,()=]+)(?::(?P<type>[^:,()=]+))?[:=](?P<count>[0-9]{1,15})(?P<unit>[kKmMgGtT]?)(?:\([^()]*\))?"
)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NOTHING = frozenset({"", "(null)", "N/A", "null"})


def count_gres(text: str) -> Mapping[str, int] | None:
    """`gpu:h100:8(S:0-1),shard:4` by name; None if the text is not of that form."""
    counts: dict[str, int] = {}
    if text.strip() in _NOTHING:
        return counts
    # commas inside brackets belong to the socket or index list
    for one in re.split(r",(?![^()]*\))", text.strip()):
        found = _GRES.fullmatch(one)
        if found is None:
            return None
        counts[found["name"]] = counts.get(found["name"], 0) + int(found["count"]) * _UNITS[found["unit"].lower()]
    return counts


def is_gres_used(text: str) -> bool:
    """True if some of it is in use, or if the text is not understood."""
    counts = count_gres(text)
    return counts is None or any(counts.values())


def count_gpus(gres: str) -> int | None:
    """GPUs configured on the node; None if there are none or the text is not understood."""
    counts = count_gres(gres)
    return counts.get("gpu") if counts else None


def read_utc(text: str) -> datetime | None:
    """`2026-11-30T21:10:00`, printed with TZ=UTC; None for Unknown, N/A and the like."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def read_epoch(seconds: int | None) -> datetime | None:
    """None for 0 and for what no clock shows: Slurm's "infinite" and "not set"."""
    return datetime.fromtimestamp(seconds, UTC) if seconds and 0 < seconds < 0xFFFFFFF0 else None
