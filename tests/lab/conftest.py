"""Labs for tests: each under a name of its own, taken down when its tests are over."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetctl import lab
from fleetctl.errors import BadInput
from fleetctl.lab.engine import require_engine
from fleetctl.lab.layout import Lab, Release


@dataclass(frozen=True)
class RunningLab:
    """A lab that is up, with what tests ask of it."""

    directory: Path
    plan: Lab

    def ssh(self, machine: str, command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a shell command as the automation user, host key checked."""
        argv = lab.ssh_argv(machine, command, directory=self.directory)
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def say(self, machine: str, command: str) -> str:
        """Run a shell command that must succeed; return what it printed."""
        done = self.ssh(machine, command)
        assert done.returncode == 0, f"{command!r} on {machine}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def fault(self, node: str, kind: str, argument: str | None = None, *, clear: bool = False) -> None:
        lab.fault(node, kind, argument, clear=clear, directory=self.directory)

    def slurm_state(self, node: str) -> str:
        """Return the State of scontrol show node, such as IDLE+DRAIN."""
        return self._node_field(node, "State")

    def settled_state(self, node: str) -> str:
        """The State as soon as slurmd answers: on a busy machine slurmctld misses a ping now and then."""
        wait_until(lambda: "NOT_RESPONDING" not in self.slurm_state(node), f"slurmd of {node} answers")
        return self.slurm_state(node)

    def reason(self, node: str) -> str:
        """Return the Reason of scontrol show node without who and when; empty when there is none."""
        return self._node_field(node, "Reason").partition(" [")[0]

    def drain(self, node: str, reason: str) -> None:
        self.say("head-1", f"sudo scontrol update NodeName={node} State=DRAIN Reason='{reason}'")

    def resume(self, node: str) -> None:
        """Give a node back, once slurmd has registered."""
        wait_until(lambda: "NOT_RESPONDING" not in self.slurm_state(node), f"slurmd of {node} registers")
        self.say("head-1", f"sudo scontrol update NodeName={node} State=RESUME")
        wait_until(lambda: self.slurm_state(node) == "IDLE", f"{node} idle")

    def boot_id(self, node: str) -> str:
        """Return the boot id that the node says over SSH, empty while it does not answer."""
        done = self.ssh(node, "cat /proc/sys/kernel/random/boot_id", timeout_s=15)
        return done.stdout.strip() if done.returncode == 0 else ""

    def reboot(self, node: str, *, timeout_s: float = 60) -> None:
        """Reboot and wait for a new boot id."""
        before = self.boot_id(node)
        assert before, f"{node} does not answer before its reboot"
        self.ssh(node, "sudo systemctl reboot")
        wait_until(lambda: self.boot_id(node) not in ("", before), f"{node} back", timeout_s)

    def _node_field(self, node: str, field: str) -> str:
        for line in self.say("head-1", f"scontrol show node {node}").splitlines():
            if line.strip().startswith(f"{field}="):
                value = line.strip().partition("=")[2]
                return value if field == "Reason" else value.split()[0]
        return ""


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    """Return as soon as holds() is true; fail, saying what was waited for, after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.3)


@contextmanager
def lab_up(directory: Path, *, nodes: int, racks: int, release: Release = "bookworm") -> Iterator[RunningLab]:
    """A lab in directory for the time of the block. Skips, with the reason, where containers can't be run."""
    try:
        require_engine()
    except BadInput as error:
        pytest.skip(f"no lab here: {error}")
    name = f"test-{os.getpid()}-{directory.name}"[:30].rstrip("-")
    try:
        plan = lab.up(nodes, racks, release, directory, name, say=lambda _: None)
        yield RunningLab(directory, plan)
    finally:
        lab.down(directory, name)


@pytest.fixture(scope="module")
def running_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Four nodes in two racks, shared by the tests of one module. A test leaves every node idle and without faults."""
    with lab_up(tmp_path_factory.mktemp("lab"), nodes=4, racks=2) as running:
        yield running
