"""Faults of one node, each a file in the directory that the node sees as /etc/lab-gpu/faults.

What the packages' stand-ins look at is described in packages/README.md; what the machine itself does wrong is here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fleetctl.errors import BadInput
from fleetctl.lab.machines import start_machine, stop_machine

if TYPE_CHECKING:
    from fleetctl.lab.engine import Engine
    from fleetctl.lab.layout import Lab, Machine

PACKAGE_FAULTS: Final = {
    "install-fails": "the driver's packages fail to install [driver version]",
    "half-configured": "the same, once; dpkg is left half-configured [driver version]",
    "dkms-fails": "the kernel module does not build, the package manager says success [driver version]",
    "gpu-missing": "one GPU fewer after the next boot [index]",
    "wrong-module": "the next boot loads another version than lies on disk [version]",
    "module-not-loaded": "the next boot loads no driver",
    "module-refused": "the next boot can't load what modules-load.d asks for [module]",
    "xid": "an Xid in the kernel log of the next boot [number]",
    "nvidia-smi-hangs": "nvidia-smi never ends",
}
MACHINE_FAULTS: Final = {
    "reboot-never-returns": "the next reboot ends in silence; a power cycle cures it unless the argument is for-good",
    "reboot-slow": "a reboot takes this many seconds (required)",
    "sshd-refuses": "no new SSH connection is accepted",
    "node-lost": "the power is gone now",
}
FAULTS: Final = {**PACKAGE_FAULTS, **MACHINE_FAULTS}

_SECONDS: Final = re.compile(r"[0-9]{1,5}")
_ARGUMENT: Final = re.compile(r"[A-Za-z0-9.+:~-]{1,60}")


def set_fault(engine: Engine, lab: Lab, node: Machine, kind: str, argument: str | None = None) -> None:
    """Switch a fault on; doing so twice is the same as once, with the later argument."""
    _check(lab, node, kind)
    if kind == "reboot-slow" and not (argument and _SECONDS.fullmatch(argument)):
        raise BadInput("reboot-slow needs the seconds a reboot shall take: fleetctl lab fault NODE reboot-slow 60")
    if argument is not None and not _ARGUMENT.fullmatch(argument):
        raise BadInput(f"{argument!r} can't be the argument of a fault: a version, an index or a number")
    (lab.faults_of(node) / kind).write_text(f"{argument}\n" if argument else "")
    if kind == "node-lost":
        stop_machine(engine, lab, node)
    elif kind == "sshd-refuses" and _runs(engine, lab, node):
        engine.podman("exec", lab.container(node), "systemctl", "stop", "ssh.service")


def clear_fault(engine: Engine, lab: Lab, node: Machine, kind: str) -> None:
    """Switch a fault off. What it has done to the node stays, but a lost node gets its power back."""
    _check(lab, node, kind)
    (lab.faults_of(node) / kind).unlink(missing_ok=True)
    if kind == "node-lost":
        start_machine(engine, lab, node)
    elif kind == "sshd-refuses" and _runs(engine, lab, node):
        engine.podman("exec", lab.container(node), "systemctl", "start", "ssh.service")


def faults_of(lab: Lab, node: Machine) -> dict[str, str]:
    """Return kind -> argument ("" for none) of every fault that is on."""
    directory = lab.faults_of(node)
    if not directory.is_dir():
        return {}
    return {path.name: path.read_text().strip() for path in sorted(directory.iterdir())}


def _check(lab: Lab, node: Machine, kind: str) -> None:
    if node == lab.head:
        raise BadInput(f"{node.name} is the head: faults are for GPU nodes")
    if kind not in FAULTS:
        raise BadInput(f"there is no fault {kind!r}: known are {', '.join(sorted(FAULTS))}")


def _runs(engine: Engine, lab: Lab, node: Machine) -> bool:
    return engine.containers(lab.name).get(lab.container(node)) == "running"
