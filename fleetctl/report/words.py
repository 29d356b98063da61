"""Times, spans and counts as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo
from math import ceil

from fleetctl.model.names import fold


def clock(at: datetime, now: datetime, zone: tzinfo) -> str:
    """A time near `now`: "09:40" today, "Tue 09:40" within a week, else with its date."""
    there, here = at.astimezone(zone), now.astimezone(zone)
    if there.date() == here.date():
        return f"{there:%H:%M}"
    if abs(there - here) < timedelta(days=6):
        return f"{there:%a %H:%M}"
    return f"{there:%Y-%m-%d %H:%M}"


def hours(span_s: float) -> str:
    """ "7:50" for hours and minutes, rounded up to the minute."""
    minutes = ceil(span_s / 60)
    return f"{minutes // 60}:{minutes % 60:02}"


def age(since: datetime, now: datetime) -> str:
    """ "3 d", "5 h", "12 min"."""
    minutes = max(0, int((now - since).total_seconds() // 60))
    if minutes >= 2 * 24 * 60:
        return f"{minutes // (24 * 60)} d"
    return f"{minutes // 60} h" if minutes >= 120 else f"{minutes} min"


def ago(since: datetime, now: datetime) -> str:
    """ "3 d ago", or "just now"."""
    span = age(since, now)
    return "just now" if span == "0 min" else f"{span} ago"


def count(number: int, noun: str) -> str:
    """ "1 node", "3 nodes"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def folded(names: Iterable[str]) -> str:
    """Folded names, with their number where there are several: "gpu[003-006] (4)"."""
    chosen = list(names)
    return fold(chosen) if len(chosen) == 1 else f"{fold(chosen)} ({len(chosen)})"
