"""`fleetctl status` and `fleetctl take-over`: nodes that carry our mark, found without any journal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from fleetctl.cli.rollout_verbs import JSON, SITE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from fleetctl.cli.build import OpenSite
    from fleetctl.model.fleet import Node
    from fleetctl.model.mark import Mark
    from fleetctl.model.node_facts import Lease
    from fleetctl.model.reading import Reading
    from fleetctl.model.work import Work


@click.command()
@SITE
@JSON
def status(inventory: str | None, as_json: bool) -> None:
    """Every node that carries fleetctl's mark, whoever set it, since when, and whether a live controller owns it.

    Of rollouts that this site's journal knows and that are not over: also the nodes that are longer in their state than
    they may be, and what each waits for.

    \b
    Example:
      fleetctl status
    """
    from datetime import UTC, datetime

    from fleetctl.cli.build import open_site

    site, now = open_site(inventory), datetime.now(UTC)
    marked = _marked(site)
    alive, late = _controllers(site), _overdue(site, {found.mark.rollout for found in marked.values()}, now)
    if as_json:
        rows = [
            {
                "node": name,
                "rollout": found.mark.rollout,
                "why": found.mark.why,
                "since": found.since.isoformat() if found.since else None,
                "controller": alive.get(found.mark.rollout, "none here"),
                "past_limit": late.get(name, ""),
            }
            for name, found in marked.items()
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    if not marked:
        click.echo("no node carries fleetctl's mark")
    for line in _told(marked, alive, late, now):
        click.echo(line)


@dataclass(frozen=True, slots=True)
class _Marked:
    mark: Mark
    since: datetime | None


def _told(
    marked: Mapping[str, _Marked], alive: Mapping[str, str], late: Mapping[str, str], now: datetime
) -> Iterator[str]:
    """Nodes of one rollout with the same words behind the mark stand together, those past a limit below them."""
    from fleetctl.model.names import fold
    from fleetctl.report.words import ago

    groups: dict[tuple[str, str], list[str]] = {}
    for name, found in marked.items():
        groups.setdefault((found.mark.rollout, found.mark.why), []).append(name)
    for (rollout, why), names in sorted(groups.items()):
        owner = alive.get(rollout, "no controller known here: fleetctl take-over adopts them")
        first = min((since for name in names if (since := marked[name].since) is not None), default=None)
        yield f"{fold(names)}  rollout {rollout}  {owner}" + (f"  drained {ago(first, now)}" if first else "")
        if why:
            yield f"  {why}"
        yield from (f"  {name}: past its limit: {late[name]}" for name in names if name in late)


def _marked(site: OpenSite) -> Mapping[str, _Marked]:
    """The mark of each node of the inventory that has one, by node name."""
    from fleetctl.model.mark import read_mark

    names = {node.scheduler_name: name for name, node in site.inventory.fleet.nodes.items()}
    works = {names[name]: work for name, work in _snapshot(site).items() if name in names and work.cordoned}
    found = {name: (read_mark(work.reason), work.reason_at) for name, work in sorted(works.items())}
    return {name: _Marked(mark, since) for name, (mark, since) in found.items() if mark is not None}


def _overdue(site: OpenSite, rollouts: set[str], now: datetime) -> Mapping[str, str]:
    """Nodes past the limit of their state in those of `rollouts` that are not over, and what each waits for."""
    from fleetctl.cli.campaign import open_journal, replay
    from fleetctl.errors import JournalDamaged
    from fleetctl.report.rollout import overdue
    from fleetctl.store.history import list_rollouts

    database, found = open_journal(site), dict[str, str]()
    for entry in list_rollouts(database, site.site.name, now):
        if entry.rollout in rollouts and entry.status in ("running", "interrupted"):
            try:
                found |= overdue(replay(site, database, entry.rollout), now)
            except JournalDamaged as error:  # the marks are found without it
                click.echo(f"the limits of {entry.rollout} are not known: {error}", err=True)
    return found


def _snapshot(site: OpenSite) -> Mapping[str, Work]:
    import asyncio

    from fleetctl.errors import SchedulerError

    read: Reading[Mapping[str, Work]] = asyncio.run(site.scheduler().snapshot())
    if not read.is_known:
        raise SchedulerError(f"the scheduler can't be read: {read.reason}")
    return read.get()


def _controllers(site: OpenSite) -> Mapping[str, str]:
    """What this site's journal knows of each rollout's controller."""
    from datetime import UTC, datetime

    from fleetctl.cli.campaign import open_journal
    from fleetctl.store.history import list_rollouts
    from fleetctl.store.lock import holder_of

    database, now = open_journal(site), datetime.now(UTC)
    known = {entry.rollout: f"{entry.status}, no controller" for entry in list_rollouts(database, site.site.name, now)}
    holder = holder_of(database, site.site.name, now)
    if holder is not None and holder.is_live:
        known[holder.claim.rollout] = f"run by {holder.claim.controller} ({holder.condition})"
    return known


@click.command("take-over")
@click.argument("nodes")
@SITE
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Even from a rollout whose controller lives.")
def take_over(nodes: str, inventory: str | None, yes: bool, force: bool) -> None:
    """Adopt nodes that another rollout left drained: bring them to what is declared, verify, give back.

    \b
    Example:
      fleetctl take-over gpu[017-018]
    """
    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import begin, carry_out
    from fleetctl.cli.common import find_components
    from fleetctl.errors import Refused, SelectionError

    site = open_site(inventory)
    chosen = site.nodes(nodes)
    marked, alive = _marked(site), _controllers(site)
    unmarked = [node.name for node in chosen if node.name not in marked]
    if unmarked:
        raise SelectionError(f"{', '.join(unmarked)}: no mark of fleetctl there, nothing to take over")
    rollouts = frozenset(marked[node.name].mark.rollout for node in chosen)
    for rollout in sorted(rollouts):
        owner = alive.get(rollout, "")
        if owner.startswith("run by") and not force:
            raise Refused(f"rollout {rollout} is {owner}: end it first, or take over with --force")
        click.echo(f"rollout {rollout}: {owner or 'not in this journal; its controller may live elsewhere'}", err=True)
    if not yes:
        click.confirm(f"Take over {len(chosen)} node(s)?", abort=True, err=True)
    components = find_components(["driver"])
    with begin(site, components, chosen, {}, f"take-over of {', '.join(sorted(rollouts))}", force=force) as campaign:
        _raise_leases(chosen)
        code = carry_out(campaign, chosen, also_adopt=rollouts)
    raise SystemExit(code)


def _raise_leases(nodes: Sequence[Node]) -> None:
    """End the old controllers' right to act: raise each lease's epoch (which waits for their commands), drop it."""
    import asyncio
    from dataclasses import replace

    from fleetctl.adapters.nodes import SshNodes
    from fleetctl.adapters.ssh import Ssh
    from fleetctl.errors import Refused
    from fleetctl.parse.node import read_node

    async def one(adapter: SshNodes, node: Node) -> str:
        raw = await adapter.probe(node)
        if not raw.is_known:
            return f"{node.name}: {raw.reason}"
        lease: Reading[Lease] = read_node(raw.get()).lease
        if lease.kind == "not_applicable":
            return ""
        if not lease.is_known:
            return f"{node.name}: its lease can't be read: {lease.reason}"
        ours = replace(lease.get(), controller="take-over", epoch=lease.get().epoch + 1)
        taken = await adapter.take_lease(node, ours)
        if taken.kind != "ok":
            return f"{node.name}: {taken.reason}"
        dropped = await adapter.release_lease(node, ours)
        return "" if dropped.kind == "ok" else f"{node.name}: {dropped.reason}"

    async def all_of_them() -> list[str]:
        adapter = SshNodes(Ssh())
        return [told for told in await asyncio.gather(*(one(adapter, node) for node in nodes)) if told]

    told = asyncio.run(all_of_them())
    if told:
        raise Refused("not taken over, nothing was changed:\n" + "\n".join(told))
