"""Every condition of our Ansible content has a boolean result, which ansible-core requires from 2.19 on.

Read from the text: an expression is boolean by what it is (a comparison, a test, `not`, `| bool`), a variable by each
of its definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment, nodes

ROOT = Path(__file__).parents[2]
CONTENT = ("roles", "playbooks", "molecule", "tests/contract/ansible_content")
CONDITIONS = {"when", "failed_when", "changed_when", "until", "that"}
JINJA = Environment()
# Ansible's own, and what its modules call the booleans of their results; ours begin as statements do.
MAGIC = {"ansible_check_mode"}
RESULTS = {"exists", "isdir", "changed", "failed", "skipped"}
STATEMENTS = ("is_", "has_", "needs_")

Definitions = Mapping[str, list[Any]]
BOOLEAN, OTHER = True, "a value of another type"


def documents() -> Iterator[tuple[Path, Any]]:
    for place in CONTENT:
        for path in sorted((ROOT / place).rglob("*.yml")):
            yield path, yaml.safe_load(path.read_text(encoding="utf-8"))


def mappings(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        yield document
    for inner in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from mappings(inner)


def definitions() -> Definitions:
    """Every variable that any of our files defines, with all of its values."""
    found: dict[str, list[Any]] = {}
    for path, document in documents():
        if path.parent.name == "vars":
            places = [document]
        elif path.name == "argument_specs.yml":
            options = [one["options"] for one in document["argument_specs"].values()]
            places = [{name: BOOLEAN if spec["type"] == "bool" else OTHER for name, spec in o.items()} for o in options]
        else:
            keys = ("vars", "ansible.builtin.set_fact")
            places = [one[key] for one in mappings(document) for key in keys if isinstance(one.get(key), dict)]
        for place in places:
            for name, value in (place or {}).items():
                found.setdefault(name, []).append(value)
    return found


def conditions(document: Any) -> Iterator[Any]:
    for one in mappings(document):
        for key in CONDITIONS & set(one):
            yield from one[key] if isinstance(one[key], list) else [one[key]]


def is_boolean(value: Any, known: Definitions, inside: tuple[str, ...] = ()) -> bool:
    """True if a condition, which is an expression without braces, can only be true or false."""
    if isinstance(value, str):
        (output,) = JINJA.parse("{{ (" + value + ") }}").body
        assert isinstance(output, nodes.Output)
        return _is_boolean(output.nodes[0], known, inside)
    return isinstance(value, bool)


def _is_boolean(node: nodes.Node, known: Definitions, inside: tuple[str, ...]) -> bool:
    match node:
        case nodes.Compare() | nodes.Not() | nodes.Test() | nodes.Filter(name="bool"):
            return True
        case nodes.Const():
            return isinstance(node.value, bool)
        case nodes.And() | nodes.Or():
            return _is_boolean(node.left, known, inside) and _is_boolean(node.right, known, inside)
        case nodes.CondExpr():
            ends = (node.expr1, node.expr2)
            return all(end is not None and _is_boolean(end, known, inside) for end in ends)
        case nodes.Filter(name="default", node=nodes.Node() as given):
            return all(_is_boolean(one, known, inside) for one in (given, *node.args))
        case nodes.Getattr():
            return node.attr in RESULTS or node.attr.startswith(STATEMENTS)
        case nodes.Name():
            return node.name in MAGIC or _is_boolean_variable(node.name, known, inside)
    return False


def _is_boolean_variable(name: str, known: Definitions, inside: tuple[str, ...]) -> bool:
    if name in inside or name not in known:
        return False
    return all(_is_boolean_value(value, known, (*inside, name)) for value in known[name])


def _is_boolean_value(value: Any, known: Definitions, inside: tuple[str, ...]) -> bool:
    """Of the value of a variable: a boolean, or one template and nothing beside it."""
    if not isinstance(value, str):
        return isinstance(value, bool)
    text = value.strip()
    is_template = text.startswith("{{") and text.endswith("}}") and text.count("{{") == 1
    return is_template and is_boolean(text[2:-2], known, inside)


# Ansible doubles the backslashes of regular expressions before it parses.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.case("M07")
def test_every_condition_has_a_boolean_result() -> None:
    known = definitions()
    found = [(path, condition) for path, document in documents() for condition in conditions(document)]
    assert len(found) > 60, "the conditions are not found any more"
    odd = [f"{path.relative_to(ROOT)}: {one!r}" for path, one in found if not is_boolean(one, known)]
    assert odd == []


@pytest.mark.case("M07")
def test_the_setting_that_lets_broken_conditions_pass_is_nowhere() -> None:
    setting = "allow_" + "broken_conditionals"
    files = [ROOT / name for name in ("Makefile", "pyproject.toml")]
    for place in ("roles", "playbooks", "molecule", "inventory", "fleetctl", "tools", "tests", ".ci", ".github"):
        files += [path for path in (ROOT / place).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(files) > 200
    assert [path for path in files if setting in path.read_text(encoding="utf-8", errors="replace").lower()] == []


KNOWN: Definitions = {
    "yes": [True],
    "list": [[1]],
    "mixed": [True, "{{ list }}"],
    "text": ["{{ yes }} and more"],
    "compared": ["{{ list == [] }}"],
    "chained": ["{{ compared\n   and not text }}\n"],
    "circle": ["{{ circle }}"],
}


@pytest.mark.parametrize(
    "condition",
    [
        *(True, False, "yes", "not list", "list | length > 0", "x is defined", "list | bool", "a == b or not c"),
        *("__x.stat.exists", "package_closure.is_current", "compared", "chained", "not ansible_check_mode or yes"),
        *("yes if x else compared", "yes | default(false)"),
    ],
)
def test_what_can_only_be_true_or_false(condition: Any) -> None:
    assert is_boolean(condition, KNOWN)


@pytest.mark.parametrize(
    "condition",
    [
        *("list", "mixed", "text", "circle", "unknown", "list | length", "yes and list", "list or yes", "'x'", "1", 1),
        *("__x.stdout", "__x.results", "yes if x", "yes if x else list", "x | default([])", "yes | default('')", None),
        *("list | select('x')", "f(x)", "a ~ b"),
    ],
)
def test_what_may_be_something_else(condition: Any) -> None:
    assert not is_boolean(condition, KNOWN)
