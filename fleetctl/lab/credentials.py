"""Keys of one lab, made here and known in advance: the automation user's, each machine's own, munge's."""

from __future__ import annotations

import secrets
import subprocess
from typing import TYPE_CHECKING

from fleetctl.errors import FleetctlError

if TYPE_CHECKING:
    from pathlib import Path

    from fleetctl.lab.layout import Lab, Machine

_MUNGE_KEY_BYTES = 1024


def make_credentials(lab: Lab) -> None:
    """Make what is missing; keys that are there stay."""
    lab.ssh_key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make_key(lab.ssh_key, "fleet")
    for machine in lab.machines:
        _make_key(host_key(lab, machine), machine.name)
    munge = munge_key(lab)
    if not munge.exists():
        munge.touch(mode=0o400)
        munge.write_bytes(secrets.token_bytes(_MUNGE_KEY_BYTES))
    lines = (f"{machine.name},{machine.address} {_type_and_key(host_key(lab, machine))}\n" for machine in lab.machines)
    lab.known_hosts.write_text("".join(lines))


def host_key(lab: Lab, machine: Machine) -> Path:
    """Return where the private host key of a machine lies; the public one is beside it."""
    return lab.ssh_key.parent / f"host_{machine.name}"


def munge_key(lab: Lab) -> Path:
    """Return where the key lies that all machines of the cluster share."""
    return lab.ssh_key.parent / "munge.key"


def _make_key(path: Path, comment: str) -> None:
    if path.exists():
        return
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FleetctlError(f"ssh-keygen can't make {path}: {done.stderr.strip()}")


def _type_and_key(private: Path) -> str:
    return " ".join(private.with_name(f"{private.name}.pub").read_text().split()[:2])
