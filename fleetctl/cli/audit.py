"""`fleetctl audit`: what differs from what is declared."""

from __future__ import annotations

import json

import click

from fleetctl.cli.common import (
    exclude_option,
    find_components,
    inventory_option,
    json_option,
    limit_option,
    make_lookout,
    run,
    show_progress,
    site_nodes,
)

_DRIFT = 3


@click.command("audit")
@click.option("--component", "components", metavar="NAME", multiple=True, help="Only this one; may be repeated.")
@limit_option
@exclude_option
@inventory_option
@json_option
@click.pass_context
def audit(
    ctx: click.Context,
    components: tuple[str, ...],
    limit: str | None,
    exclude: str | None,
    inventory: str | None,
    as_json: bool,
) -> None:
    """Compare each node with what is declared for it, and change nothing.

    Exit code 0: all is as declared. 3: something differs, or could not be read.

    \b
    Example:
      fleetctl audit
      fleetctl audit --component driver --limit rack01 --json
    """
    from datetime import UTC, datetime

    from fleetctl.cli.build import open_site
    from fleetctl.decide.audit import make_audit
    from fleetctl.flows.observe import observe
    from fleetctl.report.as_json import audit_json
    from fleetctl.report.audit_text import audit_text

    chosen = find_components(components)
    site = open_site(inventory)
    lookout = make_lookout(site_nodes(), chosen)
    nodes, progress = site.nodes(limit, exclude), show_progress("looking at nodes")
    survey = run(observe(lookout, nodes, now=datetime.now(UTC), progress=progress))
    made = make_audit(survey, site.site.name)
    click.echo(json.dumps(audit_json(made), indent=2) if as_json else audit_text(made))
    if not made.is_clean:
        ctx.exit(_DRIFT)
