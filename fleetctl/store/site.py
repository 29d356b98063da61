"""Which site is meant, and where its state lives."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Mapping
from pathlib import Path

from fleetctl.errors import BadInput, InventoryError, StoreError
from fleetctl.model.site import Site
from fleetctl.store.problems import suggest

_SYSTEM_STATE = Path("/var/lib/fleetctl")
_SQLITE = "sqlite:///"
# The name becomes a directory of the state and part of the journal's rows.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def find_site(named: str | None = None, environ: Mapping[str, str] = os.environ, cwd: Path | None = None) -> Path:
    """The directory of the site that is meant; it holds a fleet.yml.

    `named` (--inventory), else FLEETCTL_INVENTORY: a directory, its fleet.yml, or the name of one in ./inventory.
    Without either: the working directory if it is a site, else the only site in ./inventory.
    """
    here = cwd or Path.cwd()
    name = named or environ.get("FLEETCTL_INVENTORY")
    directory = _named_site(name, here) if name else _implied_site(here)
    if not _NAME.fullmatch(directory.name):
        raise InventoryError(f"{directory}: a site's directory may have letters, digits, . _ - in its name: rename it")
    return directory


def _named_site(name: str, here: Path) -> Path:
    path = here / os.path.expanduser(name)
    if path.name == "fleet.yml" and path.is_file():
        path = path.parent
    candidates = [path] if "/" in name else [path, here / "inventory" / name]
    for candidate in candidates:
        if (candidate / "fleet.yml").is_file():
            return candidate.resolve()
    if path.is_dir():
        raise InventoryError(f"{path} has no fleet.yml: `fleetctl init {name}` adds what is missing there")
    sites = [site.name for site in _sites(here)]
    known = f": known are {', '.join(sites)}" if sites else ": `fleetctl init DIR` lays one down"
    raise InventoryError(f"there is no site {name}{suggest(name, sites)}{known}")


def _implied_site(here: Path) -> Path:
    if (here / "fleet.yml").is_file():
        return here.resolve()
    sites = _sites(here)
    if len(sites) == 1:
        return sites[0].resolve()
    if sites:
        names = ", ".join(site.name for site in sites)
        raise InventoryError(f"several sites in {here / 'inventory'}: {names}. Name one with --inventory")
    raise InventoryError(
        f"no site in {here / 'inventory'}: name one with --inventory, or begin one with `fleetctl init DIR`"
    )


def _sites(here: Path) -> list[Path]:
    return sorted(file.parent for file in here.glob("inventory/*/fleet.yml"))


def state_directory(site: Site, environ: Mapping[str, str] = os.environ) -> Path:
    """The site's state directory, made if need be; private, or shared with `state_group`.

    Beside the journal where state_url names a SQLite file; else /var/lib/fleetctl/<site> where we may write there, else
    $XDG_STATE_HOME/fleetctl/<site>.
    """
    beside = (site.state_url or "").removeprefix(_SQLITE) if (site.state_url or "").startswith(_SQLITE) else ""
    system = _SYSTEM_STATE / site.name
    home = Path(environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "fleetctl" / site.name
    directory = Path(beside).absolute().parent if beside else system if _may_write(system) else home
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        _make_private(directory, site.state_group)
    except OSError as exc:
        raise StoreError(f"{directory} can't be used for the site's state: {exc.strerror}: set state_url") from exc
    return directory


def _may_write(path: Path) -> bool:
    """True if `path` is a directory we may write to, or could be made by us."""
    while not path.exists():
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _make_private(directory: Path, group: str | None) -> None:
    if directory.is_dir():
        return
    gid = _gid(group) if group else None
    directory.mkdir(mode=0o700)
    if gid is not None:
        os.chown(directory, -1, gid)
        # Setgid: what a colleague creates in it belongs to the group as well.
        directory.chmod(0o2770)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise BadInput(f"state_group {group} is not a group of this machine: add it, or remove the key") from None
