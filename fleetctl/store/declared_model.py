"""Declared values checked against their role's spec: a pydantic model made of argument_specs, at this edge only."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from fleetctl.errors import InventoryError
from fleetctl.model.fleet import HostVars, Json, Node
from fleetctl.model.names import fold
from fleetctl.store.inventory import Inventory, reason_withheld
from fleetctl.store.places import find_places
from fleetctl.store.problems import explain, shown, suggest
from fleetctl.store.role_spec import RoleSpec, owner_of

_LINES_AT_MOST = 20
_IS_VERSION = re.compile(r"_versions?$")
_MOVING = frozenset({"latest", "newest", "current", "stable", "any", "present", "head", "default"})
_NOT_EXACT = re.compile(r"[\s*?<>=!|,]")
# What Ansible takes for booleans (ansible/module_utils/parsing/convert_bool.py), as an INI inventory writes them.
_TRUE = frozenset({"y", "yes", "on", "1", "true", "t"})
_FALSE = frozenset({"n", "no", "off", "0", "false", "f"})


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with one variable, whoever has it."""

    variable: str
    text: str


def declare(inventory: Inventory, nodes: Iterable[Node], specs: Sequence[RoleSpec]) -> tuple[Node, ...]:
    """The nodes with checked variables, and the defaults of each role whose required variables they are given.

    A node without them is not declared for that role and gets no defaults. InventoryError tells all that is wrong, one
    line for each complaint, with the hosts folded and the file where it can be known.
    """
    checked: dict[str, tuple[Mapping[str, Json], tuple[Complaint, ...]]] = {}
    wrong: dict[Complaint, list[str]] = {}
    declared: list[Node] = []
    for node in nodes:
        withheld = inventory.listing.hosts[node.name].withheld
        given = _of_roles(node.variables, specs)
        # Nodes of one group have the same values: each set is checked once.
        key = json.dumps([given, withheld], sort_keys=True)
        if key not in checked:
            checked[key] = _check(given, withheld, specs)
        defaults, complaints = checked[key]
        for complaint in complaints:
            wrong.setdefault(complaint, []).append(node.name)
        declared.append(replace(node, variables={**defaults, **node.variables}))
    if wrong:
        lines = [_line(complaint, names, inventory) for complaint, names in list(wrong.items())[:_LINES_AT_MOST]]
        more = len(wrong) - len(lines)
        raise InventoryError("\n".join(lines + ([f"and {more} more of this kind"] if more else [])))
    return tuple(declared)


def check_override(spec: RoleSpec, values: HostVars) -> Mapping[str, Json]:
    """Values given for one rollout (--to), checked as if the inventory gave them."""
    _, complaints = _check_role(spec, values, {})
    told = [complaint for complaint in complaints if complaint.variable in values]
    if told:
        raise InventoryError("\n".join(f"{complaint.variable}: {complaint.text}" for complaint in told))
    return values


def _of_roles(variables: HostVars, specs: Sequence[RoleSpec]) -> dict[str, Json]:
    prefixes = tuple(f"{spec.role}_" for spec in specs)
    return {name: value for name, value in variables.items() if name.startswith(prefixes)}


def _check(
    given: HostVars, withheld: Mapping[str, tuple[str, str]], specs: Sequence[RoleSpec]
) -> tuple[Mapping[str, Json], tuple[Complaint, ...]]:
    roles = [spec.role for spec in specs]
    defaults: dict[str, Json] = {}
    complaints: list[Complaint] = []
    for spec in specs:
        own = {name: value for name, value in given.items() if owner_of(name, roles) == spec.role}
        hidden = {name: reason for name, reason in withheld.items() if owner_of(name, roles) == spec.role}
        added, found = _check_role(spec, own, hidden)
        defaults.update(added)
        complaints += found
    return defaults, tuple(complaints)


def _check_role(
    spec: RoleSpec, given: HostVars, withheld: Mapping[str, tuple[str, str]]
) -> tuple[Mapping[str, Json], list[Complaint]]:
    """Defaults to lay below `given`, and what is wrong with it."""
    complaints = [_check_withheld(spec, name, *reason) for name, reason in withheld.items()]
    found = [complaint for complaint in complaints if complaint]
    missing: list[str] = []
    try:
        _model_of(spec.path, spec).model_validate(dict(given))
    except ValidationError as exc:
        for problem in exc.errors():
            name = str(problem["loc"][0])
            if problem["type"] == "missing" and len(problem["loc"]) == 1:
                missing += [name] if name not in withheld else []
            else:
                found.append(Complaint(name, _explain(spec, problem)))
    if spec.required and not spec.required & (given.keys() | withheld.keys()):
        return {}, found
    found += [Complaint(name, f"is missing, and the role {spec.role} needs it: declare it") for name in missing]
    return {name: value for name, value in spec.defaults.items() if name not in withheld}, found


def _check_withheld(spec: RoleSpec, name: str, kind: str, text: str) -> Complaint | None:
    if name not in spec.options:
        return Complaint(name, _no_such(spec, name))
    # What the role marks as secret (a repository's token) it reads by itself; no decision rests on it.
    if kind == "secret" and name in spec.secrets:
        return None
    return Complaint(name, reason_withheld(kind, text))


def _explain(spec: RoleSpec, problem: Any) -> str:
    inside = ".".join(str(part) for part in problem["loc"][1:])
    if problem["type"] == "extra_forbidden":
        if not inside:
            return _no_such(spec, str(problem["loc"][0]))
        return f"has no key {inside}: correct or remove it"
    text = explain(problem)
    return f"at {inside}: {text}" if inside else text


def _no_such(spec: RoleSpec, name: str) -> str:
    # Compared without the prefix that they all share, which would make any two alike.
    prefix = f"{spec.role}_"
    ends = {option.removeprefix(prefix): option for option in spec.options}
    near = difflib.get_close_matches(name.removeprefix(prefix), list(ends), n=1, cutoff=0.6)
    meant = f" (did you mean {ends[near[0]]}?)" if near else ""
    return f"is no variable of the role {spec.role}{meant}: correct or remove it"


def _line(complaint: Complaint, names: Sequence[str], inventory: Inventory) -> str:
    groups = {group for group, members in inventory.listing.groups.items() if not set(names).isdisjoint(members)}
    places = find_places(complaint.variable, inventory.site.directory, groups, set(names))
    where = f" ({', '.join(places)})" if places else ""
    return f"{fold(names)}: {complaint.variable} {complaint.text}{where}"


# --- argument_specs -> pydantic


@lru_cache(maxsize=64)
def _built(path: Path, source: str) -> type[BaseModel]:
    options = json.loads(source)
    fields: dict[str, Any] = {name: _field(name, option) for name, option in options.items()}
    return create_model(path.parent.parent.name, __config__=_CONFIG, **fields)


_CONFIG = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


def _model_of(path: Path, spec: RoleSpec) -> type[BaseModel]:
    return _built(path, json.dumps(spec.options, sort_keys=True, default=str))


def _field(name: str, option: Mapping[str, Any]) -> tuple[Any, Any]:
    kind = _type_of(name, option)
    return (kind, ...) if option.get("required") else (kind | None, None)


def _type_of(name: str, option: Mapping[str, Any]) -> Any:
    """The annotation of one option; what it does not say is text, as in Ansible."""
    kind = option.get("type", "str")
    inner: Any
    if kind == "list":
        element = {
            "type": option.get("elements", "raw"),
            "options": option.get("options"),
            "choices": option.get("choices"),
        }
        return list[_type_of(name, element)]  # type: ignore[misc]  # made at run time
    if kind == "dict":
        options = option.get("options")
        if not options:
            return dict[str, Any]
        fields: dict[str, Any] = {key: _field(key, value) for key, value in options.items()}
        return create_model(name, __config__=_CONFIG, **fields)
    checks: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
        "str": (str, _version if _IS_VERSION.search(name) else _text),
        "path": (str, _text),
        "int": (int, _int),
        "float": (float, _float),
        "bool": (bool, _bool),
    }
    if kind not in checks:
        return Any
    inner, check = checks[kind]
    annotated = Annotated[inner, BeforeValidator(check)]
    if choices := option.get("choices"):
        return Annotated[annotated, Field(), _one_of(tuple(choices))]
    return annotated


def _one_of(choices: tuple[Any, ...]) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value not in choices:
            near = suggest(str(value), map(str, choices))
            raise ValueError(f"{shown(value)} is not one of {', '.join(map(str, choices))}{near}")
        return value

    return BeforeValidator(check)


def _text(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        raise ValueError(f'{shown(value)} is not text: quote it ("{shown(value)}")')
    return value


def _version(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError(
            f"is the number {value}: quote it; versions are strings, and a number has lost its zeros (580.10 is 580.1)"
        )
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f'is the number {value}: quote it; versions are strings ("{value}")')
    if isinstance(value, str) and (value.strip().lower() in _MOVING or _NOT_EXACT.search(value) or not value):
        raise ValueError(f'{shown(value)} is not an exact version: write the one that is meant, such as "580.95.05"')
    return _text(value)


def _int(value: Any) -> Any:
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else value


def _float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _bool(value: Any) -> Any:
    word = str(value).lower()
    return word in _TRUE if not isinstance(value, float) and word in _TRUE | _FALSE else value
