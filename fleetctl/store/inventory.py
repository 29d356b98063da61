"""The fleet as its inventory declares it: nodes, how they are reached, and who is meant by a pattern."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.errors import InventoryError, SelectionError
from fleetctl.model.fleet import Connection, Fleet, HostVars, Json, Node
from fleetctl.model.names import fold, natural_key
from fleetctl.model.site import Site
from fleetctl.store.ansible_inventory import Source, connection_defaults, read_source, run_ansible_inventory
from fleetctl.store.connection import CONNECTION_VARIABLES, Untranslatable, connection_of
from fleetctl.store.inventory_cache import Host, Listing, read_cache, write_cache
from fleetctl.store.render import Wanted, render_listing
from fleetctl.store.role_spec import RoleSpec
from fleetctl.store.selection import HostPatterns, members_of


@dataclass(frozen=True, slots=True)
class Inventory:
    """One site's nodes, and the groups that patterns may name."""

    site: Site
    fleet: Fleet
    listing: Listing
    patterns: HostPatterns
    environ: Mapping[str, str] = field(repr=False)

    def select(self, limit: str | None = None, exclude: str | None = None) -> tuple[Node, ...]:
        """Nodes of `limit` (all) without those of `exclude`, in natural order; none left is a SelectionError."""
        names = self.patterns.match(limit) if limit is not None else list(self.fleet.nodes)
        if not names:
            raise SelectionError(f"{limit or 'the inventory'} names no node: there is nothing to act on")
        if exclude is not None:
            left_out = set(self.patterns.match(exclude))
            names = [name for name in names if name not in left_out]
            if not names:
                raise SelectionError(f"--exclude {exclude} leaves no node: there is nothing to act on")
        return tuple(self.fleet.nodes[name] for name in sorted(names, key=natural_key))

    def reach(self, host: Connection) -> Connection:
        """How `host` of a setting (schedulers.slurm.via) is reached: the inventory's own answer if it is in it."""
        if host.host not in self.listing.hosts:
            return host
        known = _connect(host.host, self.listing.hosts[host.host], self.environ)
        user, port = host.user or known.user, host.port if host.port != 22 else known.port
        return Connection(known.host, port, user, known.identity_file, known.known_hosts, known.proxy_jump)


def load_inventory(
    site: Site,
    specs: Sequence[RoleSpec],
    cache_directory: Path | None = None,
    *,
    refresh: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Inventory:
    """Read the site's inventory. Of its variables only those of the roles, failure domains, names and connections.

    A file inventory is taken from the cache if no byte of it changed; a dynamic one if the answer is young enough.
    `refresh` asks anew. InventoryError names each host that can't be reached or placed.
    """
    listing = _listing(site, specs, cache_directory, refresh, environ)
    names = sorted(_declared_nodes(site, listing), key=natural_key)
    if not names:
        raise InventoryError(f"{site.directory} declares no node: add hosts, or widen `nodes` in fleet.yml")
    nodes = _nodes(site, names, listing, environ)
    chosen = HostPatterns(dict.fromkeys(names), members_of(listing.groups, names), _elsewhere(site, listing))
    return Inventory(site, Fleet(site.name, nodes), listing, chosen, environ)


def _declared_nodes(site: Site, listing: Listing) -> list[str]:
    if not listing.hosts:
        return []
    try:
        return HostPatterns(dict.fromkeys(listing.hosts), listing.groups).match(site.nodes)
    except SelectionError as exc:
        raise InventoryError(f"{site.directory / 'fleet.yml'}: nodes: {exc}") from exc


def _elsewhere(site: Site, listing: Listing) -> Callable[[str], str]:
    def reason(name: str) -> str:
        if name not in listing.hosts:
            return ""
        return f"{name} is in the inventory, but not among the nodes that fleet.yml names (nodes: {site.nodes})"

    return reason


def _listing(
    site: Site, specs: Sequence[RoleSpec], cache_directory: Path | None, refresh: bool, environ: Mapping[str, str]
) -> Listing:
    source = read_source(site.directory, environ)
    prefixes = tuple(sorted(f"{spec.role}_" for spec in specs))
    secrets = frozenset(name for spec in specs for name in spec.secrets)
    named = frozenset((*site.failure_domains.values(), *site.names.values(), *CONNECTION_VARIABLES))
    key = _cache_key(source, prefixes, named, secrets)
    cache = cache_directory / f"inventory-{os.geteuid()}.json" if cache_directory else None
    if cache and not refresh:
        max_age_s = site.inventory_max_age_s if source.is_dynamic else None
        if cached := read_cache(cache, key, time.time(), max_age_s):
            return cached
    text = run_ansible_inventory(source, environ)
    wanted = Wanted(prefixes, named, secrets)
    listing = render_listing(text, source, wanted, environ)
    if cache:
        write_cache(cache, key, time.time(), listing)
    return listing


def _cache_key(source: Source, prefixes: Sequence[str], named: frozenset[str], secrets: frozenset[str]) -> str:
    wanted = json.dumps([source.digest, str(source.directory), prefixes, sorted(named), sorted(secrets)])
    return hashlib.sha256(wanted.encode()).hexdigest()


def _nodes(site: Site, names: Sequence[str], listing: Listing, environ: Mapping[str, str]) -> dict[str, Node]:
    """Every node, or one InventoryError with all that is wrong, hosts of the same complaint folded."""
    defaults = connection_defaults(environ)
    limited = site.policy.max_unavailable_per
    nodes: dict[str, Node] = {}
    wrong: dict[str, list[str]] = {}
    for name in names:
        host = listing.hosts[name]
        try:
            _require_known(host)
            domains = {
                kind: value
                for kind, variable in site.failure_domains.items()
                if (value := _domain(host, kind, variable, kind in limited)) is not None
            }
            nodes[name] = Node(
                name,
                connection_of(name, {**defaults, **host.variables}),
                _scheduler_name(site, name, host.variables),
                domains,
                host.variables,
            )
        except Untranslatable as exc:
            wrong.setdefault(str(exc), []).append(name)
    if wrong:
        raise InventoryError(_folded(wrong))
    _refuse_twins(nodes)
    return nodes


def _folded(wrong: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f"{fold(names)}: {reason}" for reason, names in wrong.items())


def _require_known(host: Host) -> None:
    """Everything but the declared versions must be known at once; those are asked for when they are needed."""
    for variable, (kind, text) in host.withheld.items():
        if variable in CONNECTION_VARIABLES:
            raise Untranslatable(f"{variable} {reason_withheld(kind, text)}")


def reason_withheld(kind: str, text: str) -> str:
    """Why a variable is given but can't be used here, and what to do about it."""
    if kind == "secret":
        return f"is secret, and fleetctl keeps no secrets ({text}): give it in clear"
    if kind == "undefined":
        return f"can't be known without facts of the node ({text}): give it per group in group_vars"
    return f"can't be rendered ({text}): correct its template"


def _domain(host: Host, kind: str, variable: str, is_limited: bool) -> str | None:
    if variable in host.withheld:
        raise Untranslatable(f"{variable} {reason_withheld(*host.withheld[variable])}")
    value: Json = host.variables.get(variable)
    if value is None:
        if is_limited:
            raise Untranslatable(
                f"no {variable}, and max_unavailable_per limits every {kind}: give each node its {kind}"
            )
        return None
    if isinstance(value, bool | list | dict) or not str(value).strip():
        raise Untranslatable(f"{variable} must be the name of a {kind}")
    return str(value)


def _scheduler_name(site: Site, name: str, variables: HostVars) -> str:
    variable = site.names.get("slurm")
    if variable is None:
        return name
    value: Json = variables.get(variable, name)
    if not isinstance(value, str) or not value.strip():
        raise Untranslatable(f"{variable} must be the node's name in Slurm")
    return value


def _refuse_twins(nodes: Mapping[str, Node]) -> None:
    """Two names for one machine, or for one node of the scheduler, would be changed at the same time."""
    by_address: dict[tuple[str, int, str | None], str] = {}
    by_scheduler: dict[str, str] = {}
    for name, node in nodes.items():
        at = (node.connection.host, node.connection.port, node.connection.proxy_jump)
        if (other := by_address.setdefault(at, name)) != name:
            raise InventoryError(f"{other} and {name} have the same address {at[0]}: keep one, or correct ansible_host")
        if (other := by_scheduler.setdefault(node.scheduler_name, name)) != name:
            raise InventoryError(f"{other} and {name} are both {node.scheduler_name} in the scheduler: correct one")


def _connect(name: str, host: Host, environ: Mapping[str, str]) -> Connection:
    try:
        _require_known(host)
        return connection_of(name, {**connection_defaults(environ), **host.variables})
    except Untranslatable as exc:
        raise InventoryError(f"{name}: {exc}") from exc
