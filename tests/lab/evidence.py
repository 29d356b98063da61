"""What Slurm itself recorded of a rollout: who was out when. Nothing here asks fleetctl, or reads its journal.

Three witnesses, one question. slurmdbd's events, slurmctld's log and a sampler beside the rollout are each turned into
frames: the set of nodes that were out from one moment on. Out: drained, draining or down, with work or without.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from ClusterShell.NodeSet import NodeSet

SAMPLE = (
    'while :; do echo "@ $(date +%s.%N)"; timeout 5 sinfo --noheader --Node --partition=train'
    " --Format=NodeList:32,StateComplete:64 || echo '@ failed'; sleep 1; done"
)
"""The sampler, a shell command for the head: once a second, the state of every node."""

EVENTS = "sacctmgr --parsable2 --noheader show event format=nodename,timestart,timeend,state,reason,user"
LOG = "sudo cat /var/log/slurm/slurmctld.log"

_SET = re.compile(r"\[(?P<at>\S+)\] update_node: node (?P<node>\S+) state set to (?P<state>\S+)")
_REBOOTED = re.compile(r"\[(?P<at>\S+)\] validate_node_specs: Node (?P<node>\S+) unexpectedly rebooted")
_SILENT = re.compile(r"\[(?P<at>\S+)\] error: Nodes? (?P<node>\S+) not responding, setting DOWN")
_RETURNED = re.compile(r"\[(?P<at>\S+)\] (?:node_did_resp: node|Node) (?P<node>\S+) returned to service")


@dataclass(frozen=True, slots=True)
class Frame:
    """Who was out from `at` (seconds since the epoch) until the next frame."""

    at: float
    out: frozenset[str]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of slurmdbd; `end` is None while it lasts."""

    node: str
    begin: float
    end: float | None
    state: str
    reason: str
    user: str


def read_events(text: str) -> list[Event]:
    """What EVENTS printed; the rows that are about no node are left out."""
    rows = (line.split("|") for line in text.splitlines())
    return [
        Event(node, _seconds(begin), None if end == "Unknown" else _seconds(end), state, reason, user)
        for node, begin, end, state, reason, user in rows
        if node
    ]


def frames_of_events(events: Iterable[Event]) -> list[Frame]:
    """An event that ends in the second in which another begins does not overlap it."""
    spans: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        spans.setdefault(event.node, []).append((event.begin, float("inf") if event.end is None else event.end))
    moments = sorted({edge for node in spans.values() for span in node for edge in span})
    return [
        Frame(at, frozenset(node for node, own in spans.items() if any(begin <= at < end for begin, end in own)))
        for at in moments
    ]


def frames_of_log(text: str) -> list[Frame]:
    """What LOG printed."""
    out: frozenset[str] = frozenset()
    frames = []
    for line in text.splitlines():
        if told := _SET.match(line):
            state = told["state"]
            goes_out = not state.startswith("UNDRAIN") and any(word in state for word in ("DRAIN", "DOWN", "FAIL"))
        elif told := _REBOOTED.match(line) or _SILENT.match(line):
            goes_out = True
        elif told := _RETURNED.match(line):
            goes_out = False
        else:
            continue
        nodes = frozenset(NodeSet(told["node"].rstrip(",")))
        out = out | nodes if goes_out else out - nodes
        frames.append(Frame(_seconds(told["at"]), out))
    return frames


def frames_of_samples(text: str) -> list[Frame]:
    """What SAMPLE printed; the last sample may be cut off, and one that failed is left out."""
    frames = []
    for block in text.split("@ ")[1:-1]:
        at, *rows = block.splitlines()
        states = [row.split() for row in rows]
        if at != "failed" and states and all(len(row) == 2 for row in states):
            frames.append(Frame(float(at), frozenset(node for node, state in states if _is_out(state))))
    return frames


def largest_gap_s(frames: Sequence[Frame]) -> float:
    """The longest time that went by between two samples."""
    return max((later.at - earlier.at for earlier, later in pairwise(frames)), default=0.0)


def most_at_once(frames: Iterable[Frame], among: Collection[str]) -> int:
    """How many of these nodes were out at the same time, at worst."""
    return max((len(frame.out & frozenset(among)) for frame in frames), default=0)


def ever_out(frames: Iterable[Frame]) -> frozenset[str]:
    """Every node that was out at some time."""
    return frozenset().union(*(frame.out for frame in frames))


def seconds_out(events: Iterable[Event]) -> Mapping[str, float]:
    """How long each node was out, by slurmdbd's events."""
    total: dict[str, float] = {}
    for event in events:
        if event.end is not None:
            total[event.node] = total.get(event.node, 0.0) + event.end - event.begin
    return total


def _is_out(state: str) -> bool:
    return any(word in state.upper() for word in ("DRAIN", "DOWN", "FAIL"))


def _seconds(stamp: str) -> float:
    # Slurm prints local time without a zone; only differences within one source are ever looked at.
    return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
