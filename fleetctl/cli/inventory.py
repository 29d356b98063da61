"""`fleetctl init` and `fleetctl inventory`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.common import exclude_option, inventory_option, json_option, limit_option

if TYPE_CHECKING:
    from fleetctl.model.fleet import Json, Node
    from fleetctl.model.site import Site


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def init_command(directory: Path) -> None:
    """Lay down an inventory to start from; what is already in DIRECTORY is left as it is.

    \b
    Example:
      fleetctl init inventory/train-a
    """
    from fleetctl.store.init import init

    laid = init(directory)
    for name in laid.written:
        click.echo(f"wrote {directory / name}")
    for name in laid.kept:
        click.echo(f"kept  {directory / name}, which was there")
    click.echo(
        f"Next: name your machines in {directory / 'hosts.yml'}, then `fleetctl inventory -i {directory}`", err=True
    )


@click.command("inventory")
@inventory_option
@limit_option
@exclude_option
@click.option("--refresh", is_flag=True, help="Ask the inventory anew, whatever was kept of it.")
@json_option
def inventory_command(
    inventory: str | None, limit: str | None, exclude: str | None, refresh: bool, as_json: bool
) -> None:
    """Show the declared nodes, folded, with what is declared for them.

    \b
    Example:
      fleetctl inventory --limit rack01
    """
    from fleetctl.cli.build import open_site

    opened = open_site(inventory, refresh=refresh)
    nodes = opened.nodes(limit, exclude)
    roles = [spec.role for spec in opened.specs]
    click.echo(_json(opened.site, nodes, roles) if as_json else _text(opened.site, nodes, roles))


def _declared(node: Node, roles: Iterable[str]) -> dict[str, Json]:
    prefixes = tuple(f"{role}_" for role in roles)
    return {name: value for name, value in sorted(node.variables.items()) if name.startswith(prefixes)}


def _json(site: Site, nodes: Iterable[Node], roles: Iterable[str]) -> str:
    shown: Mapping[str, Any] = {
        "site": site.name,
        "directory": str(site.directory),
        "nodes": {
            node.name: {
                "host": node.connection.host,
                "port": node.connection.port,
                "user": node.connection.user,
                "scheduler_name": node.scheduler_name,
                "domains": node.domains,
                "declared": _declared(node, roles),
            }
            for node in nodes
        },
    }
    return json.dumps(shown, indent=2)


def _text(site: Site, nodes: tuple[Node, ...], roles: list[str]) -> str:
    """Nodes with the same declared values together, one line for each role."""
    from fleetctl.model.names import fold

    together: dict[str, list[Node]] = {}
    for node in nodes:
        together.setdefault(json.dumps(_declared(node, roles), sort_keys=True), []).append(node)
    lines = [f"site {site.name}   {len(nodes)} nodes declared in {site.directory}"]
    for alike in together.values():
        lines.append(f"{fold(node.name for node in alike)} ({len(alike)})")
        for kind in site.failure_domains:
            values = {node.domains[kind] for node in alike if kind in node.domains}
            lines.append(f"  {kind:<24}{fold(values) or 'not given'}")
        lines += [f"  {role:<24}{_summary(alike[0], role)}" for role in roles]
    return "\n".join(lines)


def _summary(node: Node, role: str) -> str:
    """The version first, then what else is set, defaults and all, in the order of the names."""
    values = {name.removeprefix(f"{role}_"): value for name, value in _declared(node, [role]).items()}
    version = values.pop("version", None)
    if not values and version is None:
        return "not declared"
    rest = [f"{name} {value}" for name, value in values.items() if isinstance(value, str) and value]
    return "  ".join([*([str(version)] if version is not None else []), *rest]) or "as its role's defaults say"
