"""Runs that outlived their controller: find them and end them.

SIGKILL of the controller leaves ansible-playbook alive, and what it started goes on on the nodes. Ending it here stops
new tasks; what already runs on a node is seen there: by the lease, which can't be taken over before it ends, and by
the probe, whose package processes keep every act waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

_MARK = "FLEETCTL_RUN="
"""In the environment of every process of a run; Ansible's workers leave their parent's session, never this."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A run of this machine whose controller is gone. `pids` are its processes that still live."""

    run: str
    rollout: str
    epoch: int
    nodes: tuple[str, ...]
    playbook: str
    pids: tuple[int, ...]
    directory: Path

    @property
    def is_at_work(self) -> bool:
        """True while Ansible lives; ssh's masters stay for a minute after it and wait for nothing."""
        return any(_name_of(pid) not in ("", "ssh") for pid in processes_of(self.run))


def runs_directory(state_directory: Path) -> Path:
    return state_directory / "runs"


def orphans(state_directory: Path) -> list[Orphan]:
    """Runs recorded in the state directory by controllers of this machine that no longer live."""
    found = []
    for directory in sorted(runs_directory(state_directory).glob("*")):
        orphan = _read_orphan(directory)
        if orphan is not None:
            found.append(orphan)
    return found


def end_orphan(orphan: Orphan) -> None:
    """Kill what is left of the run, with everything it started here, and remove its directory."""
    end_everything_of(orphan.run)
    with contextlib.suppress(OSError, ValueError, KeyError):
        shutil.rmtree(json.loads((orphan.directory / "run.json").read_text())["sockets"], ignore_errors=True)
    shutil.rmtree(orphan.directory, ignore_errors=True)


def end_everything_of(run: str, limit_s: float = 5) -> None:
    """Kill every process of a run, until none is left: a parent killed late may have started another child."""
    until = time.monotonic() + limit_s
    while (pids := processes_of(run)) and time.monotonic() < until:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes_of(run: str) -> tuple[int, ...]:
    """Living processes whose environment names the run."""
    wanted = f"{_MARK}{run}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return tuple(found)


def identity_of_process(pid: int) -> tuple[int, int]:
    """Process id and start time in clock ticks after boot (proc_pid_stat(5), field 22); start 0: no such process."""
    try:
        return pid, _start_time((Path("/proc") / str(pid) / "stat").read_text())
    except OSError:
        return pid, 0


def _name_of(pid: int) -> str:
    """The process's name; empty for one that is gone."""
    try:
        return (Path("/proc") / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _start_time(stat: str) -> int:
    return int(stat[stat.rindex(")") + 2 :].split()[19])


def _read_orphan(directory: Path) -> Orphan | None:
    try:
        record = json.loads((directory / "run.json").read_text())
        controller = (int(record["controller"][0]), int(record["controller"][1]))
        if record["host"] != socket.gethostname() or identity_of_process(controller[0]) == controller:
            return None
        pids = dict.fromkeys((*_recorded_child(directory), *processes_of(record["run"])))
        return Orphan(
            run=record["run"],
            rollout=record["rollout"],
            epoch=record["epoch"],
            nodes=tuple(record["nodes"]),
            playbook=record["playbook"],
            pids=tuple(pids),
            directory=directory,
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None  # written by halves: its child was never started


def _recorded_child(directory: Path) -> tuple[int, ...]:
    """The ansible-playbook of a run, if it still lives as the process that it was."""
    try:
        stat = (directory / "child").read_text()
        pid, started = int(stat.split()[0]), _start_time(stat)
    except (OSError, ValueError, IndexError):
        return ()
    return (pid,) if identity_of_process(pid) == (pid, started) else ()
