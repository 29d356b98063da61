"""Where the files are that ship with the package: roles, playbooks, ansible.cfg, the example inventory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import fleetctl
from fleetctl.errors import BadInput, FleetctlError


@dataclass(frozen=True, slots=True)
class Content:
    """The shipped directories, as absolute paths that exist."""

    roles: Path
    playbooks: Path
    example: Path

    @property
    def ansible_cfg(self) -> Path:
        return self.playbooks / "ansible.cfg"


def find_content() -> Content:
    """The content of the wheel (fleetctl/_content), else of the checkout around the package."""
    package = Path(fleetctl.__file__).resolve().parent
    for root in (package / "_content", package.parent):
        if (root / "roles").is_dir() and (root / "playbooks").is_dir():
            return Content(root / "roles", root / "playbooks", root / "inventory" / "example")
    raise FleetctlError(
        f"no roles and playbooks found in {package / '_content'} or beside {package}: reinstall fleetctl"
    )


def roles_path(site_roles: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Every directory that holds roles, the site's own first: the order in which Ansible takes the first match."""
    return (*site_roles, find_content().roles)


def find_role(name: str, path: Sequence[Path]) -> Path:
    """The first role of that name on `path`."""
    for directory in path:
        if (directory / name / "meta").is_dir() or (directory / name / "tasks").is_dir():
            return directory / name
    looked_in = ", ".join(str(directory) for directory in path)
    raise BadInput(f"no role {name} in {looked_in}: add its directory to roles_path in fleet.yml")


def ansible_config(environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> Path | None:
    """The ansible.cfg that holds, in Ansible's own order of search, with ours as the last of all.

    The order is that of ansible.config.manager.find_ini_config_file: ANSIBLE_CONFIG, here, ~, /etc/ansible. Like there,
    a world-writable working directory is not trusted.
    """
    if named := environ.get("ANSIBLE_CONFIG"):
        path = Path(os.path.expanduser(named))
        return path / "ansible.cfg" if path.is_dir() else path
    here = cwd or Path.cwd()
    candidates = [Path("~/.ansible.cfg").expanduser(), Path("/etc/ansible/ansible.cfg"), find_content().ansible_cfg]
    if not here.stat().st_mode & 0o002:
        candidates.insert(0, here / "ansible.cfg")
    return next((path for path in candidates if path.is_file()), None)
