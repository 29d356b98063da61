"""The lab's commands: help that shows how, and a status that reads at a glance."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fleetctl.cli.lab import _table, lab
from fleetctl.lab.state import MachineState


@pytest.mark.parametrize("command", ["", *sorted(lab.commands)])
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(lab, [*([command] if command else []), "--help"])
    assert shown.exit_code == 0
    assert f"fleetctl lab {command}".strip() in shown.output.partition("Example:")[2]


def test_machines_that_look_the_same_share_a_line() -> None:
    idle = [
        MachineState(f"gpu{number:03d}", f"10.0.0.{number}", "r01", "running", True, "idle", "gpu:h100:8", "570.195.03")
        for number in range(1, 4)
    ]
    lost = MachineState("gpu004", "10.0.0.4", "r01", "exited", False, "down*", "gpu:h100:8", faults={"node-lost": ""})
    lines = _table([*idle, lost]).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["gpu[001-003]", "running", "yes", "idle", "gpu:h100:8", "570.195.03", "r01"]
    assert lines[2].split() == ["gpu004", "exited", "no", "down*", "gpu:h100:8", "-", "r01", "node-lost"]


def test_ssh_quotes_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr("fleetctl.lab.ssh_argv", lambda node, *remote, **_: ["ssh", node, *remote])
    monkeypatch.setattr("os.execvp", lambda _, argv: seen.append(argv))
    done = CliRunner().invoke(lab, ["ssh", "gpu001", "echo", "a b", "-n", "$(reboot)"])
    assert done.exit_code == 0, done.output
    assert seen == [["ssh", "gpu001", "echo 'a b' -n '$(reboot)'"]]
