"""A real Slurm in a private directory: munged, slurmctld and several slurmd, all on this host, on ports of their own.

It is run where FLEETCTL_TEST_SLURM_VIA says: a command put before every other (`chroot /srv/trixie`, or
`podman exec -i lab-head`), here if it is empty. Not real: there is one machine under all nodes, the GPUs are null
devices, and processes are tracked without cgroups.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleetctl.adapters.command import LocalCommand
from fleetctl.adapters.ssh import Completed
from fleetctl.model.reading import Reading

VIA = tuple(shlex.split(os.environ.get("FLEETCTL_TEST_SLURM_VIA", "")))
NEEDED = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "sbatch", "setpriv")
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
GPUS = 4


def missing() -> str:
    """Why these tests can't run here; empty if they can."""
    if VIA and not shutil.which(VIA[0]):
        return f"needs {VIA[0]} (FLEETCTL_TEST_SLURM_VIA)"
    look = 'PATH="$PATH:/usr/sbin:/sbin"; id -u; for c in "$@"; do command -v "$c" > /dev/null || echo "$c"; done'
    found = subprocess.run([*VIA, "sh", "-c", look, "sh", *NEEDED], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return f"{shlex.join(VIA)} does not work: {found.stderr.strip()}"
    uid, *absent = found.stdout.split()
    if absent:
        return f"needs {', '.join(absent)} (packages slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins)"
    return "" if uid == "0" else "needs root: munged and slurmd refuse other users"


_END = """
pids=$(cat "$@" 2> /dev/null)
for pid in $pids; do kill "$pid" 2> /dev/null; done
for pid in $pids; do
    for i in $(seq 50); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2> /dev/null
done
rm -f "$@"
"""


@contextlib.contextmanager
def running(nodes: int = 10, *, unstarted: int = 0, **settings: str) -> Iterator[SlurmService]:
    """A cluster of `nodes` idle nodes, and `unstarted` ones that are in its configuration only."""
    service = SlurmService.create(nodes, unstarted, settings)
    try:
        service.start()
        yield service
    finally:
        service.stop()


@dataclass
class SlurmService:
    """One cluster. `names` are its running nodes; `settings` are lines of slurm.conf that differ from the ordinary."""

    directory: str
    names: tuple[str, ...]
    unstarted: int
    port: int
    settings: dict[str, str]
    gpus: dict[str, int] = field(default_factory=dict)
    """Nodes that have fewer GPUs than configured."""

    def __post_init__(self) -> None:
        self._turn = list(self.names)

    @classmethod
    def create(cls, nodes: int, unstarted: int, settings: Mapping[str, str]) -> SlurmService:
        made = subprocess.run([*VIA, "mktemp", "-d", "/tmp/slurm-XXXXXX"], capture_output=True, text=True, check=True)
        names = tuple(f"gpu{number:03d}" for number in range(1, nodes + 1))
        return cls(made.stdout.strip(), names, unstarted, _free_ports(nodes + 2), dict(settings))

    # --- what a test does to it

    def run(self, *argv: str, stdin: str = "", check: bool = True) -> str:
        """What `argv` prints beside this cluster, as root."""
        done = subprocess.run(
            [*VIA, "env", f"SLURM_CONF={self.conf}", *argv], input=stdin, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{argv} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def submit(self, node: str, *options: str, script: str = "sleep 600", user: Sequence[str] = ()) -> str:
        """Start a job on one node; returns its id."""
        argv = ["sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", "-t", "10", "-w", node, *options]
        return self.run(*user, *argv, "--wrap", script).strip()

    def show(self, node: str) -> str:
        return self.run("scontrol", "-a", "-d", "show", "node", node)

    def state(self, node: str) -> str:
        return next(word.removeprefix("State=") for word in self.show(node).split() if word.startswith("State="))

    def reason(self, node: str) -> str:
        """The reason as it stands there, without who set it and when."""
        _, found, rest = self.show(node).partition("   Reason=")
        return rest.split("\n")[0].rpartition(" [")[0] if found else ""

    def await_state(self, node: str, *wanted: str, without: Sequence[str] = (), limit_s: float = 90) -> str:
        """Wait until the state has all the words in `wanted` and none of `without`."""

        def is_there() -> bool:
            words = self.state(node).split("+")
            return set(wanted) <= set(words) and not set(without) & set(words)

        until(is_there, limit_s, lambda: f"{node} is {self.state(node)}, not {wanted}; {self.log()}")
        return self.state(node)

    def kill_slurmd(self, node: str) -> None:
        self._kill(f"run/{node}.pid")

    def start_slurmd(self, node: str) -> None:
        self.run("slurmd", "-N", node)

    def lose_gpus(self, node: str, left: int) -> None:
        """From its next start on, slurmd finds only so many."""
        self.gpus[node] = left
        self._write("gres.conf", self._gres_conf())
        self.restart_slurmd(node)

    def kill_slurmctld(self) -> None:
        self._kill("run/slurmctld.pid")

    def restart_slurmd(self, node: str) -> None:
        self.kill_slurmd(node)
        self.start_slurmd(node)

    @contextlib.contextmanager
    def configured(self, **settings: str) -> Iterator[None]:
        """With other lines in slurm.conf for a while."""
        before = dict(self.settings)
        self.settings.update(settings)
        try:
            self._reconfigure()
            yield
        finally:
            self.settings = before
            self._reconfigure()

    def clear(self, *nodes: str) -> None:
        """Nodes as new: no job, no drain, all GPUs, registered."""
        for node in nodes:
            self._cancel(f"--nodelist={node}")
        for node in nodes:
            if self.gpus.pop(node, None) is not None:
                self._write("gres.conf", self._gres_conf())
                self.restart_slurmd(node)
            elif not self._is_alive(f"run/{node}.pid"):
                self.start_slurmd(node)
        for node in nodes:
            self.await_state(node, without=("NOT_RESPONDING", "INVALID_REG", "COMPLETING", "ALLOCATED", "MIXED"))
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            self.await_state(node, "IDLE", without=("NOT_RESPONDING", "DRAIN"))
            if self.reason(node):
                # some releases leave it there, where this text alone is replaced by Slurm's own drains
                self.run("scontrol", "update", f"nodename={node}", "reason=Not responding")

    def log(self) -> str:
        return self.run("tail", "-n", "15", f"{self.directory}/slurmctld.log", check=False)

    @property
    def conf(self) -> str:
        return f"{self.directory}/slurm.conf"

    @property
    def release(self) -> tuple[int, int]:
        major, minor = self.run("scontrol", "--version").split()[1].split(".")[:2]
        return int(major), int(minor)

    @contextlib.contextmanager
    def spare(self, count: int = 1) -> Iterator[tuple[str, ...]]:
        """Nodes that no other test has used lately; as new again afterwards."""
        names = tuple(self._turn[:count])
        self._turn = [*self._turn[count:], *names]
        try:
            yield names
        finally:
            self.clear(*names)

    # --- how it is made

    def start(self) -> None:
        here = self.directory
        self.run("sh", "-c", f"chmod 755 {here}; cd {here}; mkdir run state spool; mkdir -m 711 munge; mkdir dev")
        for number in range(GPUS):
            self.run("mknod", f"{here}/dev/nvidia{number}", "c", "1", "3")
        self.run("sh", "-c", f"umask 077; head -c 128 /dev/urandom > {here}/munge/key")
        self._write("slurm.conf", self._slurm_conf())
        self._write("gres.conf", self._gres_conf())
        if self.release >= (23, 2):
            self._write("cgroup.conf", "CgroupPlugin=disabled\n")
        munge = {name: f"{here}/munge/{name}" for name in ("socket", "log", "pid", "seed")}
        self.run(
            "munged", "--force", f"--key-file={here}/munge/key", "--num-threads=4", f"--socket={munge['socket']}",
            f"--log-file={munge['log']}", f"--pid-file={munge['pid']}", f"--seed-file={munge['seed']}",
        )  # fmt: skip
        self.run("slurmctld", "-c")
        for node in self.names:
            self.start_slurmd(node)
        for node in self.names:
            self.await_state(node, "IDLE", without=("NOT_RESPONDING",))

    def stop(self) -> None:
        """End every process of it, and take its directory away."""
        for user in ("root", "nobody"):
            self._cancel(f"--user={user}")
        # bounded: what does not end in time is killed below
        with contextlib.suppress(AssertionError):
            until(lambda: not self.run("squeue", "-h", check=False).strip(), 10, str)
        self._kill(*(f"run/{node}.pid" for node in self.names), "run/slurmctld.pid", "munge/pid")
        subprocess.run([*VIA, "rm", "-rf", self.directory], check=False)

    def _cancel(self, which: str) -> None:
        """End jobs at once: a job that does not listen to TERM would outlive its slurmd."""
        self.run("scancel", "--full", "--signal=KILL", which, check=False)
        self.run("scancel", which, check=False)

    def _reconfigure(self) -> None:
        self._write("slurm.conf", self._slurm_conf())
        self.run("scontrol", "reconfigure")
        for node in self.names:
            if self._is_alive(f"run/{node}.pid"):
                self.await_state(node, without=("NOT_RESPONDING",))

    def _kill(self, *pid_files: str) -> None:
        """TERM, and KILL for what is still there after 5 s; gone on return."""
        self.run("sh", "-c", _END, "sh", *(f"{self.directory}/{name}" for name in pid_files))

    def _is_alive(self, pid_file: str) -> bool:
        look = f'kill -0 "$(cat {self.directory}/{pid_file})" 2> /dev/null && echo yes'
        return bool(self.run("sh", "-c", look, check=False))

    def _write(self, name: str, text: str) -> None:
        self.run("sh", "-c", 'cat > "$1.new" && mv "$1.new" "$1"', "sh", f"{self.directory}/{name}", stdin=text)

    def _gres_conf(self) -> str:
        return "".join(
            f"NodeName={node} Name=gpu Type=h100 File={self.directory}/dev/nvidia[0-{self.gpus.get(node, GPUS) - 1}]\n"
            for node in self.names
        )

    def _slurm_conf(self) -> str:
        here = self.directory
        lines = {
            "ClusterName": "contract",
            "SlurmctldHost": "localhost",
            "SlurmctldPort": str(self.port),
            "SlurmdPort": str(self.port + 1),
            "SlurmUser": "root",
            "AuthType": "auth/munge",
            "CredType": "cred/munge",
            "AuthInfo": f"socket={here}/munge/socket",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SlurmdParameters": "config_overrides",
            "GresTypes": "gpu",
            "ReturnToService": "1",
            "PropagateResourceLimits": "NONE",
            "StateSaveLocation": f"{here}/state",
            "SlurmdSpoolDir": f"{here}/spool/%n",
            "SlurmctldPidFile": f"{here}/run/slurmctld.pid",
            "SlurmdPidFile": f"{here}/run/%n.pid",
            "SlurmctldLogFile": f"{here}/slurmctld.log",
            "SlurmdLogFile": f"{here}/%n.log",
            "MpiDefault": "none",
            # with the ordinary MessageTimeout a node is found DOWN after 24 s instead of 7
            "SlurmdTimeout": "5",
            "MessageTimeout": "2",
            "KillWait": "2",
            "RebootProgram": "/bin/true",
            "MinJobAge": "5",
            "SchedulerParameters": "bf_interval=1,sched_interval=1",
        } | self.settings
        nodes = [
            f"NodeName={node} NodeHostName=localhost Port={self.port + 2 + index} CPUs=4 RealMemory=1000"
            f" Gres=gpu:h100:{GPUS}"
            for index, node in enumerate(self.names)
        ]
        if self.unstarted:
            nodes.append(
                f"NodeName=spare[00001-{self.unstarted:05d}] NodeHostName=localhost NodeAddr=127.0.0.1"
                f" Port=[40001-{40000 + self.unstarted}] CPUs=4 RealMemory=1000 Gres=gpu:h100:{GPUS}"
                " State=DOWN Reason=unstarted"
            )
        partitions = [
            "PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
            f"PartitionName=staff Nodes={self.names[0]} Hidden=YES State=UP",
        ]
        return "\n".join([*(f"{key}={value}" for key, value in lines.items()), *nodes, *partitions]) + "\n"


class Beside:
    """A fleetctl Command that runs beside a cluster, as `user`; tells of every command, before and after."""

    def __init__(self, service: SlurmService, user: Sequence[str] = ()) -> None:
        self._before = (*VIA, "env", f"SLURM_CONF={service.conf}", *user)
        self._local = LocalCommand()
        self.before: Callable[[Sequence[str]], None] = lambda argv: None
        self.times: list[tuple[str, float, float]] = []

    async def run(self, argv: Sequence[str], deadline_s: float = 30) -> Reading[Completed]:
        self.before(argv)
        started_at = time.monotonic()
        done = await self._local.run((*self._before, *argv), deadline_s)
        self.times.append((shlex.join(argv).partition("standard ")[2], started_at, time.monotonic()))
        return done

    async def close(self) -> None:
        await self._local.close()


def until(is_there: Callable[[], bool], limit_s: float, explain: Callable[[], str]) -> None:
    ends_at = time.monotonic() + limit_s
    while not is_there():
        if time.monotonic() > ends_at:
            raise AssertionError(f"not within {limit_s:g} s: {explain()}")
        time.sleep(0.1)


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on now."""
    for _ in range(100):
        first = random.randint(20000, 30000 - count)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")
