"""Nodes of a molecule scenario: the lab's own machines without any NVIDIA package, and its apt repository.

nodes.py up DIRECTORY NAME NODES      brings them up and prints molecule's instance configuration as JSON
nodes.py down DIRECTORY NAME          removes them with all their files
nodes.py withdraw DIRECTORY VERSION   takes a driver version out of the repository, as NVIDIA may do any day
"""

import json
import os
import shutil
import socket
import sys
import time
from pathlib import Path

from fleetctl.errors import FleetctlError
from fleetctl.lab.credentials import make_credentials
from fleetctl.lab.engine import Engine, raise_inotify_limit, require_engine
from fleetctl.lab.images import bare_image, building_alone
from fleetctl.lab.layout import Lab, free_subnet, load, plan_lab, save
from fleetctl.lab.machine_files import write_machines
from fleetctl.lab.machines import create_network, network_exists, remove_machines, start_machines
from fleetctl.lab.repository import build_repository, open_repository, withdraw

BOOT_LIMIT_S = 60


def up(directory: Path, name: str, nodes: int) -> list[dict[str, str]]:
    """The head serves the repository and nothing else: no scheduler is needed here."""
    require_engine()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = Engine(directory / "containers.conf")
    raise_inotify_limit()
    with building_alone():
        lab = load(directory) or plan_lab(
            name,
            directory,
            nodes=nodes,
            racks=1,
            release="bookworm",
            kernel=os.uname().release,
            subnet=free_subnet(engine.subnets()),
        )
        build_repository(lab.repository, lab.kernel)
        image = bare_image(engine, lab.release, say)
        if not network_exists(engine, lab.network):
            create_network(engine, lab)
        save(lab)
    make_credentials(lab)
    write_machines(lab)
    start_machines(engine, lab, image, image, say)
    serve = ("systemd-run", "--unit=packages", "python3", "-m", "http.server", "80", "--directory", "/srv/packages")
    wait_for(lab)
    started = engine.inside(lab.container(lab.head), serve)
    if started.returncode != 0:
        raise FleetctlError(f"the repository can't be served: {started.stderr.strip()}")
    return [
        {
            "instance": node.name,
            "address": node.address,
            "user": "fleet",
            "port": "22",
            "identity_file": str(lab.ssh_key),
        }
        for node in lab.nodes
    ]


def wait_for(lab: Lab) -> None:
    """Return when every machine answers on its SSH port."""
    deadline = time.monotonic() + BOOT_LIMIT_S
    for machine in lab.machines:
        while True:
            try:
                with socket.create_connection((machine.address, 22), timeout=2) as connection:
                    if connection.recv(4) == b"SSH-":
                        break
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise FleetctlError(f"{machine.name} does not answer after {BOOT_LIMIT_S} s")
            time.sleep(0.3)


def down(directory: Path, name: str) -> None:
    engine = Engine(directory / "containers.conf")
    remove_machines(engine, name)
    if network_exists(engine, name):
        engine.podman("network", "rm", name)
    shutil.rmtree(directory, ignore_errors=True)


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    verb, directory, *rest = sys.argv[1:]
    try:
        if verb == "up":
            print(json.dumps(up(Path(directory), rest[0], int(rest[1]))))
        elif verb == "down":
            down(Path(directory), rest[0])
        elif verb == "withdraw":
            withdraw(open_repository(Path(directory) / "repository"), rest[0])
        else:
            sys.exit(__doc__)
    except FleetctlError as error:
        sys.exit(str(error))


main()
