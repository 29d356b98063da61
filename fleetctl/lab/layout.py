"""What one lab consists of: names, addresses, racks, places of its files. lab.json keeps it for every verb."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from fleetctl.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Release = Literal["bookworm", "trixie"]

HEAD: Final = "head-1"
GPUS_PER_NODE: Final = 8
MAX_NODES: Final = 999
_POOL: Final = ipaddress.IPv4Network("10.231.0.0/16")
_PREFIX: Final = 22  # 1022 addresses: every node that MAX_NODES allows, and the head
_FIRST_NODE: Final = 20
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True, slots=True)
class Machine:
    """One container: the head, or a GPU node in its rack (the head has none)."""

    name: str
    address: str
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Lab:
    """The whole lab. `directory` is absolute and holds every file that the lab writes."""

    name: str
    directory: Path
    release: Release
    kernel: str
    subnet: str
    head: Machine
    nodes: tuple[Machine, ...]

    @property
    def machines(self) -> tuple[Machine, ...]:
        return (self.head, *self.nodes)

    @property
    def gateway(self) -> str:
        return str(ipaddress.IPv4Network(self.subnet)[1])

    @property
    def network(self) -> str:
        return self.name

    @property
    def inventory(self) -> Path:
        return self.directory / "inventory" / self.name

    @property
    def ssh_key(self) -> Path:
        return self.directory / "ssh" / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "ssh" / "known_hosts"

    @property
    def repository(self) -> Path:
        return self.directory / "repository"

    @property
    def home(self) -> Path:
        """The researcher's home, the same directory on every machine as over NFS."""
        return self.directory / "home"

    def files_of(self, machine: Machine) -> Path:
        """The directory that the machine sees as /lab (read-only)."""
        return self.directory / "machines" / machine.name

    def faults_of(self, machine: Machine) -> Path:
        """The directory that the machine sees as /etc/lab-gpu/faults."""
        return self.directory / "faults" / machine.name

    def container(self, machine: Machine) -> str:
        return f"{self.name}-{machine.name}"

    def machine(self, name: str) -> Machine:
        """Return the machine of that name; BadInput names those there are."""
        for machine in self.machines:
            if machine.name == name:
                return machine
        raise BadInput(f"the lab {self.name} has no {name!r}: it has {HEAD} and {fold(self.nodes)}")


def plan_lab(name: str, directory: Path, *, nodes: int, racks: int, release: Release, kernel: str, subnet: str) -> Lab:
    """Lay out a lab: gpu001.. in racks r01.. of equal size (the last may be smaller)."""
    network = ipaddress.IPv4Network(subnet)
    per_rack = -(-nodes // racks)
    return Lab(
        name=name,
        directory=directory,
        release=release,
        kernel=kernel,
        subnet=subnet,
        head=Machine(HEAD, str(network[10])),
        nodes=tuple(
            Machine(f"gpu{index + 1:03d}", str(network[_FIRST_NODE + index]), f"r{index // per_rack + 1:02d}")
            for index in range(nodes)
        ),
    )


def check_request(name: str, nodes: int, racks: int, release: str) -> None:
    """Raise BadInput for a lab that can't be."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} can't name a lab: small letters, digits and '-', a letter first")
    if not 1 <= nodes <= MAX_NODES:
        raise BadInput(f"--nodes {nodes}: a lab has 1 to {MAX_NODES} nodes")
    if not 1 <= racks <= nodes:
        raise BadInput(f"--racks {racks}: from 1 to the number of nodes ({nodes})")
    if release not in ("bookworm", "trixie"):
        raise BadInput(f"--release {release}: the nodes can be bookworm (Debian 12) or trixie (Debian 13)")


def free_subnet(used: Collection[str]) -> str:
    """Return the first subnet of the lab's pool that overlaps none of used."""
    taken = [ipaddress.ip_network(subnet, strict=False) for subnet in used]
    for candidate in _POOL.subnets(new_prefix=_PREFIX):
        if not any(candidate.overlaps(other) for other in taken if other.version == 4):
            return str(candidate)
    raise BadInput(f"no free /{_PREFIX} in {_POOL}: take a lab down (podman network ls)")


def save(lab: Lab) -> None:
    """Write lab.json; it is complete or absent."""
    unfinished = lab.directory / "lab.json.unfinished"
    unfinished.write_text(json.dumps(asdict(lab) | {"directory": "."}, indent=2) + "\n")
    unfinished.rename(lab.directory / "lab.json")


def load(directory: Path) -> Lab | None:
    """Return the lab whose files lie in directory, None when there is none."""
    try:
        saved: dict[str, Any] = json.loads((directory / "lab.json").read_text())
    except FileNotFoundError:
        return None
    saved["directory"] = directory.resolve()
    saved["head"] = Machine(**saved["head"])
    saved["nodes"] = tuple(Machine(**node) for node in saved["nodes"])
    return Lab(**saved)


def racks_of(lab: Lab) -> Iterator[str]:
    """Yield each rack's name once, in order."""
    yield from dict.fromkeys(node.rack for node in lab.nodes)


def fold(machines: Collection[Machine]) -> str:
    """Return names as gpu[001-016]."""
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist([machine.name for machine in machines]))
