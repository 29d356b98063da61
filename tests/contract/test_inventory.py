"""Inventories as the real ansible-inventory and the real templar understand them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetctl.errors import InventoryError, SelectionError
from fleetctl.model.fleet import Connection, Node
from fleetctl.store.ansible_inventory import (
    Source,
    ansible_environment,
    command,
    read_source,
    run_ansible_inventory,
)
from fleetctl.store.content import roles_path
from fleetctl.store.declared_model import declare
from fleetctl.store.init import init
from fleetctl.store.inventory import Inventory, load_inventory
from fleetctl.store.policy_file import read_policy
from fleetctl.store.role_spec import RoleSpec, read_spec

pytestmark = pytest.mark.contract

SPEC = RoleSpec(
    "nvidia_driver",
    Path("/roles/nvidia_driver/meta/argument_specs.yml"),
    {
        "nvidia_driver_version": {"type": "str", "required": True},
        "nvidia_driver_flavour": {"type": "str", "choices": ["open", "proprietary"], "default": "open"},
        "nvidia_driver_gpu_count": {"type": "int"},
        "nvidia_driver_held": {"type": "list", "elements": "str", "default": []},
        "nvidia_driver_name": {"type": "str"},
        "nvidia_driver_token": {"type": "str", "no_log": True},
    },
)
CANARY = "canary-7f3a"


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    """An environment in which no ansible.cfg of the machine or the person has a say."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "FLEETCTL_"))}
    return {**kept, "HOME": str(home)}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    directory = tmp_path / "train-a"
    directory.mkdir()
    (directory / "fleet.yml").write_text("failure_domains: {rack: rack}\n")
    return directory


def write(directory: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load(site: Path, environ: Mapping[str, str], cache: Path | None = None, *, refresh: bool = False) -> Inventory:
    return load_inventory(read_policy(site, {}, environ), [SPEC], cache, refresh=refresh, environ=environ)


def declared(site: Path, environ: Mapping[str, str]) -> dict[str, Node]:
    read = load(site, environ)
    return {node.name: node for node in declare(read, read.select(), [SPEC])}


def refusal_of(site: Path, environ: Mapping[str, str]) -> str:
    with pytest.raises(InventoryError) as refusal:
        declared(site, environ)
    return str(refusal.value)


def encrypt(text: str, password_file: Path, name: str | None = None) -> str:
    """Text as ansible-vault encrypts it: a whole file, or one variable of a YAML file."""
    argv = [
        command("ansible-vault"),
        "encrypt_string" if name else "encrypt",
        "--vault-password-file",
        str(password_file),
    ]
    argv += ["--stdin-name", name] if name else ["--output", "-"]
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("correct horse\n")
    path.chmod(0o600)
    return path


# --- what is read


def test_fleet_yml_is_no_inventory(site: Path, environ: Mapping[str, str]) -> None:
    """Ansible would take every key of fleet.yml for a group, had it not been told to leave the file alone."""
    write(site, {"hosts.yml": "all: {hosts: {gpu001: }}", "fleet.yml": "rollout: {canary: 1}\nnodes: all\n"})
    own = site.parent / "own.cfg"
    own.touch()
    for config in ({}, {"ANSIBLE_CONFIG": str(own)}):
        assert load(site, {**environ, **config}).listing.groups == {}
    # The proof that this test can fail: without our patterns the same file makes a group, or the source fails.
    plain = {**ansible_environment(environ), "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "false"}
    del plain["ANSIBLE_INVENTORY_IGNORE_REGEX"], plain["ANSIBLE_CONFIG"]
    run = subprocess.run(
        [command("ansible-inventory"), "-i", str(site), "--list"], env=plain, capture_output=True, text=True, check=True
    )
    assert "rollout" in json.loads(run.stdout)["all"]["children"]


def test_the_sites_own_ignore_patterns_hold_as_well(site: Path, environ: Mapping[str, str]) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: }}", "old.yml": "all: {hosts: {gpu002: }}"})
    assert list(load(site, environ).fleet.nodes) == ["gpu001", "gpu002"]
    assert list(load(site, {**environ, "ANSIBLE_INVENTORY_IGNORE_REGEX": "^old"}).fleet.nodes) == ["gpu001"]
    config = site.parent / "own.cfg"
    config.write_text("[inventory]\nignore_patterns = ^hosts, ^other\n")
    assert list(load(site, {**environ, "ANSIBLE_CONFIG": str(config)}).fleet.nodes) == ["gpu002"]


def test_other_settings_of_the_person_change_nothing(
    site: Path, environ: Mapping[str, str], tmp_path: Path, password: Path
) -> None:
    """Export mode would print group variables apart; a log would keep the secrets of encrypted files in clear."""
    write(site, {"hosts.yml": "gpu: {hosts: {gpu001: }}", "group_vars/gpu.yml": 'nvidia_driver_version: "1.2"\n'})
    write(site, {"group_vars/all.yml": encrypt(f"secret: {CANARY}\n", password)})
    config, log = tmp_path / "own.cfg", tmp_path / "ansible.log"
    config.write_text(f"[defaults]\nlog_path = {log}\nvault_password_file = {password}\n[inventory]\nexport = true\n")
    nodes = declared(site, {**environ, "ANSIBLE_CONFIG": str(config)})
    assert nodes["gpu001"].variables["nvidia_driver_version"] == "1.2"
    assert not log.exists()


def test_precedence_is_ansibles(site: Path, environ: Mapping[str, str]) -> None:
    write(
        site,
        {
            "hosts.yml": """
all:
  children:
    gpu:
      children:
        h100:
          hosts: {gpu001: , gpu002: , gpu003: {nvidia_driver_version: "inline"}, gpu004: }
    b_same_depth: {hosts: {gpu004: }}
    a_same_depth: {hosts: {gpu004: }}
    urgent: {vars: {ansible_group_priority: 10}, hosts: {gpu004: }}
""",
            "group_vars/all.yml": 'nvidia_driver_version: "1.all"\nnvidia_driver_held: [a]\n',
            "group_vars/gpu.yml": 'nvidia_driver_version: "2.gpu"\n',
            "group_vars/h100/a.yml": 'nvidia_driver_version: "3.h100"\n',
            "group_vars/a_same_depth.yml": 'nvidia_driver_name: "a"\n',
            "group_vars/b_same_depth.yml": 'nvidia_driver_name: "b"\n',
            "group_vars/urgent.yml": 'nvidia_driver_version: "9.urgent"\n',
            "host_vars/gpu002.yml": 'nvidia_driver_version: "4.host"\nnvidia_driver_held: [b]\n',
        },
    )
    nodes = declared(site, environ)
    found = {name: node.variables["nvidia_driver_version"] for name, node in nodes.items()}
    # The priority of `urgent` counts among groups of one depth; h100 is deeper.
    assert found == {"gpu001": "3.h100", "gpu002": "4.host", "gpu003": "inline", "gpu004": "3.h100"}
    assert nodes["gpu004"].variables["nvidia_driver_name"] == "b"
    assert nodes["gpu002"].variables["nvidia_driver_held"] == ["b"]
    assert_same_as_ansible(site, environ, nodes)


def assert_same_as_ansible(site: Path, environ: Mapping[str, str], nodes: Mapping[str, Node]) -> None:
    """What fleetctl declares is what a play would use."""
    play = site.parent / "play.yml"
    play.write_text(
        yaml.safe_dump(
            [
                {
                    "hosts": "all",
                    "gather_facts": False,
                    "connection": "local",
                    "tasks": [
                        {
                            "ansible.builtin.copy": {
                                "content": "{{ dict(query('vars', *names) | zip(names) | map('reverse')) | to_json }}",
                                "dest": f"{site.parent}/{{{{ inventory_hostname }}}}.json",
                                "mode": "0600",
                            },
                            "vars": {"names": "{{ query('varnames', '^nvidia_driver_') }}"},
                        }
                    ],
                }
            ]
        )
    )
    argv = [
        command("ansible-playbook"),
        "-i",
        str(site),
        str(play),
        "-e",
        f"ansible_python_interpreter={sys.executable}",
    ]
    subprocess.run(argv, env=ansible_environment(environ), capture_output=True, text=True, check=True)
    for name, node in nodes.items():
        played: Mapping[str, Any] = json.loads((site.parent / f"{name}.json").read_text())
        assert "nvidia_driver_version" in played, name
        assert played.items() <= node.variables.items(), name


def test_templates_over_the_hosts_own_variables_are_rendered(site: Path, environ: Mapping[str, str]) -> None:
    write(
        site,
        {
            "hosts.yml": """
all:
  vars: {domain: example.net, branch: "580", builds: {"580": "580.95.05", "570": "570.195.03"}}
  children:
    rack07:
      vars: {number: 7}
      hosts: {gpu001: {unit: 3}, gpu002: {branch: "570", unit: 4}}
""",
            "group_vars/all.yml": """
nvidia_driver_version: "{{ builds[branch] }}"
nvidia_driver_gpu_count: "{{ 2 * 4 }}"
nvidia_driver_held: ["{{ inventory_hostname }}", "{{ group_names | first }}", plain]
nvidia_driver_name: "{{ hostvars['gpu001'].nvidia_driver_version }}{{ groups['rack07'] | length }}"
ansible_host: "{{ inventory_hostname_short }}.{{ domain }}"
ansible_port: "{{ 2200 + unit }}"
rack: "rack-{{ '%02d' | format(number) }}"
""",
        },
    )
    nodes = declared(site, environ)
    assert nodes["gpu001"].connection == Connection("gpu001.example.net", 2203)
    assert nodes["gpu001"].domains == {"rack": "rack-07"}
    assert nodes["gpu002"].variables["nvidia_driver_version"] == "570.195.03"
    assert nodes["gpu002"].variables["nvidia_driver_gpu_count"] == 8
    assert nodes["gpu002"].variables["nvidia_driver_held"] == ["gpu002", "rack07", "plain"]
    assert nodes["gpu002"].variables["nvidia_driver_name"] == "580.95.052"
    assert_same_as_ansible(site, environ, nodes)


@pytest.mark.parametrize("template", ["{{ ansible_distribution }}", "{{ ansible_facts['distribution'] }}", "{{ x.y }}"])
def test_a_value_that_needs_facts_is_refused_by_name(site: Path, environ: Mapping[str, str], template: str) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: , gpu002: }}"})
    write(site, {"group_vars/all.yml": f'nvidia_driver_version: "1"\nnvidia_driver_name: "{template}"\n'})
    told = refusal_of(site, environ)
    assert told.startswith("gpu[001-002]: nvidia_driver_name can't be known without facts of the node (")
    assert told.endswith("(group_vars/all.yml:2)")


def test_group_vars_of_the_working_directory_have_no_say(
    site: Path, environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible reads those beside the playbook, and without one takes the working directory for it."""
    write(
        site, {"hosts.yml": "all: {hosts: {gpu001: {nvidia_driver_version: '{{ b }}', b: '{{ inventory_hostname }}'}}}"}
    )
    write(tmp_path, {"group_vars/all.yml": 'nvidia_driver_name: "wrong"\n[\n'})
    monkeypatch.chdir(tmp_path)
    node = declared(site, environ)["gpu001"]
    assert node.variables["nvidia_driver_version"] == "gpu001"
    assert "nvidia_driver_name" not in node.variables


def test_a_template_of_another_role_may_need_facts(site: Path, environ: Mapping[str, str]) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: }}", "group_vars/all.yml": 'motd: "{{ ansible_facts.x }}"\n'})
    assert "motd" not in declared(site, environ)["gpu001"].variables


def test_a_broken_template_is_told(site: Path, environ: Mapping[str, str]) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: {nvidia_driver_name: '{{ 1 + }}'}}}"})
    assert "can't be rendered" in refusal_of(site, environ)


def test_what_a_source_marks_unsafe_is_not_rendered(site: Path, environ: Mapping[str, str]) -> None:
    write(
        site,
        {"hosts.yml": "all: {hosts: {gpu001: {nvidia_driver_version: '1', nvidia_driver_name: !unsafe '{{ a }}'}}}"},
    )
    assert declared(site, environ)["gpu001"].variables["nvidia_driver_name"] == "{{ a }}"


def test_a_number_for_a_version_is_refused_with_its_place(site: Path, environ: Mapping[str, str]) -> None:
    write(
        site,
        {"hosts.yml": "all: {hosts: {gpu001: , gpu002: }}", "group_vars/all.yml": "nvidia_driver_version: 580.10\n"},
    )
    told = refusal_of(site, environ)
    assert told.startswith("gpu[001-002]: nvidia_driver_version is the number 580.1: quote it")
    assert told.endswith("(group_vars/all.yml:1)")


def test_a_connection_that_needs_facts_is_refused(site: Path, environ: Mapping[str, str]) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: {ansible_host: '{{ ansible_facts.fqdn }}'}}}"})
    assert refusal_of(site, environ).startswith("gpu001: ansible_host can't be known without facts")


def test_ansible_cfg_speaks_for_hosts_that_say_nothing(site: Path, environ: Mapping[str, str]) -> None:
    config = site.parent / "own.cfg"
    config.write_text(
        "[defaults]\nremote_user = automation\nprivate_key_file = keys/fleet\n"
        "[ssh_connection]\nssh_common_args = -o UserKnownHostsFile=/etc/fleet/known_hosts\n"
    )
    write(site, {"hosts.yml": "all: {hosts: {gpu001: , gpu002: {ansible_user: other}}}"})
    nodes = load(site, {**environ, "ANSIBLE_CONFIG": str(config)}).fleet.nodes
    assert nodes["gpu001"].connection == Connection(
        "gpu001",
        user="automation",
        identity_file=str(site.parent / "keys/fleet"),
        known_hosts="/etc/fleet/known_hosts",
    )
    assert nodes["gpu002"].connection.user == "other"
    config.write_text("[defaults]\nhost_key_checking = false\n")
    assert "always checks host keys" in refusal_of(site, {**environ, "ANSIBLE_CONFIG": str(config)})


@pytest.mark.parametrize(
    "form",
    [
        {"hosts.ini": "[rack01]\ngpu[001:002] rack=r01 nvidia_driver_version=580.95.05\n"},
        {"hosts.yml": "rack01: {vars: {rack: r01, nvidia_driver_version: 580.95.05}, hosts: {'gpu[001:002]': }}"},
        {
            "a.ini": "[rack01]\ngpu001 rack=r01\n",
            "b.yml": "rack01: {vars: {nvidia_driver_version: 580.95.05}, hosts: {gpu002: {rack: r01}}}",
        },
    ],
    ids=["ini", "yaml", "several files"],
)
def test_every_form_of_inventory_gives_the_same_fleet(
    site: Path, environ: Mapping[str, str], form: Mapping[str, str]
) -> None:
    write(site, form)
    nodes = declared(site, environ)
    assert list(nodes) == ["gpu001", "gpu002"]
    assert nodes["gpu002"].domains == {"rack": "r01"}
    assert nodes["gpu002"].variables["nvidia_driver_version"] == "580.95.05"
    assert [node.name for node in load(site, environ).select("rack01,!gpu001")] == ["gpu002"]


# --- which nodes


def test_only_hosts_of_the_pattern_are_nodes(site: Path, environ: Mapping[str, str]) -> None:
    write(
        site,
        {
            "fleet.yml": "nodes: gpu\nfailure_domains: {rack: rack}\n",
            "hosts.yml": "gpu: {hosts: {gpu001: , gpu002: }}\n"
            "head: {hosts: {head-1: {ansible_host: 10.0.0.1, ansible_port: 2222}}}\n",
        },
    )
    read = load(site, environ)
    assert list(read.fleet.nodes) == ["gpu001", "gpu002"]
    assert read.reach(Connection("head-1", user="me")) == Connection("10.0.0.1", 2222, "me")
    assert read.reach(Connection("other")) == Connection("other")
    with pytest.raises(SelectionError, match=r"head-1 is in the inventory, but not among the nodes .*nodes: gpu"):
        read.select("head-1")
    with pytest.raises(SelectionError, match="head names no node"):
        read.select("head")
    with pytest.raises(SelectionError, match="--exclude gpu leaves no node"):
        read.select(None, "gpu")
    assert [node.name for node in read.select("gpu[001-002]", "gpu002")] == ["gpu001"]


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("gpu001: {ansible_host: a}, gpu002: {ansible_host: a}", "gpu001 and gpu002 have the same address a"),
        ("gpu001: {slurm_name: n1}, gpu002: {slurm_name: n1}", "gpu001 and gpu002 are both n1 in the scheduler"),
        ("gpu001: {slurm_name: [n1]}", "slurm_name must be the node's name in Slurm"),
        ("gpu001: {rack: [r01]}", "rack must be the name of a rack"),
        ("gpu001: {ansible_connection: local}", "over ssh"),
        ("gpu001: {rack: '{{ ansible_facts.x }}'}", "rack can't be known without facts"),
    ],
)
def test_a_node_that_cant_be_placed_is_refused(site: Path, environ: Mapping[str, str], hosts: str, words: str) -> None:
    write(site, {"fleet.yml": "names: {slurm: slurm_name}\nfailure_domains: {rack: rack}\n"})
    write(site, {"hosts.yml": f"all: {{hosts: {{{hosts}}}}}"})
    assert words in refusal_of(site, environ)


def test_a_node_without_a_rack_is_refused_only_where_racks_are_limited(site: Path, environ: Mapping[str, str]) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: {rack: r01}, gpu002: , gpu003: }}"})
    assert load(site, environ).fleet.nodes["gpu002"].domains == {}
    write(site, {"fleet.yml": "failure_domains: {rack: rack}\nrollout: {max_unavailable_per: {rack: 1}}\n"})
    assert refusal_of(site, environ).startswith("gpu[002-003]: no rack, and max_unavailable_per limits every rack")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"hosts.yml": "all: [\n"}, "hosts.yml"),
        ({"hosts.yml": "all: {hosts: {gpu001: }}", "more.yml": "all: {hosts: [}"}, "more.yml"),
        ({"hosts.yml": "all: {hosts: {gpu001: }}", "group_vars/all.yml": "a: [\n"}, "all.yml"),
        ({"hosts.yml": "all: {hosts: {gpu001: }}", "netbox.yml": "plugin: no.such.plugin\n"}, "netbox.yml"),
        ({"hosts.yml": "all: {hosts: {}}"}, "declares no node"),
        ({}, "train-a"),
    ],
)
def test_an_inventory_that_cant_be_read_whole_is_an_error(
    site: Path, environ: Mapping[str, str], files: Mapping[str, str], words: str
) -> None:
    write(site, files)
    told = refusal_of(site, environ)
    assert words in told
    assert "\n" not in told


# --- scripts


SCRIPT = """#!{python}
import json, pathlib
counter = pathlib.Path({counter!r})
counter.write_text(counter.read_text() + "x" if counter.exists() else "x")
print(json.dumps({{
    "rack01": {{"hosts": ["gpu001", "gpu002"], "vars": {{"rack": "r01", "v": "580.95.05"}}}},
    "_meta": {{"hostvars": {{"gpu001": {{"nvidia_driver_version": "{{{{ v }}}}"}}}}}},
}}))
"""


@pytest.fixture
def calls(site: Path, tmp_path: Path) -> Callable[[], int]:
    """A script inventory in the site, and how often it was run."""
    counter = tmp_path / "counter"
    script = site / "inventory.py"
    script.write_text(SCRIPT.format(python=sys.executable, counter=str(counter)))
    script.chmod(0o755)
    return lambda: len(counter.read_text()) if counter.exists() else 0


def test_a_script_is_an_inventory(site: Path, environ: Mapping[str, str], calls: Callable[[], int]) -> None:
    nodes = declared(site, environ)
    assert nodes["gpu001"].variables["nvidia_driver_version"] == "580.95.05"
    assert nodes["gpu002"].domains == {"rack": "r01"}


def test_a_dynamic_inventory_is_kept_for_its_age(
    site: Path, environ: Mapping[str, str], calls: Callable[[], int], tmp_path: Path
) -> None:
    write(site, {"fleet.yml": "inventory_max_age_s: 1000\n"})
    first = load(site, environ, tmp_path)
    once = calls()
    assert load(site, environ, tmp_path).fleet == first.fleet
    assert calls() == once
    load(site, environ, tmp_path, refresh=True)
    assert calls() > once
    write(site, {"fleet.yml": "inventory_max_age_s: 0\n"})
    before = calls()
    load(site, environ, tmp_path)
    load(site, environ, tmp_path)
    assert calls() >= before + 2


def test_a_script_that_fails_is_told(site: Path, environ: Mapping[str, str]) -> None:
    script = site / "inventory.sh"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    assert "inventory.sh" in refusal_of(site, environ)


# --- the cache


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often ansible-inventory was run."""
    runs: list[int] = []

    def run(source: Source, environ: Mapping[str, str]) -> str:
        runs.append(1)
        return run_ansible_inventory(source, environ)

    monkeypatch.setattr("fleetctl.store.inventory.run_ansible_inventory", run)
    return runs


def test_a_file_inventory_is_read_again_when_any_byte_of_it_changes(
    site: Path, environ: Mapping[str, str], tmp_path: Path, counted: list[int]
) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: }}", "group_vars/all.yml": 'nvidia_driver_version: "1"\n'})
    first = load(site, environ, tmp_path)
    assert load(site, environ, tmp_path).fleet == first.fleet
    assert len(counted) == 1
    for number, change in enumerate(
        [
            {"group_vars/all.yml": 'nvidia_driver_version: "2"\n'},
            {"host_vars/gpu001.yml": 'nvidia_driver_version: "3"\n'},
            {"hosts.yml": "all: {hosts: {gpu001: , gpu002: }}"},
            {"group_vars/all.yml": 'nvidia_driver_version: "4"\n'},
        ],
        start=2,
    ):
        write(site, change)
        load(site, environ, tmp_path)
        assert len(counted) == number
    assert load(site, environ, tmp_path).fleet.nodes["gpu001"].variables["nvidia_driver_version"] == "3"
    load(site, {**environ, "ANSIBLE_REMOTE_USER": "other"}, tmp_path)
    assert len(counted) == 6


def test_the_cache_is_private_and_a_damaged_one_is_not_believed(
    site: Path, environ: Mapping[str, str], tmp_path: Path, counted: list[int]
) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: }}"})
    first = load(site, environ, tmp_path)
    (cache,) = tmp_path.glob("inventory-*.json")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    for damage in (cache.read_text()[:-10], "", "[]", cache.read_text().replace('"schema":1', '"schema":99')):
        cache.write_text(damage)
        runs = len(counted)
        assert load(site, environ, tmp_path).fleet == first.fleet
        assert len(counted) == runs + 1


def test_a_cache_that_cant_be_written_is_only_slower(site: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: }}"})
    assert list(load(site, environ, tmp_path / "missing").fleet.nodes) == ["gpu001"]


# --- secrets


def test_an_encrypted_variable_needs_no_password_and_is_kept_nowhere(
    site: Path, environ: Mapping[str, str], tmp_path: Path, password: Path
) -> None:
    write(
        site,
        {
            "hosts.yml": "all: {hosts: {gpu001: {nvidia_driver_version: 580.95.05}}}",
            "group_vars/all/secret.yml": encrypt(CANARY, password, "nvidia_driver_token")
            + encrypt(CANARY, password, "ansible_become_password"),
        },
    )
    for said in ({}, {"ANSIBLE_VAULT_PASSWORD_FILE": str(password)}):
        read = load(site, {**environ, **said}, tmp_path)
        assert declare(read, read.select(), [SPEC])[0].variables["nvidia_driver_version"] == "580.95.05"
        assert_nothing_kept(read, tmp_path)


def test_an_encrypted_value_that_decisions_rest_on_is_refused(
    site: Path, environ: Mapping[str, str], password: Path
) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: {nvidia_driver_version: 580.95.05}}}"})
    write(site, {"group_vars/all.yml": encrypt(CANARY, password, "nvidia_driver_name")})
    assert refusal_of(site, environ).startswith("gpu001: nvidia_driver_name is secret, and fleetctl keeps no secrets")


def test_what_encrypted_files_define_is_kept_nowhere(
    site: Path, environ: Mapping[str, str], tmp_path: Path, password: Path
) -> None:
    write(
        site,
        {
            "hosts.yml": "all: {hosts: {gpu001: {nvidia_driver_version: 580.95.05}}}",
            "group_vars/all/vault.yml": encrypt(f"nvidia_driver_token: {CANARY}\nother: {CANARY}\n", password),
        },
    )
    told = refusal_of(site, environ)
    assert "(encrypted: group_vars/all/vault.yml): set ANSIBLE_VAULT_PASSWORD_FILE" in told
    read = load(site, {**environ, "ANSIBLE_VAULT_PASSWORD_FILE": str(password)}, tmp_path)
    assert_nothing_kept(read, tmp_path)
    assert declare(read, read.select(), [SPEC])[0].variables["nvidia_driver_version"] == "580.95.05"


@pytest.mark.parametrize("whole_file", [True, False])
def test_a_template_over_a_secret_is_refused_by_name_and_not_shown(
    site: Path, environ: Mapping[str, str], tmp_path: Path, password: Path, whole_file: bool
) -> None:
    secret = encrypt(f"hidden: {CANARY}\n", password) if whole_file else encrypt(CANARY, password, "hidden")
    write(
        site,
        {
            "hosts.yml": "all: {hosts: {gpu001: }}",
            "group_vars/all/open.yml": 'nvidia_driver_version: "{{ hidden }}"\nnvidia_driver_name: "a{{ hidden }}"\n',
            "group_vars/all/secret.yml": secret,
        },
    )
    with_password = {**environ, "ANSIBLE_VAULT_PASSWORD_FILE": str(password)}
    told = refusal_of(site, with_password)
    assert told.count("is secret, and fleetctl keeps no secrets") == 2
    assert CANARY not in told
    assert_nothing_kept(load(site, with_password, tmp_path), tmp_path)


def test_a_secret_by_its_spec_is_kept_nowhere(site: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    write(
        site,
        {
            "hosts.yml": f"all: {{hosts: {{gpu001: {{nvidia_driver_version: 1.2.3, nvidia_driver_token: {CANARY}}}}}}}",
            "group_vars/all.yml": f"unrelated: {CANARY}\nansible_password: {CANARY}\n",
        },
    )
    read = load(site, environ, tmp_path)
    assert_nothing_kept(read, tmp_path)
    declare(read, read.select(), [SPEC])


def assert_nothing_kept(read: Inventory, cache: Path) -> None:
    (stored,) = cache.glob("inventory-*.json")
    assert "nvidia_driver_version" in stored.read_text()
    assert CANARY not in stored.read_text()
    assert CANARY not in repr(read)


# --- the example, and size


def test_the_example_declares_its_nodes(tmp_path: Path, environ: Mapping[str, str]) -> None:
    init(tmp_path / "train-a")
    spec = read_spec("nvidia_driver", roles_path())
    read = load_inventory(read_policy(tmp_path / "train-a", {}, environ), [spec], environ=environ)
    nodes = {node.name: node for node in declare(read, read.select(), [spec])}
    assert len(nodes) == 8
    assert nodes["gpu005"].domains == {"rack": "rack02"}
    assert nodes["gpu005"].connection.user == "automation"
    assert nodes["gpu005"].variables["nvidia_driver_version"] == "580.95.05"


@pytest.mark.slow
def test_ten_thousand_hosts_cost_half_a_second_once_they_are_known(
    site: Path, environ: Mapping[str, str], tmp_path: Path
) -> None:
    racks = {
        f"rack{rack:03}": {
            "vars": {"rack": f"r{rack:03}"},
            "hosts": {f"gpu{rack * 40 + unit:05}": {"ansible_host": f"10.1.{rack}.{unit}"} for unit in range(40)},
        }
        for rack in range(250)
    }
    write(
        site,
        {
            "hosts.yml": yaml.safe_dump({"all": {"children": {"gpu": {"children": racks}}}}),
            "group_vars/gpu.yml": 'b: "580.95.05"\nnvidia_driver_version: "{{ b }}"\nansible_user: automation\n',
        },
    )
    load(site, environ, tmp_path)
    started_s = time.process_time()
    read = load(site, environ, tmp_path)
    nodes = declare(read, read.select(), [SPEC])
    took_s = time.process_time() - started_s
    assert len(nodes) == 10_000
    assert nodes[-1].variables["nvidia_driver_version"] == "580.95.05"
    # Of the processor: what else runs on the machine does not count.
    assert took_s < 0.5, f"{took_s:.2f} s"


def test_the_digest_covers_every_file_below_the_directory(site: Path, environ: Mapping[str, str]) -> None:
    write(site, {"hosts.yml": "all: {hosts: {gpu001: }}"})
    seen = {read_source(site, environ).digest}
    for name in ("group_vars/x/deep/file.yml", "host_vars/gpu001", "vars_plugins/a.py", "another.ini"):
        write(site, {name: "# nothing\n"})
        seen.add(read_source(site, environ).digest)
    assert len(seen) == 5
