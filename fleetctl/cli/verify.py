"""`fleetctl verify`: the proof that a rollout trusts, run again."""

from __future__ import annotations

import json

import click

from fleetctl.cli.common import find_components, inventory_option, json_option, make_lookout, run, show_progress

_NOT_PASSED = 3


@click.command("verify")
@click.argument("nodes", metavar="NODES")
@click.option("--component", "components", metavar="NAME", multiple=True, help="Only this one; may be repeated.")
@click.option("--passive", is_flag=True, help="Only checks that disturb no work; the scheduler is not asked.")
@inventory_option
@json_option
@click.pass_context
def verify(
    ctx: click.Context,
    nodes: str,
    components: tuple[str, ...],
    passive: bool,
    inventory: str | None,
    as_json: bool,
) -> None:
    """Prove that NODES work as declared: the checks of a rollout, then a fresh probe.

    Checks that use the GPUs run only on nodes without work; others get the passive ones, and a line says so.
    Exit code 0: every node passed. 3: one did not, or nothing can be said of it.

    \b
    Example:
      fleetctl verify gpu[001-004]
      fleetctl verify rack01 --component driver --passive
    """
    from fleetctl.cli.build import open_site
    from fleetctl.flows.verify import verify as prove
    from fleetctl.report.verify_text import verify_json, verify_text

    chosen = find_components(components)
    site = open_site(inventory)
    world = site.world(chosen)
    lookout = make_lookout(world.nodes, chosen)
    work = prove(
        lookout,
        world.verifier,
        site.nodes(nodes),
        world.scheduler,
        passive=passive,
        progress=show_progress("verifying nodes"),
    )
    proofs = run(work)
    click.echo(json.dumps(verify_json(proofs), indent=2) if as_json else verify_text(proofs))
    if not all(proof.is_pass for proof in proofs):
        ctx.exit(_NOT_PASSED)
