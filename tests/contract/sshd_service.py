"""Real sshds on loopback addresses that stand for nodes.

Each has a mount and a process namespace of its own, with private users, sudoers, /var/lib and boot id: nothing of this
machine is changed, killing one ends everything that ran on it, and nodes do not see each other's files.
What is not real: there is one kernel, and `systemctl` is a script that records its arguments and ends the node.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.model.fleet import Connection, Json, Node

NEEDED = ("sshd", "ssh", "ssh-keygen", "ssh-agent", "sudo", "unshare", "mount")
USER, ROOT, BARRED, NOISY = "ops", "root", "barred", "noisy"

_PREPARE = r"""
set -e
d=$1
for name in passwd shadow group sudoers; do mount --bind "$d/$name" /etc/$name; done
mount -t tmpfs tmpfs "$d/scratch"
mkdir "$d/scratch/upper" "$d/scratch/work"
mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$d/scratch/upper,workdir=$d/scratch/work" /var/lib
mount --bind "$d/boot_id" /proc/sys/kernel/random/boot_id
/usr/sbin/sshd -D -e -f "$d/sshd_config" &
wait
"""

_NAMESPACES = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]

# The orders that matter end a node as a machine would: with everything that runs on it, its sshd included.
_SYSTEMCTL = """#!/bin/sh
echo "$*" >> @/systemctl.log
case "$*" in *reboot*) (sleep @DELAY; cat /proc/sys/kernel/random/uuid > @/boot_id; kill -9 -1) & ;; esac
"""


def missing() -> str:
    """Why these tests can't run here; empty if they can."""
    if os.geteuid() != 0:
        return "needs root: the sshds of this test have users and mounts of their own"
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    absent = [name for name in NEEDED if not shutil.which(name, path=path)]
    return f"needs {', '.join(absent)} on this machine" if absent else ""


@dataclass
class Sshd:
    """One node. `node()` is how the adapters are told of it; `directory` holds what it looks like from inside."""

    name: str
    directory: Path
    address: str
    port: int
    identity: Path
    child: subprocess.Popen[bytes] | None = None
    host_key: str = ""

    def node(self, variables: Mapping[str, Json] | None = None, **connection: str | int | None) -> Node:
        target: dict[str, str | int | None] = {
            "host": self.address,
            "port": self.port,
            "user": USER,
            "identity_file": str(self.identity),
            "known_hosts": str(self.directory.parent / "known_hosts"),
        }
        return Node(self.name, Connection(**(target | connection)), self.name, {}, variables or {})  # type: ignore[arg-type]

    def start(self) -> None:
        log = (self.directory / "sshd.log").open("ab")
        with log:
            self.child = subprocess.Popen(
                [*_NAMESPACES, "sh", "-c", _PREPARE, "sh", str(self.directory)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.await_port()

    def await_port(self, limit_s: float = 10) -> None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} does not listen: {(self.directory / 'sshd.log').read_text()}")

    def await_down(self, limit_s: float = 10) -> None:
        assert self.child is not None
        self.child.wait(limit_s)
        self.child = None

    def stop(self) -> None:
        if self.child is not None:
            self.child.send_signal(signal.SIGKILL)
            self.child.wait()
            self.child = None

    def inside(self, *argv: str) -> str:
        """What `argv` prints when root runs it inside this node."""
        assert self.child is not None
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        command = ["nsenter", "--target", children[0], "--mount", "--pid", *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @property
    def orders(self) -> list[str]:
        """What `systemctl` was called with."""
        log = self.directory / "systemctl.log"
        return log.read_text().splitlines() if log.exists() else []


@contextlib.contextmanager
def running(*names: str) -> Iterator[SshdService]:
    """A service with these nodes; not under pytest's own directory, which other users can't enter."""
    with tempfile.TemporaryDirectory(prefix="sshd-") as directory:
        service = SshdService(Path(directory))
        try:
            for name in names:
                service.add(name)
            yield service
        finally:
            service.stop()


@dataclass
class SshdService:
    """Sshds under one directory, with one client key and one known_hosts file."""

    directory: Path
    nodes: dict[str, Sshd] = field(default_factory=dict)
    _listeners: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in ("client", "stranger"):
            self._keygen(self.directory / name)

    @property
    def identity(self) -> Path:
        return self.directory / "client"

    @property
    def stranger(self) -> Path:
        """A key that no node accepts."""
        return self.directory / "stranger"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    def add(self, name: str, *, reboot_delay_s: float = 0.2) -> Sshd:
        index = len(self.nodes) + 1
        inside = self.directory / name
        sshd = Sshd(name, inside, f"127.77.0.{index}", _free_port(), self.identity)
        for part in ("", "scratch", "bin", "authorized", f"home/{USER}", f"home/{NOISY}", f"home/{BARRED}"):
            (inside / part).mkdir(parents=True)
        users = [(USER, 4001, "/bin/bash"), (BARRED, 4002, "/usr/sbin/nologin"), (NOISY, 4003, "/bin/bash")]
        system_users = ("root:x:0:0:root:/root:/bin/sh", "sshd:x:105:65534::/run/sshd:/usr/sbin/nologin")
        people = [f"{user}:x:{uid}:{uid}::{inside}/home/{user}:{shell}" for user, uid, shell in users]
        _write(inside / "passwd", [*system_users, "nobody:x:65534:65534::/:/usr/sbin/nologin", *people])
        _write(inside / "group", ["root:x:0:", "nogroup:x:65534:", *(f"{user}:x:{uid}:" for user, uid, _ in users)])
        _write(inside / "shadow", [f"{user}:*:19000:0:99999:7:::" for user in ("root", *(row[0] for row in users))])
        _write(
            inside / "sudoers",
            [
                f'Defaults secure_path="{inside}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"',
                "root ALL=(ALL:ALL) ALL",
                f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL",
                f"{NOISY} ALL=(ALL:ALL) NOPASSWD: ALL",
            ],
            mode=0o440,
        )
        _write(inside / "home" / NOISY / ".bashrc", ["echo 'Welcome! Maintenance on Friday.'", "echo tired >&2"])
        for user, uid, _ in users:
            os.chown(inside / "home" / user, uid, uid)
        for user in (ROOT, *(row[0] for row in users)):
            shutil.copy(self.identity.with_suffix(".pub"), inside / "authorized" / user)
        _write(inside / "boot_id", [str(uuid.uuid4())])
        script = _SYSTEMCTL.replace("@DELAY", str(reboot_delay_s)).replace("@", str(inside))
        _write(inside / "bin" / "systemctl", [script], mode=0o755)
        self._keygen(inside / "host_key")
        _write(
            inside / "sshd_config",
            [
                f"ListenAddress {sshd.address}:{sshd.port}",
                f"HostKey {inside}/host_key",
                f"AuthorizedKeysFile {inside}/authorized/%u",
                "PidFile none",
                "StrictModes no",
                "UsePAM no",
                "PasswordAuthentication no",
                "PermitRootLogin prohibit-password",
                "MaxStartups 100",
                "MaxAuthTries 6",
            ],
        )
        sshd.host_key = " ".join((inside / "host_key.pub").read_text().split()[:2])
        with self.known_hosts.open("a") as known:
            known.write(f"[{sshd.address}]:{sshd.port} {sshd.host_key}\n")
        self.nodes[name] = sshd
        sshd.start()
        return sshd

    @contextlib.contextmanager
    def agent(self) -> Iterator[str]:
        """An agent that holds the client key; yields the path of its socket."""
        path = str(self.directory / "agent")
        child = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
        try:
            while not Path(path).exists():
                time.sleep(0.02)
            added = ["ssh-add", "-q", str(self.identity)]
            subprocess.run(added, check=True, env={**os.environ, "SSH_AUTH_SOCK": path})
            yield path
        finally:
            child.kill()
            child.wait()
            Path(path).unlink(missing_ok=True)

    def failing(self, sshd: Sshd) -> dict[str, Node]:
        """One target for every way in which SSH fails, by the name of that way: the same for every adapter."""
        empty, wrong = self.directory / "no_hosts", self.directory / "wrong_hosts"
        empty.write_text("")
        stranger = " ".join(self.stranger.with_suffix(".pub").read_text().split()[:2])
        wrong.write_text(f"[{sshd.address}]:{sshd.port} {stranger}\n")
        return {
            "refused": sshd.node(port=_free_port()),
            "timeout": sshd.node(port=self._listen(slams=False)),
            "host_key unknown": sshd.node(known_hosts=str(empty)),
            "host_key changed": sshd.node(known_hosts=str(wrong)),
            "auth": sshd.node(identity_file=str(self.stranger)),
            "shell": sshd.node(user=BARRED),
            "lost": sshd.node(port=self._listen(slams=True)),
        }

    def _listen(self, *, slams: bool) -> int:
        """A port that takes connections and says nothing, or slams the door."""
        listener = socket.socket()
        listener.bind(("0.0.0.0", 0))
        listener.listen(64)
        self._listeners.append(listener)

        def slam() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        if slams:
            threading.Thread(target=slam, daemon=True).start()
        return int(listener.getsockname()[1])

    def stop(self) -> None:
        for sshd in self.nodes.values():
            sshd.stop()
        for listener in self._listeners:
            listener.close()

    def _keygen(self, path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _write(path: Path, lines: list[str], mode: int = 0o644) -> None:
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
