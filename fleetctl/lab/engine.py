"""Podman as the lab uses it: argv lists, limits that this machine can grant, one way to fail."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.errors import BadInput, FleetctlError

if TYPE_CHECKING:
    from collections.abc import Sequence

_CAP_SYS_RESOURCE = 24  # linux/capability.h
_MAX_PROCESSES = 32768  # enough for a machine of the lab, and below what nested containers are granted
_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_INOTIFY_INSTANCES = 8192  # each systemd takes about five; the default of 128 ends at some 23 nodes

LABEL = "fleetctl.lab"


def require_engine() -> None:
    """Raise BadInput, in one line that says what to install, unless containers can be run here."""
    if os.geteuid() != 0:
        raise BadInput("the lab needs root: its nodes are containers that boot and reboot. Run: sudo fleetctl lab ...")
    wanted = {"podman": "podman", "mmdebstrap": "mmdebstrap", "ssh-keygen": "openssh-client", "ip": "iproute2"}
    if not has_unified_cgroups():
        wanted["runc"] = "runc"
    missing = [package for command, package in wanted.items() if shutil.which(command) is None]
    if missing:
        raise BadInput(f"the lab needs {', '.join(missing)}. Run: apt-get install {' '.join(missing)}")


def has_unified_cgroups(root: Path = Path("/sys/fs/cgroup")) -> bool:
    """Tell cgroup v2 alone from v1 and hybrid layouts, where crun refuses to start anything."""
    return (root / "cgroup.controllers").exists()


def containers_conf() -> str:
    """Return podman's configuration for this machine: network backend, runtime and limits."""
    lines = ["[network]", 'network_backend = "netavark"', "[engine]"]
    if not has_unified_cgroups():
        lines.append('runtime = "runc"')
    if not _may_raise_limits():
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        limits = [f"nofile={_capped(files, 1 << 20)}", f"nproc={_capped(processes, _MAX_PROCESSES)}"]
        quoted = ", ".join(f'"{limit}:{limit.partition("=")[2]}"' for limit in limits)
        lines += ["[containers]", f"default_ulimits = [{quoted}]"]
    return "\n".join(lines) + "\n"


def raise_inotify_limit() -> str | None:
    """Let more than some 23 nodes boot. Return what was done or what is missing, None when nothing had to be."""
    current = int(_INOTIFY.read_text())
    if current >= _INOTIFY_INSTANCES:
        return None
    try:
        _INOTIFY.write_text(str(_INOTIFY_INSTANCES))
    except OSError as error:
        return (
            f"fs.inotify.max_user_instances is {current} and can't be raised ({error}): more than 20 nodes won't boot"
        )
    return f"fs.inotify.max_user_instances raised from {current} to {_INOTIFY_INSTANCES}"


def _may_raise_limits() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def _capped(limit: int, most: int) -> int:
    return most if limit == resource.RLIM_INFINITY else min(limit, most)


class Engine:
    """One podman with the lab's own configuration file; everybody else's containers are left alone."""

    def __init__(self, configuration: Path) -> None:
        self._environment = {**os.environ, "CONTAINERS_CONF": str(configuration)}
        if not configuration.exists():
            configuration.parent.mkdir(parents=True, exist_ok=True)
            configuration.write_text(containers_conf())

    def podman(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run podman and return its standard output. Raise FleetctlError with its last line when it fails."""
        done = self.attempt(*arguments, timeout_s=timeout_s)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing"]
            raise FleetctlError(f"podman {' '.join(arguments[:2])} failed ({done.returncode}): {' | '.join(said[-3:])}")
        return done.stdout

    def attempt(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run podman and return how it ended, whatever that is."""
        try:
            return subprocess.run(
                ["podman", *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise FleetctlError(f"podman {' '.join(arguments[:2])} did not end within {timeout_s:.0f} s") from error

    def containers(self, lab: str) -> dict[str, str]:
        """Return container name -> state ("running", "exited", ...) of one lab."""
        listed = self.podman("ps", "--all", "--filter", f"label={LABEL}={lab}", "--format", "json")
        return {container["Names"][0]: container["State"] for container in json.loads(listed)}

    def inside(self, container: str, argv: Sequence[str], timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Run argv as root in a running container."""
        return self.attempt("exec", container, *argv, timeout_s=timeout_s)

    def subnets(self) -> set[str]:
        """Return every subnet that a container network of this machine uses."""
        networks: list[dict[str, Any]] = json.loads(self.podman("network", "ls", "--format", "json"))
        return {subnet["subnet"] for network in networks for subnet in network.get("subnets") or []}
