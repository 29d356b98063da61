"""The command itself: help, start-up, and one clear line with an honest exit code for each error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from fleetctl.cli import inventory as inventory_module
from fleetctl.cli.main import main
from fleetctl.errors import FleetctlError, PolicyError, Refused, StoreError

HEAVY = ("ansible_runner", "ansible", "asyncio", "asyncssh", "sqlalchemy", "pydantic", "rich", "yaml", "ClusterShell")


def fleetctl(*arguments: str, **more: object) -> Result:
    return CliRunner().invoke(main, list(arguments), **more)  # type: ignore[arg-type]


def commands(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_help_with_an_example(path: tuple[str, ...]) -> None:
    command = ALL[path]
    assert command.help, f"{' '.join(path)} has no help"
    assert "Example" in command.help
    assert f"fleetctl {path[0]}" in command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{' '.join(path)} {parameter.opts[-1]} has no help"


@pytest.mark.parametrize("path", [path for path in ALL if path[0] != "lab" and path != ("init",)], ids=" ".join)
def test_every_command_of_a_site_takes_its_inventory(path: tuple[str, ...]) -> None:
    if not isinstance(ALL[path], click.Group):
        assert any("--inventory" in parameter.opts for parameter in ALL[path].params), path


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_ends_well(path: tuple[str, ...]) -> None:
    assert fleetctl(*path, "--help").exit_code == 0


def test_the_version_is_the_packages() -> None:
    from importlib.metadata import version

    assert fleetctl("--version").stdout == f"fleetctl {version('fleetctl')}\n"


def test_start_up_is_quick_and_loads_nothing_heavy() -> None:
    """In CPU time of a whole process: the wall clock of a busy machine says nothing."""
    program = (
        "import sys, resource\n"
        "from fleetctl.cli.main import main\n"
        "main(['plan', '--help'], standalone_mode=False)\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(round(used.ru_utime + used.ru_stime, 3), *heavy, file=sys.stderr)\n"
    )
    said = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        spent_s, *heavy = done.stderr.split()
        assert heavy == []
        said.append(float(spent_s))
    assert min(said) < 0.2, said


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Result:
    """What comes of an error in a command."""

    @click.command("inventory")
    def command() -> None:
        raise error

    monkeypatch.setattr(inventory_module, "inventory_command", command)
    return fleetctl("inventory")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FleetctlError("x went wrong: do y"), 1),
        (StoreError("x went wrong: do y"), 1),
        (PolicyError("x went wrong: do y"), 2),
        (Refused("x went wrong: do y"), 2),
    ],
)
def test_an_error_of_ours_is_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, error: FleetctlError, code: int
) -> None:
    ended = raising(monkeypatch, error)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (code, "", "fleetctl: x went wrong: do y\n")


def test_several_complaints_stand_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = raising(monkeypatch, PolicyError("first\nsecond"))
    assert ended.stderr == "fleetctl: first\n  second\n"


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_a_private_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    ended = raising(monkeypatch, KeyError("no\nsuch"))
    (file,) = tmp_path.iterdir()
    assert ended.exit_code == 1
    assert ended.stderr == (
        f"fleetctl: unexpected KeyError: 'no\\nsuch': this is a fault of fleetctl; its traceback is in {file}\n"
    )
    assert "Traceback" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (EOFError(), 2, "nobody answers the question"),
        (click.Abort(), 4, "not confirmed: nothing was touched"),
    ],
)
def test_ctrl_c_no_answer_and_no_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    ended = raising(monkeypatch, error)
    assert ended.exit_code == code
    assert words in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["pln"], "there is no command pln (did you mean plan?): see `fleetctl --help`"),
        (["qqqqq"], "there is no command qqqqq: see `fleetctl --help`"),
        (["plan"], "missing argument 'COMPONENTS': see `fleetctl plan --help`"),
        (["audit", "--nope"], "no such option '--nope': see `fleetctl audit --help`"),
        (["plan", "drivr"], "there is no component drivr (did you mean driver?): there are driver, fabric_manager"),
        (["plan", ""], "no component is named: there are driver, fabric_manager"),
        (["audit", "--component", "x"], "there is no component x: there are driver, fabric_manager"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(arguments: list[str], line: str) -> None:
    ended = fleetctl(*arguments)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (2, "", f"fleetctl: {line}\n")


@pytest.mark.parametrize(("setting", "colour"), [("1", False), ("", None)])
def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, setting: str, colour: bool | None) -> None:
    seen: list[bool | None] = []

    @click.command("inventory")
    @click.pass_context
    def command(context: click.Context) -> None:
        seen.append(context.color)

    monkeypatch.setattr(inventory_module, "inventory_command", command)
    monkeypatch.setenv("NO_COLOR", setting)
    assert fleetctl("inventory").exit_code == 0
    assert seen == [colour]


def test_the_reader_that_goes_away_is_no_error_of_ours() -> None:
    """`fleetctl --help | true`."""
    command = [sys.executable, "-m", "fleetctl.cli.main", "--help"]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
