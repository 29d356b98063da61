"""The verbs of the lab. Each finds its lab by the directory that holds the lab's files."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetctl.errors import BadInput, FleetctlError
from fleetctl.lab import engine as engines
from fleetctl.lab.credentials import make_credentials
from fleetctl.lab.driver_image import driver_image
from fleetctl.lab.engine import Engine
from fleetctl.lab.faults import clear_fault, faults_of, set_fault
from fleetctl.lab.images import building_alone, head_image
from fleetctl.lab.inventory import write_inventory
from fleetctl.lab.layout import Lab, Machine, Release, check_request, fold, free_subnet, load, plan_lab, save
from fleetctl.lab.machine_files import write_machines
from fleetctl.lab.machines import create_network, network_exists, remove_machines, start_machines
from fleetctl.lab.repository import build_repository, missing_tools
from fleetctl.lab.state import MachineState, login_argv, machines_without_ssh, read_state, slurm_states

if TYPE_CHECKING:
    from collections.abc import Callable

_READY_S: Final = 90.0
_READY_PER_NODE_S: Final = 3.0
# Everything the lab writes; what a person put beside it stays.
_OWNED: Final = ("machines", "faults", "ssh", "repository", "home", "bin", "inventory", "state")
_OWNED_FILES: Final = ("ansible.cfg", "containers.conf", "lab.json")


def default_directory(name: str = "lab") -> Path:
    """Return where a lab's files lie when nobody says otherwise."""
    states = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(states) / "fleetctl" / "labs" / name


def up(
    nodes: int = 8,
    racks: int = 2,
    release: Release = "bookworm",
    directory: Path | None = None,
    name: str = "lab",
    say: Callable[[str], None] = lambda _: None,
) -> Lab:
    """Bring up a healthy fleet and return when every node is idle with all its GPUs. A lab that is up stays."""
    check_request(name, nodes, racks, release)
    engines.require_engine()
    if missing := missing_tools():
        raise BadInput(f"the lab needs {', '.join(missing)}. Run: apt-get install {' '.join(missing)}")
    directory = (directory or default_directory(name)).resolve()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = Engine(directory / "containers.conf")
    if done := engines.raise_inotify_limit():
        say(done)
    with building_alone():
        lab = _known_lab(directory, name, nodes, racks, release) or _new_lab(
            engine, directory, name, nodes, racks, release
        )
        if not (lab.repository / "public" / "dists").is_dir():
            say("building the apt repository")
            build_repository(lab.repository, lab.kernel)
        head = head_image(engine, release, say)
        node = driver_image(engine, lab, say)
    make_credentials(lab)
    write_machines(lab)
    write_inventory(lab)
    start_machines(engine, lab, head, node, say)
    _wait_until_idle(engine, lab, say)
    return lab


def down(directory: Path | None = None, name: str = "lab") -> list[str]:
    """Remove the containers, the network and every file of a lab. Return the containers' names."""
    directory = (directory or default_directory(name)).resolve()
    lab = load(directory)
    name = lab.name if lab else name
    engines.require_engine()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = Engine(directory / "containers.conf")
    removed = remove_machines(engine, name)
    if network_exists(engine, name):
        engine.podman("network", "rm", name)
    for owned in _OWNED:
        shutil.rmtree(directory / owned, ignore_errors=True)
    for owned in _OWNED_FILES:
        (directory / owned).unlink(missing_ok=True)
    if not any(directory.iterdir()):
        directory.rmdir()
    return removed


def status(directory: Path | None = None, name: str = "lab") -> tuple[MachineState, ...]:
    """Look at every machine of a lab."""
    lab, engine = _open(directory, name)
    return read_state(engine, lab)


def fault(
    node: str,
    kind: str,
    argument: str | None = None,
    *,
    clear: bool = False,
    directory: Path | None = None,
    name: str = "lab",
) -> None:
    """Switch a fault of a node on, or off with clear."""
    lab, engine = _open(directory, name)
    if clear:
        clear_fault(engine, lab, lab.machine(node), kind)
    else:
        set_fault(engine, lab, lab.machine(node), kind, argument)


def ssh_argv(node: str, *command: str, directory: Path | None = None, name: str = "lab") -> list[str]:
    """Return the argv that logs in to a machine of the lab, as its inventory says."""
    lab = _load(directory, name)
    return login_argv(lab, lab.machine(node), *command)


def _load(directory: Path | None, name: str) -> Lab:
    directory = (directory or default_directory(name)).resolve()
    lab = load(directory)
    if lab is None:
        raise BadInput(f"no lab in {directory}: bring one up with fleetctl lab up")
    return lab


def _open(directory: Path | None, name: str) -> tuple[Lab, Engine]:
    lab = _load(directory, name)
    engines.require_engine()
    return lab, Engine(lab.directory / "containers.conf")


def _known_lab(directory: Path, name: str, nodes: int, racks: int, release: Release) -> Lab | None:
    """Return the lab that is there, if it is the one asked for."""
    lab = load(directory)
    if lab is None:
        return None
    asked = plan_lab(name, directory, nodes=nodes, racks=racks, release=release, kernel=lab.kernel, subnet=lab.subnet)
    if asked != lab:
        raise BadInput(
            f"the lab {lab.name} in {directory} has {fold(lab.nodes)} on {lab.release}, not what is asked for:"
            " take it down first with fleetctl lab down"
        )
    return lab


def _new_lab(engine: Engine, directory: Path, name: str, nodes: int, racks: int, release: Release) -> Lab:
    if network_exists(engine, name) or engine.containers(name):
        raise BadInput(f"a lab or network named {name} is there already: give this one a --name of its own")
    kernel = os.uname().release
    subnet = free_subnet(engine.subnets())
    lab = plan_lab(name, directory, nodes=nodes, racks=racks, release=release, kernel=kernel, subnet=subnet)
    create_network(engine, lab)
    save(lab)
    return lab


def _wait_until_idle(engine: Engine, lab: Lab, say: Callable[[str], None]) -> None:
    """Wait until sshd answers and Slurm may use every node that has no fault and that nobody drained."""
    say("waiting for Slurm and sshd")
    limit_s = _READY_S + _READY_PER_NODE_S * len(lab.nodes)
    deadline = time.monotonic() + limit_s
    sound = [node for node in lab.nodes if not faults_of(lab, node)]
    waited_for: list[Machine] = []
    while time.monotonic() < deadline:
        states = slurm_states(engine, lab)
        waited_for = [node for node in sound if not _is_settled(states.get(node.name, ("", ""))[0])]
        # Logins, not bare connections: sshd of Debian 13 locks out who only connects (PerSourcePenalties).
        waited_for = waited_for or machines_without_ssh(lab, [lab.head, *sound])
        if not waited_for:
            return
        time.sleep(0.5)
    raise FleetctlError(f"after {limit_s:.0f} s not ready: {fold(waited_for)}. See: fleetctl lab status")


def _is_settled(state: str) -> bool:
    """IDLE, or in somebody's hands (drained, allocated), and registered: no '*' for not responding."""
    return bool(state) and not any(word in state for word in ("*", "unk", "down", "inval"))
