"""The directory each machine sees as /lab: what it copies over itself at its first start, its DMI, its faults."""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING, Final

from fleetctl.lab.credentials import host_key, munge_key
from fleetctl.lab.repository import KEY_FILE, open_repository
from fleetctl.lab.slurm_config import cgroup_conf, slurm_conf, slurmdbd_conf

if TYPE_CHECKING:
    from pathlib import Path

    from fleetctl.lab.layout import Lab, Machine

POST_S: Final = 8
"""Seconds a node's stand-in self-test takes; with shutdown and start an ordinary reboot takes about 9 s."""
RESEARCHER_ID: Final = 2001
# The names that the role package_closure gives its files: an apt source of the same address under another name and key
# would make apt refuse both.
_KEYRING: Final = "etc/apt/keyrings/fleetctl-nvidia_driver.asc"
_SOURCE: Final = "etc/apt/sources.list.d/fleetctl-nvidia_driver.sources"


def write_machines(lab: Lab) -> None:
    """Write every machine's directory anew, except faults, which stay as they are."""
    lab.home.mkdir(mode=0o755, exist_ok=True)
    shutil.chown(lab.home, RESEARCHER_ID, RESEARCHER_ID)
    hosts = "127.0.0.1 localhost\n" + "".join(f"{machine.address} {machine.name}\n" for machine in lab.machines)
    for machine in lab.machines:
        directory = lab.files_of(machine)
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700, parents=True)
        lab.faults_of(machine).mkdir(parents=True, exist_ok=True)
        _write_files(lab, machine, directory / "files", hosts)
        _write_dmi(lab, machine, directory / "dmi")
        (directory / "post-seconds").write_text(f"{POST_S}\n")


def repository_uri(lab: Lab) -> str:
    """Return the address of the lab's apt repository as nodes reach it."""
    return f"http://{lab.head.address}/nvidia/"


def _write_files(lab: Lab, machine: Machine, root: Path, hosts: str) -> None:
    key = host_key(lab, machine)
    _put(root / "etc/ssh/ssh_host_ed25519_key", key.read_bytes(), 0o600)
    _put(root / "etc/ssh/ssh_host_ed25519_key.pub", key.with_name(f"{key.name}.pub").read_bytes())
    public = lab.ssh_key.with_name(f"{lab.ssh_key.name}.pub").read_bytes()
    _put(root / "home/fleet/.ssh/authorized_keys", public, 0o600)
    (root / "home/fleet/.ssh").chmod(0o700)
    _put(root / "etc/munge/munge.key", munge_key(lab).read_bytes(), 0o400)
    (root / "etc/munge").chmod(0o700)
    _put(root / "etc/hosts", hosts.encode())
    _put(root / "etc/slurm/slurm.conf", slurm_conf(lab).encode())
    if machine == lab.head:
        _put(root / "etc/slurm/slurmdbd.conf", slurmdbd_conf().encode(), 0o600)
        return
    if lab.release == "trixie":
        _put(root / "etc/slurm/cgroup.conf", cgroup_conf().encode())
    _put(root / _KEYRING, (lab.repository / "public" / KEY_FILE).read_bytes())
    _put(root / _SOURCE, _source(lab).encode())


def _source(lab: Lab) -> str:
    return open_repository(lab.repository).source(repository_uri(lab), f"/{_KEYRING}")


def _write_dmi(lab: Lab, machine: Machine, directory: Path) -> None:
    """Write what /sys/class/dmi/id shows. The same lab name gives a machine the same identity again."""
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"{machine.name}.{lab.name}.fleetctl-lab.invalid")
    facts = {
        "sys_vendor": "fleetctl",
        "product_name": "lab head" if machine == lab.head else "lab HGX H100",
        "product_uuid": str(identity),
        "product_serial": f"LAB{identity.hex[:9].upper()}",
        "board_serial": f"LAB{identity.hex[9:18].upper()}",
    }
    for name, value in facts.items():
        _put(directory / name, f"{value}\n".encode())


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_bytes(content)
