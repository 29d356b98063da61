"""Declared values checked against argument_specs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import BadInput, InventoryError
from fleetctl.model.fleet import Connection, Fleet, Node
from fleetctl.model.site import Site
from fleetctl.store.declared_model import check_override, declare
from fleetctl.store.inventory import Inventory
from fleetctl.store.inventory_cache import Host, Listing
from fleetctl.store.role_spec import RoleSpec, owner_of, read_spec
from fleetctl.store.selection import HostPatterns

SPEC = RoleSpec(
    "nvidia_driver",
    Path("/roles/nvidia_driver/meta/argument_specs.yml"),
    {
        "nvidia_driver_version": {"type": "str", "required": True},
        "nvidia_driver_flavour": {"type": "str", "choices": ["open", "proprietary"], "default": "open"},
        "nvidia_driver_repository": {
            "type": "dict",
            "options": {"uri": {"type": "str", "required": True}, "suites": {"type": "list", "elements": "str"}},
        },
        "nvidia_driver_options": {"type": "dict", "default": {}},
        "nvidia_driver_held": {"type": "list", "elements": "str", "default": []},
        "nvidia_driver_gpu_count": {"type": "int"},
        "nvidia_driver_persistence": {"type": "bool", "default": True},
        "nvidia_driver_timeout_s": {"type": "float", "default": 1.5},
        "nvidia_driver_key": {"type": "path"},
        "nvidia_driver_token": {"type": "str", "no_log": True},
        "nvidia_driver_name": {"default": "{{ nvidia_driver_version }}"},
    },
)
CUDA = RoleSpec(
    "cuda_toolkit",
    Path("/roles/cuda_toolkit/meta/argument_specs.yml"),
    {"cuda_toolkit_versions": {"type": "list", "elements": "str", "required": True}},
)


def inventory(
    hosts: Mapping[str, Mapping[str, Any]],
    withheld: Mapping[str, tuple[str, str]] | None = None,
    directory: Path = Path("/nowhere"),
    groups: Mapping[str, tuple[str, ...]] | None = None,
) -> Inventory:
    listing = Listing({name: Host(variables, withheld or {}) for name, variables in hosts.items()}, groups or {})
    nodes = {name: Node(name, Connection(name), name, {}, variables) for name, variables in hosts.items()}
    return Inventory(Site("train-a", directory), Fleet("train-a", nodes), listing, HostPatterns({}, {}), {})


def variables_of(given: Mapping[str, Any], **rest: Any) -> Mapping[str, Any]:
    read = inventory({"gpu001": given}, **rest)
    return declare(read, read.fleet.nodes.values(), [SPEC, CUDA])[0].variables


def refusal_of(given: Mapping[str, Any], **rest: Any) -> str:
    with pytest.raises(InventoryError) as refusal:
        variables_of({"nvidia_driver_version": "580.95.05", **given}, **rest)
    return str(refusal.value)


def test_defaults_are_laid_below_what_is_given() -> None:
    assert variables_of({"nvidia_driver_version": "580.95.05", "nvidia_driver_persistence": False, "rack": "r01"}) == {
        "nvidia_driver_version": "580.95.05",
        "nvidia_driver_flavour": "open",
        "nvidia_driver_options": {},
        "nvidia_driver_held": [],
        "nvidia_driver_persistence": False,
        "nvidia_driver_timeout_s": 1.5,
        "rack": "r01",
    }


def test_a_node_without_a_version_is_not_declared_and_gets_no_defaults() -> None:
    assert variables_of({"rack": "r01"}) == {"rack": "r01"}
    assert variables_of({"nvidia_driver_flavour": "open"}) == {"nvidia_driver_flavour": "open"}


def test_a_role_that_requires_nothing_always_has_its_defaults() -> None:
    spec = RoleSpec("nvidia_fabric_manager", Path("/x/y/z"), {"nvidia_fabric_manager_enabled": {"default": "auto"}})
    read = inventory({"gpu001": {}})
    assert declare(read, read.fleet.nodes.values(), [spec])[0].variables == {"nvidia_fabric_manager_enabled": "auto"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nvidia_driver_version": 580.1}, "nvidia_driver_version is the number 580.1: quote it; versions are strings"),
        ({"nvidia_driver_version": 580}, 'is the number 580: quote it; versions are strings ("580")'),
        ({"nvidia_driver_version": "latest"}, '"latest" is not an exact version'),
        ({"nvidia_driver_version": "Latest"}, "is not an exact version"),
        ({"nvidia_driver_version": "580.*"}, "is not an exact version"),
        ({"nvidia_driver_version": ">=580"}, "is not an exact version"),
        ({"nvidia_driver_version": ""}, "is not an exact version"),
        ({"nvidia_driver_version": None}, "null must be text"),
        ({"nvidia_driver_version": True}, 'true is not text: quote it ("true")'),
        ({"nvidia_driver_version": ["580.95.05"]}, "must be text"),
        ({"cuda_toolkit_versions": ["12.8", 13.0]}, "cuda_toolkit_versions at 1: is the number 13.0: quote it"),
        ({"cuda_toolkit_versions": "12.8"}, "must be a list"),
        ({"nvidia_driver_versoin": "1"}, "no variable of the role nvidia_driver (did you mean nvidia_driver_version?)"),
        ({"nvidia_driver_zzzz": "1"}, "no variable of the role nvidia_driver: correct or remove it"),
        ({"nvidia_driver_flavour": "opne"}, '"opne" is not one of open, proprietary (did you mean open?)'),
        ({"nvidia_driver_repository": {"suites": ["/"]}}, "nvidia_driver_repository at uri: is missing"),
        ({"nvidia_driver_repository": {"uri": "x", "siutes": []}}, "nvidia_driver_repository has no key siutes"),
        ({"nvidia_driver_repository": "x"}, "must hold keys and values"),
        ({"nvidia_driver_held": [1]}, 'nvidia_driver_held at 0: 1 is not text: quote it ("1")'),
        ({"nvidia_driver_gpu_count": "eight"}, '"eight" must be a whole number'),
        ({"nvidia_driver_gpu_count": True}, "true must be a whole number"),
        ({"nvidia_driver_gpu_count": 8.0}, "8.0 must be a whole number"),
        ({"nvidia_driver_persistence": "maybe"}, '"maybe" must be true or false'),
        ({"nvidia_driver_persistence": 2}, "2 must be true or false"),
        ({"nvidia_driver_timeout_s": "soon"}, '"soon" must be a number'),
    ],
)  # fmt: skip
def test_what_is_wrong_names_host_variable_and_next_step(given: Mapping[str, Any], words: str) -> None:
    told = refusal_of(given)
    assert words in told
    assert told.startswith("gpu001: ")
    assert "\n" not in told


@pytest.mark.parametrize(
    "given",
    [
        {"nvidia_driver_gpu_count": "8"},  # an INI inventory, or a template, may give these as text
        {"nvidia_driver_persistence": "yes"},
        {"nvidia_driver_persistence": "False"},
        {"nvidia_driver_persistence": 0},
        {"nvidia_driver_timeout_s": 3},
        {"nvidia_driver_gpu_count": None},
        {"nvidia_driver_options": {"nvidia": {"NVreg_X": 1}}},
        {"nvidia_driver_repository": {"uri": "x", "suites": ["/"]}},
        {"cuda_toolkit_versions": ["12.8", "13.0"]},
    ],
)
def test_what_ansible_would_take_is_taken(given: Mapping[str, Any]) -> None:
    assert variables_of({"nvidia_driver_version": "580.95.05", **given}).items() >= given.items()


def test_nodes_with_the_same_mistake_are_told_in_one_line() -> None:
    read = inventory({f"gpu{number:03}": {"nvidia_driver_version": 580.1} for number in range(1, 5000)})
    with pytest.raises(InventoryError) as refusal:
        declare(read, read.fleet.nodes.values(), [SPEC])
    assert str(refusal.value).startswith("gpu[001-999,1000-4999]: nvidia_driver_version is the number")
    assert "\n" not in str(refusal.value)


def test_many_different_mistakes_are_counted_not_all_told() -> None:
    read = inventory({f"n{number}": {"nvidia_driver_version": float(number)} for number in range(50)})
    with pytest.raises(InventoryError, match="and 30 more of this kind"):
        declare(read, read.fleet.nodes.values(), [SPEC])


def test_only_the_nodes_asked_for_are_judged() -> None:
    read = inventory({"gpu001": {"nvidia_driver_version": "580.95.05"}, "gpu002": {"nvidia_driver_version": 5.8}})
    assert [node.name for node in declare(read, [read.fleet.nodes["gpu001"]], [SPEC])] == ["gpu001"]


def test_the_file_is_named_where_it_can_be_known(tmp_path: Path) -> None:
    (tmp_path / "group_vars/h100").mkdir(parents=True)
    (tmp_path / "group_vars/other.yml").write_text("nvidia_driver_version: 580.10\n")
    (tmp_path / "group_vars/h100/driver.yml").write_text(
        "---\n# nvidia_driver_version: 1\nnvidia_driver_version: 580.10\n"
    )
    (tmp_path / "hosts.ini").write_text("gpu001 nvidia_driver_version=580.10\n")
    told = refusal_of(
        {"nvidia_driver_version": 580.1}, directory=tmp_path, groups={"h100": ("gpu001",), "other": ("x",)}
    )
    assert told.endswith("(hosts.ini:1, group_vars/h100/driver.yml:3)")


def test_a_value_that_needs_facts_is_refused_by_name() -> None:
    withheld = {"nvidia_driver_flavour": ("undefined", "'ansible_distribution' is undefined")}
    told = refusal_of({}, withheld=withheld)
    assert told == (
        "gpu001: nvidia_driver_flavour can't be known without facts of the node "
        "('ansible_distribution' is undefined): give it per group in group_vars"
    )


def test_a_secret_version_is_refused_and_a_secret_token_is_the_roles_own_affair() -> None:
    secret = ("secret", "it is encrypted with Ansible Vault")
    assert "nvidia_driver_flavour is secret" in refusal_of({}, withheld={"nvidia_driver_flavour": secret})
    found = variables_of({"nvidia_driver_version": "580.95.05"}, withheld={"nvidia_driver_token": secret})
    assert "nvidia_driver_token" not in found
    assert "no variable of the role" in refusal_of({}, withheld={"nvidia_driver_tokne": secret})


def test_an_override_is_checked_like_a_declared_value() -> None:
    assert check_override(SPEC, {"nvidia_driver_version": "590.48.01"}) == {"nvidia_driver_version": "590.48.01"}
    with pytest.raises(InventoryError, match='nvidia_driver_version: "latest" is not an exact version'):
        check_override(SPEC, {"nvidia_driver_version": "latest"})
    with pytest.raises(InventoryError, match="is no variable of the role"):
        check_override(SPEC, {"nvidia_driver_versions": "1"})


@given(st.dictionaries(st.sampled_from(sorted(SPEC.options)), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)))  # fmt: skip
def test_a_version_that_passes_is_always_a_string(given: Mapping[str, Any]) -> None:
    read = inventory({"gpu001": given})
    try:
        (node,) = declare(read, read.fleet.nodes.values(), [SPEC])
    except InventoryError:
        return
    assert isinstance(node.variables.get("nvidia_driver_version", ""), str)


# --- argument_specs.yml


def write_spec(tmp_path: Path, text: str) -> Path:
    meta = tmp_path / "nvidia_driver/meta"
    meta.mkdir(parents=True)
    (meta / "argument_specs.yml").write_text(text)
    return tmp_path


def test_a_spec_is_read_from_the_first_role_of_its_name(tmp_path: Path) -> None:
    options = {"nvidia_driver_version": {"required": True}, "nvidia_driver_x": {"default": 1}}
    roles = write_spec(tmp_path, yaml.safe_dump({"argument_specs": {"main": {"options": options}}}))
    spec = read_spec("nvidia_driver", [tmp_path / "none", roles])
    assert spec.required == {"nvidia_driver_version"}
    assert spec.defaults == {"nvidia_driver_x": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "has no argument_specs"),
        ("", "has no argument_specs"),
        ("argument_specs: {main: {}}", "has no argument_specs: main: options"),
        ("argument_specs: {main: {options: {version: {}}}}", "option version does not start with the role's name"),
    ],
)
def test_a_spec_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_spec("nvidia_driver", [write_spec(tmp_path, text)])


def test_a_role_without_a_spec_says_so(tmp_path: Path) -> None:
    (tmp_path / "nvidia_driver/tasks").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"has no meta/argument_specs\.yml"):
        read_spec("nvidia_driver", [tmp_path])


def test_a_variable_belongs_to_the_role_with_the_longest_name() -> None:
    assert owner_of("nvidia_driver_extra_x", ["nvidia_driver", "nvidia_driver_extra"]) == "nvidia_driver_extra"
    assert owner_of("nvidia_drive", ["nvidia_driver"]) is None
