"""The containers of one lab: started, stopped, looked at."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from fleetctl.lab.engine import LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleetctl.lab.engine import Engine
    from fleetctl.lab.layout import Lab, Machine

_PARALLEL: Final = max(4, 2 * (os.cpu_count() or 1))


def start_machines(engine: Engine, lab: Lab, head_image: str, node_image: str, say: Callable[[str], None]) -> None:
    """Start every machine that does not run; the head first, because nodes register with it."""
    states = engine.containers(lab.name)
    absent = [machine for machine in lab.machines if lab.container(machine) not in states]
    stopped = [machine for machine in lab.machines if states.get(lab.container(machine), "running") != "running"]
    if lab.head in absent:
        _run(engine, lab, lab.head, head_image)
    if absent or stopped:
        say(f"starting {len(absent) + len(stopped)} machines")
    with ThreadPoolExecutor(_PARALLEL) as pool:
        nodes = [machine for machine in absent if machine != lab.head]
        list(pool.map(lambda node: _run(engine, lab, node, node_image), nodes))
        list(pool.map(lambda machine: start_machine(engine, lab, machine), stopped))


def start_machine(engine: Engine, lab: Lab, machine: Machine) -> None:
    """Power on."""
    engine.podman("start", lab.container(machine))


def stop_machine(engine: Engine, lab: Lab, machine: Machine) -> None:
    """Cut the power: nothing on the machine gets to end in order."""
    engine.podman("stop", "--time", "0", lab.container(machine))


def remove_machines(engine: Engine, name: str) -> list[str]:
    """Remove every container of the lab of that name; return their names."""
    containers = sorted(engine.containers(name))
    if containers:
        engine.podman("rm", "--force", "--time", "0", *containers, timeout_s=300)
    return containers


def network_exists(engine: Engine, name: str) -> bool:
    return engine.attempt("network", "exists", name).returncode == 0


def create_network(engine: Engine, lab: Lab) -> None:
    """Create the lab's own bridge. Names come from /etc/hosts, so no name server is started for it."""
    engine.podman(
        "network", "create", "--disable-dns", "--label", f"{LABEL}={lab.name}", "--subnet", lab.subnet, lab.network
    )


def _run(engine: Engine, lab: Lab, machine: Machine, image: str) -> None:
    engine.podman(
        *("run", "--detach", "--name", lab.container(machine), "--hostname", machine.name),
        *("--label", f"{LABEL}={lab.name}"),
        # always: the container ends when its systemd reboots, and starting it again is the reboot.
        *("--systemd", "always", "--restart", "always"),
        # The default AppArmor profile of a Debian host forbids every mount, and machines mount their boot id and DMI.
        *("--security-opt", "apparmor=unconfined"),
        *("--network", lab.network, "--ip", machine.address, "--no-hosts"),
        *("--volume", f"{lab.files_of(machine)}:/lab:ro", "--volume", f"{lab.home}:/home/researcher"),
        *_only_for(lab, machine),
        image,
    )


def _only_for(lab: Lab, machine: Machine) -> Sequence[str]:
    if machine == lab.head:
        # SYS_ADMIN: mounts of its own (boot id, DMI); SYS_BOOT: reboot.
        return (
            "--cap-add", "SYS_ADMIN,SYS_BOOT",
            "--volume", f"{lab.repository / 'public'}:/srv/packages/nvidia:ro",
        )  # fmt: skip
    # MKNOD: /dev/nvidia*; NET_ADMIN: the network is down during the self-test;
    # SYS_PTRACE: root sees whose files are open, as on a machine.
    return (
        "--cap-add",
        "SYS_ADMIN,SYS_BOOT,MKNOD,NET_ADMIN,SYS_PTRACE",
        "--volume",
        f"{lab.faults_of(machine)}:/etc/lab-gpu/faults",
    )
