"""What a lab looks like now: containers, SSH, Slurm's view, loaded driver, faults that are on."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fleetctl.lab.faults import faults_of
from fleetctl.lab.layout import HEAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetctl.lab.engine import Engine
    from fleetctl.lab.layout import Lab, Machine

_PARALLEL: Final = 16
_SSH_S: Final = 10
_LOADED: Final = "cat /sys/module/nvidia/version 2> /dev/null || true"


@dataclass(frozen=True, slots=True)
class MachineState:
    """One machine. Empty text: not known, or not there."""

    name: str
    address: str
    rack: str
    container: str
    answers_ssh: bool
    slurm: str = ""
    gpus: str = ""
    driver: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)


def login_argv(lab: Lab, machine: Machine, *command: str) -> list[str]:
    """Return the argv that logs in as the automation user, host key checked. command is for the remote shell."""
    return [
        "ssh", "-F", "/dev/null", "-i", str(lab.ssh_key),
        "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5",
        "-o", f"UserKnownHostsFile={lab.known_hosts}", "-o", "GlobalKnownHostsFile=/dev/null",
        "-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR",
        f"fleet@{machine.address}", *command,
    ]  # fmt: skip


def read_state(engine: Engine, lab: Lab) -> tuple[MachineState, ...]:
    """Look at every machine, a few at a time."""
    containers = engine.containers(lab.name)
    slurm = slurm_states(engine, lab) if containers.get(lab.container(lab.head)) == "running" else {}

    def look(machine: Machine) -> MachineState:
        container = containers.get(lab.container(machine), "absent")
        said = _over_ssh(lab, machine) if container == "running" else None
        state, gpus = slurm.get(machine.name, ("", ""))
        return MachineState(
            machine.name, machine.address, machine.rack, container, said is not None,
            state, gpus, (said or "").strip(), faults_of(lab, machine),
        )  # fmt: skip

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return tuple(pool.map(look, lab.machines))


def slurm_states(engine: Engine, lab: Lab) -> dict[str, tuple[str, str]]:
    """Return node -> (State, Gres) as slurmctld says; empty while it does not answer."""
    asked = ["sinfo", "--noheader", "--Node", "--partition=train", "--Format=NodeList:64,StateComplete:64,Gres:64"]
    done = engine.inside(f"{lab.name}-{HEAD}", asked)
    rows = (line.split() for line in done.stdout.splitlines())
    return {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}


def machines_without_ssh(lab: Lab, machines: Sequence[Machine]) -> list[Machine]:
    """Return those of machines on which a login fails."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        answers = pool.map(lambda machine: _over_ssh(lab, machine), machines)
        return [machine for machine, answer in zip(machines, answers, strict=True) if answer is None]


def _over_ssh(lab: Lab, machine: Machine) -> str | None:
    try:
        done = subprocess.run(
            login_argv(lab, machine, _LOADED),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SSH_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
