"""`fleetctl init` and `fleetctl inventory`, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fleetctl.cli.main import main
from fleetctl.store import site as site_module

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site, no ansible.cfg and no state of the machine or the person has a say."""
    monkeypatch.setattr(site_module, "_SYSTEM_STATE", tmp_path / "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("FLEETCTL_INVENTORY", "ANSIBLE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def fleetctl(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_an_inventory_that_was_laid_down_is_shown(tmp_path: Path) -> None:
    laid = fleetctl("init", "inventory/train-a")
    assert laid.exit_code == 0
    assert "wrote inventory/train-a/hosts.yml" in laid.stdout
    shown = fleetctl("inventory")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.splitlines()[:4] == [
        f"site train-a   8 nodes declared in {tmp_path}/inventory/train-a",
        "gpu[001-008] (8)",
        "  rack                    rack[01-02]",
        "  nvidia_driver           580.95.05  flavour open  owner host  source nvidia",
    ]
    again = fleetctl("init", "inventory/train-a")
    assert again.exit_code == 0
    assert "kept  inventory/train-a/hosts.yml, which was there" in again.stdout


def test_what_scripts_read_holds_each_node() -> None:
    fleetctl("init", "inventory/train-a")
    read = json.loads(fleetctl("inventory", "--json", "--limit", "rack02", "--exclude", "gpu[006-008]").stdout)
    assert list(read["nodes"]) == ["gpu005"]
    assert read["nodes"]["gpu005"]["domains"] == {"rack": "rack02"}
    assert read["nodes"]["gpu005"]["declared"]["nvidia_driver_version"] == "580.95.05"


def test_nodes_with_different_declarations_stand_apart(tmp_path: Path) -> None:
    fleetctl("init", "inventory/train-a")
    (tmp_path / "inventory/train-a/group_vars/rack02.yml").write_text('nvidia_driver_version: "590.48.01"\n')
    shown = fleetctl("inventory").stdout
    assert "gpu[001-004] (4)" in shown
    assert "gpu[005-008] (4)" in shown
    assert "590.48.01" in shown


@pytest.mark.parametrize(
    ("files", "args", "words"),
    [
        ({}, ["--limit", "nosuch"], "nosuch is neither a node nor a group"),
        ({}, ["--limit", ""], "the node pattern is empty"),
        ({}, ["--exclude", "all"], "leaves no node"),
        ({}, ["-i", "train-b"], "there is no site train-b (did you mean train-a?)"),
        ({"group_vars/gpu.yml": "nvidia_driver_version: 580.10\n"}, [], "is the number 580.1: quote it"),
        ({"group_vars/gpu.yml": 'nvidia_driver_versoin: "1"\n'}, [], "did you mean nvidia_driver_version?"),
        ({"fleet.yml": "rollout: {max_unavailable: 0}\n"}, [], "write 1 or more"),
        ({"fleet.yml": "nodes: nosuch\n"}, [], "fleet.yml: nodes: nosuch is neither a node nor a group"),
        ({"hosts.yml": "all: [\n"}, [], "hosts.yml:2 is not valid YAML"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(
    tmp_path: Path, files: dict[str, str], args: list[str], words: str
) -> None:
    fleetctl("init", "inventory/train-a")
    for name, text in files.items():
        (tmp_path / "inventory/train-a" / name).write_text(text)
    ended = fleetctl("inventory", *args)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stdout == ""


def test_no_site_at_all_says_how_to_begin_one() -> None:
    ended = fleetctl("inventory")
    assert ended.exit_code == 2
    assert "fleetctl init" in ended.stderr
