"""A lab as a site: `fleetctl` run on its inventory as a person would, and what its nodes and Slurm say themselves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from fleetctl.lab.driver_image import driver_image
from fleetctl.lab.engine import Engine
from fleetctl.lab.images import head_image
from fleetctl.lab.machines import start_machines
from tests.lab.conftest import RunningLab, lab_up, wait_until
from tests.lab.evidence import EVENTS, LOG, Event, read_events

T = TypeVar("T")

FLEETCTL = str(Path(sys.executable).with_name("fleetctl"))
OLD, NEW = "570.195.03", "580.95.05"
PATIENCE_S = 900.0
"""How long a rollout may take: minutes where others use the machine too."""

_PACKAGES = "dpkg-query --show --showformat='${Package}=${Version} ${db:Status-Abbrev}\\n'"


@dataclass(frozen=True)
class Controller:
    """A `fleetctl` that runs beside the test."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def said(self) -> str:
        return self.output.read_text()

    def wait_for(self, pattern: str, timeout_s: float = PATIENCE_S) -> None:
        """Return as soon as a line it printed matches; fail if it ends before that."""

        def has_said() -> bool:
            if re.search(pattern, self.said, re.MULTILINE):
                return True
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {pattern!r}:\n{self.said}"
            return False

        wait_until(has_said, f"{pattern!r} in the output", timeout_s)

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for the end; the exit code."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not end within {timeout_s:.0f} s:\n{self.said}") from None

    def kill(self) -> None:
        """SIGKILL, to it alone: what it started lives on."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)


@dataclass(frozen=True)
class Fleet:
    """The nodes of a lab, and the commands that change them."""

    lab: RunningLab
    site: Path | None = None
    """The inventory, where it is not the lab's own."""

    @property
    def nodes(self) -> list[str]:
        return [node.name for node in self.lab.plan.nodes]

    @property
    def inventory(self) -> Path:
        return self.site or self.lab.plan.inventory

    # --- fleetctl

    def argv(self, *words: str) -> list[str]:
        site = [] if "--inventory" in words else ["--inventory", str(self.inventory)]
        return [FLEETCTL, *words, *site]

    def fleetctl(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, whatever that is."""
        return subprocess.run(
            self.argv(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def expect(self, code: int, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run a command that must end with this code."""
        done = self.fleetctl(*words, timeout_s=timeout_s)
        assert done.returncode == code, f"{' '.join(words)}: {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
        return done

    def start(self, *words: str) -> Controller:
        """Run a command beside the test."""
        output = self.lab.plan.directory / f"output-{time.monotonic_ns()}"
        with output.open("w") as stream:
            process = subprocess.Popen(
                self.argv(*words), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT
            )
        return Controller(process, output)

    def declare(self, **variables: Any) -> None:
        """Change what group_vars declares for all GPU nodes; None takes a variable away."""
        _edit(self.inventory / "group_vars" / "gpu_nodes.yml", variables)

    def allow(self, **settings: Any) -> None:
        """Change settings of fleet.yml's rollout section."""
        path = self.inventory / "fleet.yml"
        rollout = yaml.safe_load(path.read_text())["rollout"]
        _edit(path, {"rollout": {**rollout, **settings}})

    def set_policy(self, **keys: Any) -> None:
        """Change keys of fleet.yml; None takes one away."""
        _edit(self.inventory / "fleet.yml", keys)

    # --- what nodes say

    def on_all(self, read: Callable[[str], T], nodes: Collection[str] = ()) -> dict[str, T]:
        """Ask every node, side by side."""
        chosen = list(nodes or self.nodes)
        with ThreadPoolExecutor(4) as pool:
            return dict(zip(chosen, pool.map(read, chosen), strict=True))

    def loaded(self, node: str) -> str:
        return self.lab.say(node, "cat /sys/module/nvidia/version 2> /dev/null || echo none")

    def packages(self, node: str) -> str:
        """Every package with version and state, and every hold: equal texts are equal closures."""
        return self.lab.say(node, f"{_PACKAGES}; echo; apt-mark showhold; dpkg --audit")

    def ansible_modules(self, node: str) -> int:
        """How many modules Ansible has run there since its boot: each writes a line to the node's syslog."""
        return int(self.lab.say(node, "sudo journalctl --quiet --no-pager | grep -c ' ansible-.*Invoked with' || true"))

    def ansible(self, node: str, module: str) -> None:
        """Run one module on a node, as an admin would."""
        argv = (str(Path(FLEETCTL).with_name("ansible")), node, "-m", module)
        subprocess.run(argv, cwd=self.lab.directory, capture_output=True, timeout=60, check=True)

    def gpus(self, node: str) -> str:
        return self.lab.say(node, "nvidia-smi -L | wc -l")

    # --- what Slurm says

    def head(self, command: str) -> str:
        return self.lab.say("head-1", command)

    def events(self) -> list[Event]:
        return read_events(self.head(EVENTS))

    def log(self) -> str:
        return self.head(LOG)

    def drains(self, node: str) -> int:
        """How often slurmctld was told to drain the node."""
        return sum(f"update_node: node {node} state set to DRAIN" in line for line in self.log().splitlines())

    def submit(self, node: str, script: str, minutes: int = 30) -> str:
        """A job of the ordinary user that takes the whole node; its id, once it runs."""
        job = self.head(
            "sudo -u researcher sbatch --parsable --chdir=/home/researcher --output=/dev/null --gpus-per-node=8"
            f" --nodelist={node} --time={minutes} --wrap '{script}'"
        )
        wait_until(lambda: self.head(f"squeue -h -o %T -j {job} || true") == "RUNNING", f"job {job} runs on {node}")
        return job

    def job_state(self, job: str) -> str:
        return self.head(f"sacct --allusers -n -P -X -j {job} --format=State")

    def untouched(self) -> Mapping[str, str]:
        """A text for each machine that changes if anything is done to it: packages, apt, boot, lease, node updates."""
        look = (
            f"cat /proc/sys/kernel/random/boot_id; {_PACKAGES}; apt-mark showhold; sudo find /var/lib/fleetctl -ls;"
            " sudo find /etc/apt /etc/modprobe.d -type f -printf '%p %T@\\n' | sort"
        )
        told = self.on_all(lambda node: self.lab.say(node, f"({look}) 2> /dev/null || true"))
        updates = [line for line in self.log().splitlines() if "update_node: node gpu" in line]
        return {**told, "slurmctld": "\n".join(updates)}

    # --- back to the beginning

    def reinstall(self, *nodes: str) -> None:
        """Nodes as they were when the lab came up: another disk in the same machine, back at work in Slurm."""
        engine, plan = Engine(self.lab.directory / "containers.conf"), self.lab.plan
        for node in nodes:
            for fault in plan.faults_of(plan.machine(node)).iterdir():
                fault.unlink()
        engine.podman("rm", "--force", "--time", "0", *(plan.container(plan.machine(node)) for node in nodes))
        images = head_image(engine, plan.release, _silent), driver_image(engine, plan, _silent)
        start_machines(engine, plan, *images, _silent)
        for node in nodes:
            wait_until(lambda node=node: self.lab.boot_id(node) != "", f"{node} answers")  # type: ignore[misc]
            self.lab.resume(node)


@contextmanager
def fleet_up(directory: Path, *, nodes: int, racks: int = 1, **rollout: Any) -> Iterator[Fleet]:
    """A fleet in directory for the time of the block: all nodes may go at once and no time is wasted, unless told."""
    with lab_up(directory, nodes=nodes, racks=racks) as running:
        fleet = Fleet(running)
        quick = {"canary": 0, "soak_min": 0, "max_unavailable": nodes, "max_unavailable_per": {}, "poll_s": 1}
        quick |= {"retry_after_s": 1, "retry_at_most_s": 5, "deferred_again_after_s": 3600}
        fleet.allow(**quick, **rollout)
        yield fleet


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refused command says; it says nothing else."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    assert lines[0].startswith("fleetctl: ")
    return lines[0]


def _edit(path: Path, changes: Mapping[str, Any]) -> None:
    content = {**yaml.safe_load(path.read_text()), **changes}
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))


def _silent(_line: str) -> None:
    """Say nothing."""
