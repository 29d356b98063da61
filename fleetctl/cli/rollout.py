"""`fleetctl rollout`: start one, and the verbs of a running or past one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.rollout_verbs import VERBS

if TYPE_CHECKING:
    from fleetctl.cli.build import OpenSite

_NOT_AS_DECLARED = 3


class RolloutGroup(click.Group):
    """`rollout driver` starts one; `rollout status` and the other verbs speak of one that is there."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            return "start", self.commands["start"], args
        return super().resolve_command(ctx, args)


@click.group("rollout", cls=RolloutGroup)
def rollout_group() -> None:
    """Change nodes behind drain, verify, undrain; or ask about a rollout.

    \b
    Examples:
      fleetctl rollout driver                 plan it, ask, and carry it out
      fleetctl rollout driver --to 580.95.05 --limit rack01 --yes
      fleetctl rollout status
    """


def rollout_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a plan and a rollout take alike; the last decorator is the first option in the help."""
    for option in (
        click.option("--on-failed-verify", type=click.Choice(["roll_back", "quarantine"]), help="Of fleet.yml."),
        click.option("--soak-min", metavar="MIN", help="How long canaries soak before the rest goes."),
        click.option("--canary", metavar="N", help="How many nodes go first."),
        click.option("--max-failures", metavar="N", help="Stop when more than N nodes have failed; 0: at the first."),
        click.option("--max-unavailable", metavar="N|N%", help="How many nodes may be out at once."),
        click.option("--exclude", metavar="PATTERN", help="Not these nodes."),
        click.option("--limit", metavar="PATTERN", help="Only these: gpu[001-016], groups, Ansible patterns."),
        click.option("--to", "version", metavar="VERSION", help="Another version than the inventory declares."),
        click.option("-i", "--inventory", metavar="SITE", help="Directory of the site, or its name in ./inventory."),
    ):
        command = option(command)
    return command


def policy_flags(options: dict[str, Any]) -> dict[str, Any]:
    """The options that stand above fleet.yml."""
    names = ("max_unavailable", "max_failures", "canary", "soak_min", "on_failed_verify")
    return {name: options[name] for name in names if options.get(name) is not None}


@rollout_group.command("start", hidden=True)
@click.argument("components")
@rollout_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Take over from a controller that lives but does nothing.")
def start(components: str, version: str | None, yes: bool, force: bool, **options: Any) -> None:
    """Carry a change out on every node that drifted, after showing the plan.

    \b
    Example:
      fleetctl rollout driver --max-unavailable 5% --max-failures 3
    """
    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import begin, carry_out
    from fleetctl.cli.common import find_components, override
    from fleetctl.cli.plan import make_plan, show_plan
    from fleetctl.model.names import fold

    site = open_site(options["inventory"], policy_flags(options))
    chosen = find_components([components])
    overrides = override(site, components, version)
    nodes = site.nodes(options["limit"], options["exclude"])
    plan = make_plan(site, chosen, nodes, overrides)
    show_plan(plan)
    if not plan.to_change:
        click.echo("nothing to do")
        raise SystemExit(0 if plan.is_converged else _NOT_AS_DECLARED)
    if not yes:
        click.confirm("Carry this out?", abort=True, err=True)
    by_name = {node.name: node for node in nodes}
    going = [by_name[name] for name in plan.nodes]
    with begin(site, chosen, going, overrides, plan.summary, force=force) as campaign:
        code = carry_out(campaign, going)
    if code == 0 and plan.not_planned:
        left_alone = fold([left.node for left in plan.not_planned])
        click.echo(f"not planned, so not changed: {left_alone}; `fleetctl plan` says why", err=True)
        code = _NOT_AS_DECLARED
    raise SystemExit(code)


@rollout_group.command()
@click.argument("rollout", required=False)
@click.option("-i", "--inventory", metavar="SITE", help="Directory of the site, or its name in ./inventory.")
@click.option("--force", is_flag=True, help="Take over from a controller that lives but does nothing.")
def resume(rollout: str | None, inventory: str | None, force: bool) -> None:
    """Go on with a rollout: lift its pause, or take it up where its controller left or died.

    \b
    Example:
      fleetctl rollout resume
    """
    from datetime import UTC, datetime

    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import carry_out, open_journal, take_up
    from fleetctl.cli.rollout_verbs import latest, submit_request
    from fleetctl.store.lock import holder_of

    site = open_site(inventory)
    database = open_journal(site)
    name = rollout or latest(site, database)
    holder = holder_of(database, site.site.name, datetime.now(UTC))
    if holder is not None and holder.condition == "live" and holder.claim.rollout == name and not force:
        submit_request(database, name, "resume")
        return
    with take_up(site, name, force=force) as campaign:
        code = carry_out(campaign, _nodes_of(site, campaign.state.records))
    raise SystemExit(code)


@rollout_group.command()
@click.argument("rollout", required=False)
@rollout_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def undo(rollout: str | None, version: str | None, yes: bool, **options: Any) -> None:
    """Bring the nodes that a rollout changed back to the exact packages they had before it, as a new rollout.

    \b
    Example:
      fleetctl rollout undo r-20261130-a7 --limit rack01
    """
    from fleetctl.cli.build import open_site
    from fleetctl.cli.campaign import begin, carry_out, open_journal, replay, with_targets
    from fleetctl.cli.plan import make_plan, show_plan
    from fleetctl.cli.rollout_verbs import latest
    from fleetctl.components import registry
    from fleetctl.errors import BadInput, SelectionError
    from fleetctl.model.rollout import State

    if version is not None:
        raise BadInput("undo goes to the packages in the journal: leave --to out, or use `rollout driver --to`")
    site = open_site(options["inventory"], policy_flags(options))
    database = open_journal(site)
    name = rollout or latest(site, database)
    past = replay(site, database, name)
    assert past.opened is not None
    changed = {node: record.closures for node, record in past.records.items() if record.state is State.DONE}
    nodes = [node for node in site.nodes(options["limit"], options["exclude"]) if changed.get(node.name)]
    if not nodes:
        raise SelectionError(f"rollout {name} changed none of these nodes: nothing to undo")
    targets = {node.name: changed[node.name] for node in nodes}
    chosen = tuple(registry.by_name(component) for component in past.opened.components)
    # No repository is asked: the preflight demands no way back from a way back.
    plan = make_plan(site, chosen, with_targets(nodes, targets), {}, needs_way_back=False)
    show_plan(plan)
    if not plan.to_change:
        click.echo("nothing to do")
        return
    if not yes:
        click.confirm("Carry this out?", abort=True, err=True)
    going = [node for node in nodes if node.name in plan.nodes]
    with begin(site, chosen, going, {}, f"undo of {name}: {plan.summary}", targets=targets) as campaign:
        code = carry_out(campaign, going)
    raise SystemExit(code)


def _nodes_of(site: OpenSite, names: Any) -> Any:
    """The rollout's nodes as the inventory declares them now; one that it no longer has is bad input."""
    from fleetctl.errors import InventoryError
    from fleetctl.model.names import fold

    missing = [name for name in names if name not in site.inventory.fleet.nodes]
    if missing:
        raise InventoryError(f"{fold(missing)}: in the rollout, but no longer in the inventory: put them back to go on")
    return [node for node in site.nodes() if node.name in names]


for verb in VERBS:
    rollout_group.add_command(verb)
