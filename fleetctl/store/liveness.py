"""Which process a controller is, and whether it still lives."""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Controller:
    """One process on one machine; pid and start time together are never given twice.

    `machine` is the kernel's boot and the pid namespace: only there does a pid mean anything.
    """

    owner: str
    host: str
    machine: str
    pid: int
    started_ticks: int

    def __str__(self) -> str:
        return f"{self.owner}:{self.pid}"


def this_controller() -> Controller:
    """The process that asks."""
    host = socket.gethostname()
    machine = f"{(_PROC / 'sys/kernel/random/boot_id').read_text().strip()} {(_PROC / 'self/ns/pid').readlink()}"
    seen = _read_stat(os.getpid())
    return Controller(f"{user_name()}@{host}", host, machine, os.getpid(), seen[1] if seen else 0)


def user_name() -> str:
    """The person behind this process, also behind sudo; for people to read, nothing is allowed by it."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return os.environ.get("SUDO_USER") or name if os.getuid() == 0 else name


def look_at(controller: Controller) -> Literal["running", "stopped", "gone", "unseen"]:
    """What this machine's kernel says of a controller; unseen: it is on another machine."""
    if controller.machine != this_controller().machine:
        return "unseen"
    try:
        os.kill(controller.pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass  # it is there, and another user's
    seen = _read_stat(controller.pid)
    if seen is None:
        return "running"  # /proc may hide the processes of others (hidepid): only a person can say that it is dead
    state, started_ticks = seen
    if started_ticks != controller.started_ticks or state in "ZX":
        return "gone"
    return "stopped" if state in "Tt" else "running"


def _read_stat(pid: int) -> tuple[str, int] | None:
    """State and start time of a process: fields 3 and 22 of proc_pid_stat(5)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command in brackets, and may hold blanks and brackets itself.
    rest = text.rpartition(")")[2].split()
    return rest[0], int(rest[19])
