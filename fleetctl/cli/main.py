"""The command `fleetctl`: which commands there are, and how each error ends."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from fleetctl.errors import FleetctlError

# Command to module and attribute. A module here imports click and nothing heavier: `fleetctl --help` loads them all.
_COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("fleetctl.cli.inventory", "init_command"),
    "inventory": ("fleetctl.cli.inventory", "inventory_command"),
    "audit": ("fleetctl.cli.audit", "audit"),
    "plan": ("fleetctl.cli.plan", "plan"),
    "rollout": ("fleetctl.cli.rollout", "rollout_group"),
    "status": ("fleetctl.cli.marks", "status"),
    "take-over": ("fleetctl.cli.marks", "take_over"),
    "verify": ("fleetctl.cli.verify", "verify"),
    "lab": ("fleetctl.cli.lab", "lab"),
}
_INTERRUPTED = 130
_BAD_INPUT = 2
_STOPPED_BY_PERSON = 4


class Fleetctl(click.Group):
    """Finds commands when they are asked for, and ends each run with one clear line and an honest exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            ctx.fail(f"there is no command {args[0]}{meant}")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click's, but every error of ours is one line on stderr and the exit code of its class."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name or "fleetctl", complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            _end(_misuse(error), error.exit_code)
        except click.Abort as abort:
            click.echo(err=True)  # the cursor may stand behind a question, or behind ^C
            _end(*_aborted(abort.__cause__ or abort.__context__))
        except FleetctlError as error:
            _end(str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001  the last resort: a person gets one line, the rest goes to a file
            _end(_unexpected(error), FleetctlError.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


@click.group("fleetctl", cls=Fleetctl, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fleetctl", prog_name="fleetctl", message="%(prog)s %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Keep a fleet of GPU nodes at the versions that its admins declared.

    \b
    Example:
      fleetctl init inventory/train-a      lay down an inventory to start from
      fleetctl audit                       what differs from what is declared
      fleetctl plan driver                 what a rollout would do; nothing is touched
      fleetctl rollout driver              the same plan, carried out node by node
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def _end(message: str, code: int) -> NoReturn:
    """Further lines of a message stand below the first."""
    first, *rest = message.splitlines() or [""]
    click.echo("\n".join([f"fleetctl: {first}", *(f"  {line}" for line in rest)]), err=True)
    sys.exit(code)


def _aborted(because: BaseException | None) -> tuple[str, int]:
    """Ctrl-C; or a question that got no answer, since nobody is there; or the answer no."""
    if isinstance(because, KeyboardInterrupt):
        return "interrupted", _INTERRUPTED
    if isinstance(because, EOFError):
        return "nobody answers the question: nothing was touched; --yes goes on without asking", _BAD_INPUT
    return "not confirmed: nothing was touched", _STOPPED_BY_PERSON


def _misuse(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message[0].lower()}{message[1:]}: see `{context.command_path} --help`" if context else message


def _unexpected(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return f"unexpected {type(error).__name__}: {text}: this is a fault of fleetctl; {_write_traceback(error)}"


def _write_traceback(error: Exception) -> str:
    """Keep the traceback where only its owner reads it; says where, or why not."""
    import tempfile
    import traceback
    from importlib.metadata import version

    try:
        descriptor, path = tempfile.mkstemp(prefix="fleetctl-traceback-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"fleetctl {version('fleetctl')} on Python {sys.version}\n")
            traceback.print_exception(error, file=file)
    except OSError as refused:
        return f"its traceback could not be written: {refused.strerror}"
    return f"its traceback is in {path}"


if __name__ == "__main__":
    main()
