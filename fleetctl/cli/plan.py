"""`fleetctl plan`: what a rollout would do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.common import (
    find_components,
    json_option,
    local_zone,
    make_lookout,
    named_of,
    override,
    run,
    show_progress,
    site_nodes,
)
from fleetctl.cli.rollout import policy_flags, rollout_options

if TYPE_CHECKING:
    from fleetctl.cli.build import OpenSite
    from fleetctl.decide.eta import Typical
    from fleetctl.decide.plan import Plan
    from fleetctl.model.fleet import Json, Node
    from fleetctl.model.survey import Survey
    from fleetctl.ports import Component

_MEASURED_ROLLOUTS = 3
"""How many past rollouts tell the typical times."""


@click.command("plan")
@click.argument("components")
@rollout_options
@json_option
def plan(components: str, version: str | None, as_json: bool, **options: Any) -> None:
    """Show what a rollout would do to which nodes, in which waves, how long it may take. Nothing is touched.

    COMPONENTS are names with commas between, such as driver; what moves with them comes along.

    \b
    Example:
      fleetctl plan driver
      fleetctl plan driver --to 580.95.05 --limit rack01 --max-unavailable 5%
    """
    from fleetctl.cli.build import open_site

    chosen = find_components([components])
    site = open_site(options["inventory"], policy_flags(options))
    overrides = override(site, components, version)
    nodes = site.nodes(options["limit"], options["exclude"])
    made = make_plan(site, chosen, nodes, overrides, to_change=False)
    show_plan(made, as_json=as_json)


def make_plan(
    site: OpenSite,
    components: Sequence[Component],
    nodes: Sequence[Node],
    overrides: Mapping[str, Json],
    *,
    to_change: bool = True,
    needs_way_back: bool = True,
) -> Plan:
    """Look at the nodes and the scheduler, and decide; nothing is touched.

    `needs_way_back`: ask the nodes' repositories, too, whether what is installed could be had again.

    SchedulerError: our identity can't see all jobs, or, `to_change`, may not drain nodes.
    """
    from fleetctl.decide.plan import make_plan as decide

    survey = run(_survey(site, components, nodes, overrides, to_change))
    past = _past(site)
    if needs_way_back:
        survey = _ask_for_way_back(site, components, nodes, survey, past.over)
    made = decide(
        survey, site.inventory.fleet, site.site.policy, named_of(components), overrides, past.over, past.typical
    )
    if past.running:
        note = f"rollout {past.running} runs now: another one is refused until it is over"
        made = replace(made, notes=(note, *made.notes))
    return made


async def _survey(
    site: OpenSite,
    components: Sequence[Component],
    chosen: Sequence[Node],
    overrides: Mapping[str, Json],
    to_change: bool,
) -> Survey:
    from datetime import UTC, datetime

    from fleetctl.flows.observe import observe

    scheduler = site.scheduler()
    await scheduler.check_access(to_change=to_change)
    return await observe(
        make_lookout(site_nodes(), components, overrides),
        chosen,
        scheduler,
        site.inventory.fleet.nodes.values(),
        now=datetime.now(UTC),
        progress=show_progress("looking at nodes"),
    )


def _ask_for_way_back(
    site: OpenSite, components: Sequence[Component], chosen: Sequence[Node], survey: Survey, over: frozenset[str]
) -> Survey:
    from fleetctl.decide.candidates import Terms
    from fleetctl.decide.way_back import ask_for
    from fleetctl.flows.way_back import ask

    terms = Terms(site.site.policy, survey.read_at, over)
    roles = {component.name: component.role for component in components}
    nodes = {node.name: node for node in chosen}
    questions = ask_for(survey, nodes, terms, roles)
    return replace(survey, lost=run(ask(site_nodes(), nodes, questions, progress=show_progress("asking repositories"))))


@dataclass(frozen=True, slots=True)
class _Past:
    """What the journal tells: rollouts that are over, the one that runs, and the times that the last ones measured."""

    over: frozenset[str]
    running: str
    typical: Typical


def _past(site: OpenSite) -> _Past:
    from datetime import UTC, datetime
    from itertools import chain

    from fleetctl.cli.campaign import EXIT, open_journal
    from fleetctl.decide.eta import measure
    from fleetctl.store.history import list_rollouts
    from fleetctl.store.journal import read_events

    database = open_journal(site)
    entries = list_rollouts(database, site.site.name, datetime.now(UTC))
    over = [entry.rollout for entry in entries if entry.status in EXIT]
    running = next((entry.rollout for entry in entries if entry.status == "running"), "")
    events = chain.from_iterable(read_events(database, rollout) for rollout in over[-_MEASURED_ROLLOUTS:])
    return _Past(frozenset(over), running, measure(events))


def show_plan(plan: Plan, *, as_json: bool = False) -> None:
    """Print the plan; PolicyError where not one node could be taken out."""
    from fleetctl.decide.plan import require_room
    from fleetctl.report.as_json import plan_json
    from fleetctl.report.plan_text import plan_text

    click.echo(json.dumps(plan_json(plan), indent=2) if as_json else plan_text(plan, local_zone()))
    require_room(plan)
