"""Killing a controller at a chosen moment, and watching from outside what its Ansible does afterwards."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleetctl import lab
from tests.lab.fleet import PATIENCE_S, Controller, Fleet


@dataclass(frozen=True)
class LiveRun:
    """An ansible-playbook of this fleet that is alive."""

    run: str
    playbook: str
    nodes: frozenset[str]


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
        except (OSError, ValueError):
            continue
        found[targets.parent.name] = LiveRun(targets.parent.name, playbook, frozenset(hosts))
    return list(found.values())


@dataclass
class Overlaps:
    """Two runs of Ansible that were alive on one node at the same time; empty is what the laws want."""

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
            overlaps.seen += [(a, b) for a in runs for b in runs if a.run < b.run and a.nodes & b.nodes]

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


def kill_on_log_line(fleet: Fleet, controller: Controller, text: str) -> None:
    """SIGKILL to the controller alone, as soon as slurmctld writes a line with this text to its log."""
    follow = "sudo tail --lines=0 --follow /var/log/slurm/slurmctld.log"
    argv = lab.ssh_argv("head-1", follow, directory=fleet.lab.directory)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as tail:
        timer = threading.Timer(PATIENCE_S, tail.kill)
        timer.start()
        try:
            assert tail.stdout is not None
            assert any(text in line for line in tail.stdout), f"slurmctld never wrote {text!r}:\n{controller.said}"
            assert controller.process.poll() is None, f"the controller ended before it could be killed at {text!r}"
            controller.kill()
        finally:
            timer.cancel()
            tail.kill()


def events_written(fleet: Fleet) -> list[dict[str, Any]]:
    """What the newest rollout's log tells so far: only to choose a moment, or to say which moment it was."""
    logs = sorted(
        (fleet.lab.directory / "state" / "logs").glob("*/rollout.jsonl"), key=lambda path: path.stat().st_ctime
    )
    lines = logs[-1].read_text().splitlines() if logs else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def open_act(fleet: Fleet, node: str) -> str:
    """The act that was begun on the node and has no outcome on disk; empty if there is none."""
    act = ""
    for event in events_written(fleet):
        if event["kind"] == "intended" and event["intent"]["node"] == node:
            act = event["intent"]["act"]
        elif event["kind"] == "concluded" and event["outcome"]["node"] == node:
            act = ""
    return act
