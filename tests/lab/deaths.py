"""Killing a controller at a chosen moment, and watching from outside what its Ansible does afterwards."""

from __future__ import annotations

import json
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from tests.lab.fleet import PATIENCE_S, Controller, Fleet


@dataclass(frozen=True)
class LiveRun:
    """An ansible-playbook of this fleet that is alive."""

    run: str
    playbook: str
    nodes: frozenset[str]
    epoch: int

    def is_beside(self, other: LiveRun) -> bool:
        """Both may change one node. A preflight that nodes share goes on while the first of them is changed."""
        is_of_two = self.epoch != other.epoch or self.playbook == other.playbook
        return self.run != other.run and is_of_two and bool(self.nodes & other.nodes)


def live_runs(fleet: Fleet) -> list[LiveRun]:
    """Every ansible-playbook on this machine that works on this fleet, whoever started it."""
    found: dict[str, LiveRun] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        targets = next((Path(word) for word in words if word.endswith("/targets")), None)
        if targets is None or str(fleet.inventory) not in words or not any("ansible-playbook" in w for w in words):
            continue
        playbook = next((Path(word).name for word in words if word.endswith(".yml")), "")
        try:
            hosts = json.loads((targets / "hosts.json").read_text())["all"]["hosts"]
            epoch = json.loads((targets.parent / "run.json").read_text())["epoch"]
        except (OSError, ValueError):
            continue
        found[targets.parent.name] = LiveRun(targets.parent.name, playbook, frozenset(hosts), epoch)
    return list(found.values())


@dataclass
class Overlaps:
    """Two runs of Ansible that were alive for one node at the same time; empty is what the laws want."""

    seen: list[tuple[LiveRun, LiveRun]] = field(default_factory=list)
    looks: int = 0
    runs: set[str] = field(default_factory=set)


@contextmanager
def watching_runs(fleet: Fleet) -> Iterator[Overlaps]:
    """Look ten times a second, beside the block."""
    overlaps, is_over = Overlaps(), threading.Event()

    def look() -> None:
        while not is_over.wait(0.1):
            runs = live_runs(fleet)
            overlaps.looks += 1
            overlaps.runs |= {run.run for run in runs if run.playbook == "apply.yml"}
            overlaps.seen += [(a, b) for a, b in combinations(runs, 2) if a.is_beside(b)]

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield overlaps
    finally:
        is_over.set()
        thread.join()


def kill_when(controller: Controller, holds: Callable[[], bool], what: str) -> None:
    """SIGKILL to the controller alone, as soon as holds() is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert controller.process.poll() is None, f"ended before {what}:\n{controller.said}"
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}\n{controller.said}"
        time.sleep(0.05)
    controller.kill()


# In front of Slurm's own: an update that would give a node back is carried out, and its answer is withheld.
_FLAGS = "/run/slow-scontrol"
_SLOW_SCONTROL = f"""#!/bin/sh
/usr/bin/scontrol "$@"
code=$?
case "$*" in
update*State=UNDRAIN*|update*State=RESUME*)
    touch {_FLAGS}/given-back
    while [ -e {_FLAGS}/withhold ]; do sleep 0.1; done ;;
esac
exit $code
"""


@contextmanager
def undrain_unanswered(fleet: Fleet) -> Iterator[Callable[[], bool]]:
    """In the block, Slurm gives nodes back and does not answer; what it yields tells whether that has happened."""
    wrapper = "/usr/local/bin/scontrol"
    flags = f"sudo install -d -m 1777 {_FLAGS} && touch {_FLAGS}/withhold"
    fleet.head(f"{flags} && printf %s {shlex.quote(_SLOW_SCONTROL)} | sudo install -m 0755 /dev/stdin {wrapper}")
    try:
        yield lambda: fleet.lab.ssh("head-1", f"test -e {_FLAGS}/given-back", timeout_s=15).returncode == 0
    finally:
        fleet.head(f"sudo rm -rf {wrapper} {_FLAGS}")


Kind = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Position:
    """Where a journal ends: how many events, the last one, and the acts that were begun and have no outcome."""

    rollout: str
    length: int
    last: str
    begun: tuple[str, ...]

    @property
    def kind(self) -> Kind:
        """Equal for the same moment in the life of the nodes, whichever rollout and controller it is."""
        return self.last, self.begun

    @property
    def needs_children(self) -> bool:
        """Of what was begun, something is done by programs that are started beside the controller."""
        return any(act.startswith(("preflight", "apply", "verify")) for act in self.begun)


@dataclass(frozen=True)
class Death:
    """One SIGKILL: where the journal ended, and which programs outlived the controller."""

    position: Position
    survivors: tuple[str, ...]


def position_of(fleet: Fleet) -> Position:
    rollout, events = journal_of(fleet)
    begun: dict[str, str] = {}
    for event in events:
        if event["kind"] == "intended":
            begun[event["intent"]["node"]] = event["intent"]["act"]
        elif event["kind"] == "concluded":
            begun.pop(event["outcome"]["node"], None)
    last = _told(events[-1]) if events else ""
    return Position(rollout, len(events), last, tuple(f"{act} {node}" for node, act in sorted(begun.items())))


def kill_at_new_position(fleet: Fleet, controller: Controller, known: set[Kind], draw: Random) -> Death | None:
    """SIGKILL at the first position of a kind that is not known, or soon after; it is known from then on.

    None if the controller ended without one.
    """
    deadline = time.monotonic() + PATIENCE_S
    while controller.process.poll() is None:
        assert time.monotonic() < deadline, f"not ended within {PATIENCE_S:.0f} s:\n{controller.said}"
        position = position_of(fleet)
        if position.kind in known or not position.length or position.last == "closed":
            time.sleep(0.02)
            continue
        known.add(position.kind)
        if position.last != "resumed":
            if position.needs_children:
                _await_new_child(controller)
            time.sleep(draw.choice((0, 0, 0.1, 0.5, 1)))
        if controller.process.poll() is None:
            death = _kill(fleet, controller)
            known.add(death.position.kind)
            return death
    return None


def _await_new_child(controller: Controller) -> None:
    """Until a program that it starts now is at work, for as long as that may take; there may be nothing to do."""
    before, deadline = _children(controller.process.pid).keys(), time.monotonic() + 4
    while not _children(controller.process.pid).keys() - before and time.monotonic() < deadline:
        time.sleep(0.05)


def _kill(fleet: Fleet, controller: Controller) -> Death:
    children = _children(controller.process.pid)
    controller.kill()
    # Some children end by themselves just then: a survivor is one that still runs a little later.
    time.sleep(0.3)
    return Death(position_of(fleet), tuple(sorted({name for pid, name in children.items() if _is_running(pid)})))


def _is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _children(parent: int) -> dict[int, str]:
    """Everything that descends from a process, by pid, with the name of its program."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        try:
            pid, (name, _, after) = int(entry.name), (entry / "stat").read_text().rpartition(")")
            names[pid], parents[pid] = _script(entry) or name.partition("(")[2], int(after.split()[1])
        except (OSError, ValueError):
            continue
    found: dict[int, str] = {}
    level = {parent}
    while level:
        level = {pid for pid, above in parents.items() if above in level and pid not in found}
        found |= {pid: names[pid] for pid in level}
    return found


def _script(entry: Path) -> str:
    """What an interpreter runs, where that says more than its own name."""
    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    known = ("ansible-playbook", "pytest")
    return next((name for name in known if any(Path(word).name == name for word in words[:4])), "")


def _told(event: Mapping[str, Any]) -> str:
    part = event.get("intent") or event.get("outcome") or event
    return " ".join(str(word) for word in (event["kind"], part.get("act", ""), part.get("node", "")) if word)


def journal_of(fleet: Fleet) -> tuple[str, list[dict[str, Any]]]:
    """The newest rollout and its events on disk: only to choose a moment, or to say which moment it was."""
    path = fleet.lab.directory / "state" / "journal.db"
    if not path.exists():
        return "", []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as journal:
        if not journal.execute("SELECT 1 FROM sqlite_master WHERE name = 'events'").fetchone():
            return "", []
        newest = journal.execute("SELECT name FROM rollouts ORDER BY rowid DESC LIMIT 1").fetchone()
        if newest is None:
            return "", []
        rows = journal.execute("SELECT payload FROM events WHERE rollout = ? ORDER BY seq", newest)
        return newest[0], [json.loads(payload) for (payload,) in rows]


def open_act(fleet: Fleet, node: str) -> str:
    """The act that was begun on the node and has no outcome on disk; empty if there is none."""
    return next((act.split()[0] for act in position_of(fleet).begun if act.split()[1] == node), "")
