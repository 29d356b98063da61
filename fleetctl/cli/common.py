"""What the commands share: options of a site, the choice of components, progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from datetime import tzinfo

    from fleetctl.cli.build import OpenSite
    from fleetctl.flows.observe import Lookout, Progress
    from fleetctl.model.fleet import Json
    from fleetctl.ports import Component, Nodes

T = TypeVar("T")

inventory_option = click.option(
    "-i", "--inventory", metavar="SITE", help="Directory of the site, or its name in ./inventory."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
limit_option = click.option("--limit", metavar="PATTERN", help="Only these: gpu[001-016], groups, Ansible patterns.")
exclude_option = click.option("--exclude", metavar="PATTERN", help="Not these nodes.")


def override(site: OpenSite, components: str, version: str | None) -> Mapping[str, Json]:
    """`--to VERSION` as declared variables of the one component that it can be meant for; BadInput for several."""
    from fleetctl.components import registry
    from fleetctl.errors import BadInput

    if version is None:
        return {}
    named = [word.strip() for word in components.split(",") if word.strip()]
    if len(named) != 1:
        raise BadInput(f"--to {version} names one version, and {components} several components: roll out one at a time")
    return site.override(registry.by_name(named[0]), version)


def find_components(named: Sequence[str]) -> tuple[Component, ...]:
    """The named components (all without any) with what moves with them, in the order in which they depend."""
    from fleetctl.components import registry
    from fleetctl.errors import SelectionError
    from fleetctl.store.problems import suggest

    known = registry.names()
    words = tuple(word.strip() for text in named for word in text.split(",") if word.strip())
    if named and not words:
        raise SelectionError(f"no component is named: there are {', '.join(known)}")
    for word in words:
        if word not in known:
            near = suggest(word, known)
            raise SelectionError(f"there is no component {word}{near}: there are {', '.join(known)}")
    return tuple(registry.by_name(name) for name in registry.with_followers(words or known))


def named_of(components: Sequence[Component]) -> tuple[str, ...]:
    """Those that no other one brings along."""
    followers = {name for component in components for name in component.moves_with}
    return tuple(component.name for component in components if component.name not in followers)


def make_lookout(nodes: Nodes, components: Sequence[Component], overrides: Mapping[str, Json] | None = None) -> Lookout:
    from fleetctl.flows.observe import Lookout
    from fleetctl.parse.node import read_node

    return Lookout(nodes, tuple(components), read_node, overrides or {})


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a loop of its own; Ctrl-C cancels it."""
    import asyncio

    return asyncio.run(coroutine)


def show_progress(verb: str) -> Progress:
    """A counting line on a terminal, nothing in a pipe; it is wiped when all have answered."""
    if not sys.stderr.isatty():
        return lambda _done, _total: None

    def show(done: int, total: int) -> None:
        text = f"{verb} {done}/{total}" if done < total else ""
        click.echo(f"\r\x1b[K{text}", nl=False, err=True, color=True)

    return show


def site_nodes() -> Nodes:
    """The nodes port alone, for commands that only look."""
    from fleetctl.adapters.nodes import SshNodes
    from fleetctl.adapters.ssh import Ssh

    return SshNodes(Ssh())


def local_zone() -> tzinfo:
    """The time zone of the person who reads."""
    from datetime import UTC, datetime

    zone = datetime.now(UTC).astimezone().tzinfo
    assert zone is not None
    return zone
