"""The verbs that look at a rollout, or ask something of the controller that runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fleetctl.cli.build import OpenSite
    from fleetctl.model.rollout import Verb
    from fleetctl.store.database import Database

SITE = click.option("-i", "--inventory", metavar="SITE", help="Directory of the site, or its name in ./inventory.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def latest(site: OpenSite, database: Database) -> str:
    """The rollout that is meant when none is named: the one that runs, else the newest."""
    from datetime import UTC, datetime

    from fleetctl.errors import SelectionError
    from fleetctl.store.history import list_rollouts

    entries = list_rollouts(database, site.site.name, datetime.now(UTC))
    if not entries:
        raise SelectionError(f"{site.site.name} has had no rollout: `fleetctl rollout driver` begins one")
    running = [entry.rollout for entry in entries if entry.status == "running"]
    return running[0] if running else entries[-1].rollout


def submit_request(database: Database, rollout: str, verb: Verb, nodes: tuple[str, ...] = ()) -> None:
    """Ask something of a rollout, and say that it was asked."""
    from datetime import UTC, datetime

    from fleetctl.model.rollout import Request
    from fleetctl.store.liveness import user_name
    from fleetctl.store.requests import submit

    submit(database, rollout, Request(verb, user_name(), nodes), datetime.now(UTC))
    click.echo(f"{verb} asked of rollout {rollout}: see `fleetctl rollout status`", err=True)


def _ask(verb: Verb, inventory: str | None, rollout: str | None, nodes: str | None = None) -> None:
    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import open_journal

    site = open_site(inventory)
    database = open_journal(site)
    names = tuple(node.name for node in site.inventory.select(nodes)) if nodes else ()
    submit_request(database, rollout or latest(site, database), verb, names)


def _whole(verb: Verb, text: str) -> click.Command:
    """A verb that concerns a whole rollout."""

    @click.command(verb, help=f"{text}\n\n\b\nExample:\n  fleetctl rollout {verb}")
    @click.argument("rollout", required=False)
    @SITE
    def command(rollout: str | None, inventory: str | None) -> None:
        _ask(verb, inventory, rollout)

    return command


def _on_nodes(verb: Verb, text: str) -> click.Command:
    """A verb that concerns some of its nodes."""

    @click.command(verb, help=f"{text}\n\n\b\nExample:\n  fleetctl rollout {verb} gpu[003-004]")
    @click.argument("nodes")
    @click.option("--rollout", metavar="ROLLOUT", help="Not the newest, but this one.")
    @SITE
    def command(nodes: str, rollout: str | None, inventory: str | None) -> None:
        _ask(verb, inventory, rollout, nodes)

    return command


@click.command()
@click.argument("rollout", required=False)
@SITE
@JSON
def status(rollout: str | None, inventory: str | None, as_json: bool) -> None:
    """How a rollout stands: counts, and every node that is not done, with its reason.

    \b
    Example:
      fleetctl rollout status
    """
    from datetime import UTC, datetime

    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import open_journal, replay
    from fleetctl.report.rollout import as_json as rollout_json
    from fleetctl.report.rollout import summary
    from fleetctl.store.history import list_rollouts

    site = open_site(inventory)
    database = open_journal(site)
    name, now = rollout or latest(site, database), datetime.now(UTC)
    state = replay(site, database, name)
    if as_json:
        click.echo(json.dumps(rollout_json(state, now), indent=2))
        return
    entry = next(entry for entry in list_rollouts(database, site.site.name, now) if entry.rollout == name)
    click.echo(f"rollout {name}  {entry.status}  {entry.summary}" + (f"  {entry.reason}" if entry.reason else ""))
    click.echo(summary(state, now))
    if entry.status == "interrupted":
        click.echo(f"nobody runs it: fleetctl rollout resume {name}", err=True)


@click.command()
@click.argument("rollout")
@click.argument("nodes", required=False)
@SITE
@JSON
def show(rollout: str, nodes: str | None, inventory: str | None, as_json: bool) -> None:
    """Everything about some nodes of a rollout: where each is and why, its way back, and what was done to it.

    \b
    Example:
      fleetctl rollout show r-20261130-a7 gpu051
    """
    from datetime import UTC, datetime

    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import open_journal, replay
    from fleetctl.report.rollout import as_json as rollout_json
    from fleetctl.report.rollout import show_node
    from fleetctl.report.story import story
    from fleetctl.store.journal import read_events

    site = open_site(inventory)
    database, now = open_journal(site), datetime.now(UTC)
    state = replay(site, database, rollout)
    names = [node.name for node in site.inventory.select(nodes)] if nodes else list(state.records)
    wanted = [name for name in names if name in state.records]
    if as_json:
        whole = rollout_json(state, now)
        whole["nodes"] = {name: whole["nodes"][name] for name in wanted}
        click.echo(json.dumps(whole, indent=2))
        return
    events = list(read_events(database, rollout))
    for name in wanted:
        click.echo(show_node(state, name, now))
        if nodes:
            click.echo("\n".join(story(events, name)))


@click.command()
@SITE
@JSON
def history(inventory: str | None, as_json: bool) -> None:
    """Every rollout of the site, the newest last.

    \b
    Example:
      fleetctl rollout history
    """
    from dataclasses import asdict
    from datetime import UTC, datetime

    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import open_journal
    from fleetctl.store.history import list_rollouts

    site = open_site(inventory)
    entries = list_rollouts(open_journal(site), site.site.name, datetime.now(UTC))
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in entries], indent=2, default=str))
        return
    click.echo(f"{'ROLLOUT':<16}{'WHEN':<18}{'BY':<16}{'STATUS':<13}{'NODES':>5}  WHAT")
    for entry in entries:
        when = f"{entry.opened_at.astimezone():%Y-%m-%d %H:%M}" if entry.opened_at else ""
        click.echo(
            f"{entry.rollout:<16}{when:<18}{entry.by:<16}{entry.status:<13}{entry.node_count:>5}  {entry.summary}"
            + (f" ({entry.reason})" if entry.reason else "")
        )


@click.command("verify-journal")
@click.argument("rollout", required=False)
@SITE
def verify_journal(rollout: str | None, inventory: str | None) -> None:
    """Recompute the hash chain of a rollout's journal; exit 1 where it is broken.

    \b
    Example:
      fleetctl rollout verify-journal r-20261130-a7
    """
    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import open_journal
    from fleetctl.store.journal import verify
    from fleetctl.store.log import log_path, logged

    site = open_site(inventory)
    database = open_journal(site)
    name = rollout or latest(site, database)
    chain = verify(database, name, logged(log_path(site.state_directory, name)))
    if chain.broken_at is not None:
        click.echo(f"{name}: broken at event {chain.broken_at}: {chain.reason}")
        raise SystemExit(1)
    click.echo(f"{name}: {chain.length} events, chain whole, last {chain.last_hash[:16]}")


VERBS: tuple[click.Command, ...] = (
    status,
    show,
    history,
    verify_journal,
    _whole("pause", "Admit no more nodes until `resume`; those under way go on."),
    _whole("stop", "Admit no more nodes, finish those under way, and end."),
    _whole("abort", "Admit no more nodes, give back those that are unchanged, finish the changed ones, and end."),
    _on_nodes("retry", "Look again at nodes that ended otherwise than done."),
    _on_nodes("skip", "Leave nodes out that were not begun."),
    _on_nodes(
        "release",
        "Leave nodes that are under way to a person: drained as they are, and not touched before they are given back.",
    ),
)
