"""Every role has the one shape of DESIGN section 8, and says each thing once."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fleetctl.components import registry

ROOT = Path(__file__).parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
COMPONENTS = {component.role: name for name, component in registry.load().items()}
# A role that only other roles use; theirs prove it.
INTERNAL = {"package_closure"}
# The role's scenario, where it is not one of its own name: fabric manager is of one build with the driver or of no use.
SCENARIOS = {"nvidia_fabric_manager": "nvidia_driver"}
TASK_WORDS = {
    *("name", "when", "loop", "loop_control", "register", "vars", "notify", "changed_when", "failed_when", "block"),
    *("check_mode", "environment", "delegate_to", "become", "listen", "run_once"),
}
# Each of them hides a failure, or does what only the controller may do.
REFUSED_MODULES = {"reboot", "shell", "raw", "script", "pause", "wait_for_connection"}
TYPES = {"str": str, "bool": bool, "int": int, "list": list, "dict": dict}

by_role = pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def options(role: Path, entry: str = "main") -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read(role / "meta" / "argument_specs.yml")["argument_specs"][entry]["options"]
    return found


def tasks(role: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task and handler of a role, those inside of blocks too, with the name of its file."""
    for file in sorted([*role.glob("tasks/*.yml"), *role.glob("handlers/*.yml")]):
        waiting = list(read(file) or [])
        while waiting:
            task = waiting.pop(0)
            waiting = [*task.get("block", []), *waiting]
            yield f"{file.parent.name}/{file.name}: {task.get('name')}", task


def module_of(task: dict[str, Any]) -> str:
    words = set(task) - TASK_WORDS
    assert len(words) <= 1, f"a task with {sorted(words)}: is one of them misspelt, or not to be used here?"
    return next(iter(words), "block")


@by_role
def test_a_role_has_the_files_of_every_role(role: Path) -> None:
    wanted = {"README.md", "defaults/main.yml", "meta/main.yml", "meta/argument_specs.yml", "tasks/main.yml"}
    if role.name not in INTERNAL:
        wanted |= {"tasks/preflight.yml", "tasks/install.yml", "tasks/service.yml", f"verify/test_{role.name}.py"}
    assert not {name for name in wanted if not (role / name).is_file()}


def test_every_component_has_a_role_and_every_role_a_component() -> None:
    assert {role.name for role in ROLES} - INTERNAL == set(COMPONENTS)


@by_role
def test_a_role_is_run_and_verified_by_a_molecule_scenario(role: Path) -> None:
    if role.name in INTERNAL:
        assert any(role.name in file.read_text() for other in ROLES if other != role for file in other.rglob("*.yml"))
        return
    scenario = ROOT / "molecule" / SCENARIOS.get(role.name, role.name) / "molecule.yml"
    verifier = read(scenario)["verifier"]
    directory = scenario.parent / verifier["directory"]
    files = [*directory.glob("test_*.py"), *(directory / name for name in verifier["additional_files_or_dirs"])]
    assert (role / "verify" / f"test_{role.name}.py").resolve() in {file.resolve() for file in files}
    steps = [step.partition(" ")[0] for step in read(scenario)["scenario"]["test_sequence"]]
    order = ["create", "prepare", "check", "converge", "idempotence", "side_effect", "verify", "destroy"]
    rest = iter(steps)
    assert all(step in rest for step in order), f"{steps} lacks the order {order}"


@by_role
def test_defaults_and_argument_specs_say_the_same(role: Path) -> None:
    defaults, specs = read(role / "defaults" / "main.yml"), options(role)
    required = {name for name, option in specs.items() if option.get("required")}
    assert set(defaults) == set(specs) - required
    # None in the defaults is "not given", which a spec says by having no default.
    assert {n: v for n, v in defaults.items() if v is not None} == {
        name: option["default"] for name, option in specs.items() if "default" in option
    }


@by_role
def test_a_default_has_the_type_and_is_one_of_the_choices_of_its_option(role: Path) -> None:
    for name, option in options(role).items():
        value = option.get("default")
        assert name.startswith(f"{role.name}_"), name
        assert option["description"], f"{name} has no description"
        if value is None or "{{" in str(value):
            continue
        assert type(value) is TYPES[option["type"]], f"{name}: {value!r} is no {option['type']}"
        chosen = value if option["type"] == "list" else [value]
        assert all(item in option.get("choices", [item]) for item in chosen), name


@by_role
def test_every_entry_point_takes_the_same_options(role: Path) -> None:
    for entry in read(role / "meta" / "argument_specs.yml")["argument_specs"]:
        assert options(role, entry) == options(role)
        assert (role / "tasks" / f"{entry}.yml").is_file()


@by_role
def test_no_task_hides_a_failure_or_does_what_only_the_controller_may(role: Path) -> None:
    for where, task in tasks(role):
        assert not {"ignore_errors", "ignore_unreachable", "rescue", "always", "no_log"} & set(task), where
        assert task.get("failed_when") is not False, where
        module = module_of(task)
        own = {path.stem for path in role.glob("library/*.py")}
        assert module == "block" or module in own or module.startswith("ansible.builtin."), f"{where}: {module}"
        assert module.rpartition(".")[2] not in REFUSED_MODULES, f"{where}: {module}"


@by_role
def test_every_command_says_when_it_changes_something_and_runs_only_then(role: Path) -> None:
    for where, task in tasks(role):
        if module_of(task) != "ansible.builtin.command":
            continue
        assert "argv" in task["ansible.builtin.command"], f"{where}: words of a command are a list"
        assert "changed_when" in task, where
        assert task["changed_when"] is not True or "when" in task, f"{where}: it changes something whatever is there"


@by_role
def test_a_module_of_a_role_runs_no_shell_and_gives_its_commands_as_lists(role: Path) -> None:
    for file in [*role.glob("library/*.py"), *role.glob("module_utils/*.py")]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"use_unsafe_shell|shell=True|os\.system|os\.popen|/bin/sh", text), file.name
        if "run_command(" in text:
            # Otherwise Ansible puts values of the environment in place of $words that come from elsewhere.
            assert "expand_user_and_vars=False" in text, file.name


@by_role
def test_names_inside_a_role_show_who_may_use_them(role: Path) -> None:
    """role_x: public. _role_x: the role's own. __role_x: what a task has found."""
    public = set(options(role)) | {f"{role.name}_reboot_required"}
    for file in role.glob("vars/*.yml"):
        bad = [name for name in read(file) or {} if not name.startswith(f"_{role.name}_")]
        assert not bad, f"{file.name}: {bad}"
    for where, task in tasks(role):
        name = task.get("register")
        assert name is None or name.startswith(f"__{role.name}_"), f"{where}: {name}"
        for fact in task.get("ansible.builtin.set_fact", {}):
            told = fact in public or fact.startswith((f"__{role.name}_", f"_{role.name}_"))
            assert told or role.name in INTERNAL, f"{where}: {fact}"


def test_each_role_that_is_a_component_tells_whether_a_reboot_is_needed() -> None:
    for role in ROLES:
        if role.name not in INTERNAL:
            facts = {fact for _, task in tasks(role) for fact in task.get("ansible.builtin.set_fact", {})}
            assert f"{role.name}_reboot_required" in facts


def test_fleetctl_speaks_only_of_variables_that_a_role_has() -> None:
    known = {name for role in ROLES for name in options(role)}
    prefixes = "|".join(COMPONENTS)
    spoken = {
        name
        for path in (ROOT / "fleetctl").rglob("*.py")
        for name in re.findall(rf'"((?:{prefixes})_[a-z_]+)"', path.read_text(encoding="utf-8"))
    }
    assert spoken, "the pattern finds nothing any more"
    assert spoken <= known, f"no role has {sorted(spoken - known)}"


def test_the_playbooks_know_every_component_and_what_its_role_takes() -> None:
    variables = read(ROOT / "playbooks" / "vars" / "components.yml")
    assert variables["fleetctl_roles"] == {name: role for role, name in COMPONENTS.items()}
    assert variables["fleetctl_components"] == list(registry.names())
    for role in COMPONENTS:
        for end in ("packages_exact", "packages_held", "way_back", "needs_way_back"):
            assert f"{role}_{end}" in variables
            assert f"{role}_{end}" in options(ROOT / "roles" / role)


def test_the_marker_is_the_last_task_of_the_playbooks_and_what_fleetctl_waits_for() -> None:
    from fleetctl.adapters.ansible_events import MARKER

    assert read(ROOT / "playbooks" / "vars" / "components.yml")["fleetctl_marker"] == MARKER
    for name in ("apply.yml", "preflight.yml"):
        (play,) = read(ROOT / "playbooks" / name)
        assert play["tasks"][-1]["name"] == "{{ fleetctl_marker }}"
        assert "ansible.builtin.debug" in play["tasks"][-1]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("role_readmes", ROOT / "tools" / "role_readmes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_options_in_each_readme_are_those_of_the_spec() -> None:
    differing = load_tool().differing(ROOT / "roles")
    assert not differing, "run python tools/role_readmes.py"


def test_a_changed_description_shows_in_the_readme_check(tmp_path: Path) -> None:
    """The check above can fail."""
    (tmp_path / "some" / "meta").mkdir(parents=True)
    spec = {"type": "str", "required": True, "description": "New words for C(it)."}
    (tmp_path / "some" / "meta" / "argument_specs.yml").write_text(
        yaml.safe_dump({"argument_specs": {"main": {"options": {"some_thing": spec}}}})
    )
    tool = load_tool()
    (tmp_path / "some" / "README.md").write_text(f"a\n{tool.BEGIN}\nold\n{tool.END}\nb\n")
    (text,) = tool.differing(tmp_path).values()
    assert "| `some_thing` | str | required | New words for `it`. |" in text
    assert text.startswith("a\n")
    assert text.endswith("b\n")
