"""fleetctl lab: real nodes on this machine, to try everything on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleetctl.lab.state import MachineState

_STYLE = {"help_option_names": ["-h", "--help"]}


def _which(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which lab is meant."""
    command = click.option(
        "--directory",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where the lab's files lie.  [default: the user's state directory]",
    )(command)
    return click.option("--name", default="lab", show_default=True, help="The lab's name; several can be up.")(command)


@click.group(context_settings=_STYLE)
def lab() -> None:
    """Real nodes on this machine: containers with systemd, sshd, apt and Slurm.

    \b
    Example:
      fleetctl lab up --nodes 8 --racks 2
    """


@lab.command()
@click.option("--nodes", default=8, show_default=True, help="GPU nodes, gpu001 and on.")
@click.option("--racks", type=int, help="Racks the nodes stand in.  [default: one for each four nodes]")
@click.option(
    "--release",
    type=click.Choice(["bookworm", "trixie"]),
    default="bookworm",
    show_default=True,
    help="Debian 12 (Slurm 22.05) or Debian 13 (Slurm 24.11).",
)
@_which
def up(nodes: int, racks: int | None, release: str, directory: Path | None, name: str) -> None:
    """Bring up a Slurm head and GPU nodes with a driver, healthy and ready to be upgraded.

    \b
    Example:
      fleetctl lab up --nodes 8 --racks 2 --release trixie
    """
    import time

    from fleetctl import lab as labs

    began = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"{time.monotonic() - began:6.1f} s  {line}", err=True)

    racks = -(-nodes // 4) if racks is None else racks
    made = labs.up(nodes, racks, release, directory, name, say)  # type: ignore[arg-type]  # click.Choice checked it
    say(f"{len(made.nodes)} nodes idle with all their GPUs")
    click.echo(made.inventory)


@lab.command()
@_which
def down(directory: Path | None, name: str) -> None:
    """Remove a lab: containers, network, files. Images stay for the next one.

    \b
    Example:
      fleetctl lab down
    """
    from fleetctl import lab as labs

    removed = labs.down(directory, name)
    click.echo(f"{len(removed)} machines removed", err=True)


@lab.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@_which
def status(as_json: bool, directory: Path | None, name: str) -> None:
    """Show what each machine is doing: container, SSH, Slurm state, loaded driver, faults.

    \b
    Example:
      fleetctl lab status --json
    """
    from fleetctl import lab as labs

    states = labs.status(directory, name)
    if as_json:
        import json
        from dataclasses import asdict

        click.echo(json.dumps([asdict(state) for state in states], indent=2))
    else:
        click.echo(_table(states))


@lab.command()
@click.argument("node")
@click.argument("kind")
@click.argument("argument", required=False)
@click.option("--clear", is_flag=True, help="Switch the fault off.")
@_which
def fault(node: str, kind: str, argument: str | None, clear: bool, directory: Path | None, name: str) -> None:
    """Switch a fault of a node on, or off with --clear. An unknown KIND lists those there are.

    \b
    Example:
      fleetctl lab fault gpu003 reboot-slow 60
      fleetctl lab fault gpu003 reboot-slow --clear
    """
    from fleetctl import lab as labs

    labs.fault(node, kind, argument, clear=clear, directory=directory, name=name)


@lab.command(context_settings={**_STYLE, "ignore_unknown_options": True, "allow_interspersed_args": False})
@_which
@click.argument("node")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(node: str, command: tuple[str, ...], directory: Path | None, name: str) -> None:
    """Log in to a machine as the automation user, or run COMMAND there.

    \b
    Example:
      fleetctl lab ssh head-1 sinfo
    """
    import os
    import shlex

    from fleetctl import lab as labs

    # ssh joins words with spaces for a shell on the other side: quoted, they arrive as they were given.
    remote = [shlex.join(command)] if command else []
    argv = labs.ssh_argv(node, *remote, directory=directory, name=name)
    os.execvp(argv[0], argv)  # noqa: S606 - no shell


def _table(states: Sequence[MachineState]) -> str:
    """Machines that look the same share a line, with folded names."""
    from ClusterShell.NodeSet import NodeSet

    groups: dict[tuple[str, ...], list[str]] = {}
    for state in states:
        faults = ", ".join(f"{kind} {argument}".strip() for kind, argument in state.faults.items())
        look = (
            state.container,
            "yes" if state.answers_ssh else "no",
            state.slurm or "-",
            state.gpus or "-",
            state.driver or "-",
            state.rack or "-",
            faults,
        )
        groups.setdefault(look, []).append(state.name)
    head = ("MACHINES", "CONTAINER", "SSH", "SLURM", "GRES", "DRIVER", "RACK", "FAULTS")
    rows = [head, *((str(NodeSet.fromlist(names)), *look) for look, names in groups.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


if __name__ == "__main__":
    lab()
