"""The variables that fleetctl reads, out of a listing of ansible-inventory, with their templates rendered."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.errors import InventoryError
from fleetctl.model.fleet import Json
from fleetctl.store import render_program
from fleetctl.store.ansible_inventory import Source, ansible_environment, parse_listing
from fleetctl.store.inventory_cache import Host, Listing
from fleetctl.store.render_alike import find_alike

_TIMEOUT_S = 600
_VAULTED = ("secret", "it is encrypted with Ansible Vault")
_NO_LOG = ("secret", "its role marks it no_log")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which variables are read: by prefix and by name; and which of them are secret, whatever they hold."""

    prefixes: tuple[str, ...]
    names: frozenset[str]
    secrets: frozenset[str] = frozenset()

    def has(self, name: str) -> bool:
        return name.startswith(self.prefixes) or name in self.names


def render_listing(text: str, source: Source, wanted: Wanted, environ: Mapping[str, str]) -> Listing:
    """The wanted variables of every host of `text`, as Ansible would render them without facts.

    What Ansible Vault encrypts is withheld, and so is what can't be rendered; each with its reason.
    """
    listing = parse_listing(text, source)
    hostvars: Mapping[str, Mapping[str, Json]] = listing["_meta"]["hostvars"]
    raw = {
        host: {name: value for name, value in variables.items() if wanted.has(name)}
        for host, variables in hostvars.items()
    }
    templated = {
        host: names
        for host, variables in raw.items()
        if (names := [name for name, value in variables.items() if _is_template(value) and name not in wanted.secrets])
    }
    alike = find_alike(hostvars, templated)
    if alike is not None:
        chosen = frozenset(alike.values())
        templated = {host: names for host, names in templated.items() if host in chosen}
        text = json.dumps(_narrowed(listing, chosen))
    rendered: Mapping[str, Any] = {"values": {}, "problems": {}, "secrets": []}
    if templated or source.vaulted:
        rendered = _run(text, source, templated, environ)
    secrets = dict.fromkeys(rendered["secrets"], _VAULTED) | dict.fromkeys(wanted.secrets, _NO_LOG)
    members = _members(listing)
    hosts = {}
    for name in members.pop("all"):
        like = alike.get(name, name) if alike else name
        problems = rendered["problems"].get(like, {})
        hosts[name] = _host(raw.get(name, {}), rendered["values"].get(like, {}), problems, secrets)
    return Listing(hosts, {group: names for group, names in members.items() if group != "ungrouped"})


def _narrowed(listing: Mapping[str, Any], chosen: frozenset[str]) -> Mapping[str, Any]:
    """The listing with the chosen hosts alone."""
    meta = {**listing["_meta"], "hostvars": {name: listing["_meta"]["hostvars"][name] for name in chosen}}
    return {"all": {"hosts": sorted(chosen)}, "_meta": meta}


def _host(
    raw: Mapping[str, Json],
    rendered: Mapping[str, Json],
    problems: Mapping[str, tuple[str, str]],
    secrets: Mapping[str, tuple[str, str]],
) -> Host:
    variables: dict[str, Json] = {}
    withheld: dict[str, tuple[str, str]] = {}
    for name, value in raw.items():
        if name in secrets or _is_vaulted(value):
            withheld[name] = secrets.get(name, _VAULTED)
        elif name in problems:
            withheld[name] = (problems[name][0], problems[name][1])
        else:
            variables[name] = rendered[name] if name in rendered else _plain(value)
    return Host(variables, withheld)


def _is_template(value: Json) -> bool:
    """True if Ansible would render something in `value`; what a source marks as unsafe it would not."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value or "{#" in value
    if isinstance(value, dict):
        return (
            "__ansible_unsafe" not in value
            and "__ansible_vault" not in value
            and any(map(_is_template, value.values()))
        )
    return isinstance(value, list) and any(map(_is_template, value))


def _is_vaulted(value: Json) -> bool:
    if isinstance(value, dict):
        return "__ansible_vault" in value or any(map(_is_vaulted, value.values()))
    return isinstance(value, list) and any(map(_is_vaulted, value))


def _plain(value: Json) -> Json:
    """The value without the wrapping that says that a text is not to be rendered."""
    if isinstance(value, dict):
        if set(value) == {"__ansible_unsafe"}:
            return value["__ansible_unsafe"]
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _run(
    text: str, source: Source, templated: Mapping[str, list[str]], environ: Mapping[str, str]
) -> Mapping[str, Any]:
    request = {
        "listing": text,
        "directory": str(source.directory),
        "wanted": templated,
        "vaulted": [str(path) for path in source.vaulted],
    }
    # Through a pipe: the listing may hold secrets. -P: not to find our modules (site, ...) before Python's own.
    argv = [sys.executable, "-P", str(Path(render_program.__file__))]
    try:
        run = subprocess.run(
            argv,
            input=json.dumps(request),
            env=ansible_environment(environ),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InventoryError(f"{source.directory}: variables were not rendered in {_TIMEOUT_S} s") from None
    if run.returncode != 0:
        last = run.stderr.strip().splitlines()[-1:] or ["without a word"]
        raise InventoryError(f"{source.directory}: variables can't be rendered by Ansible's templar: {last[0]}")
    return json.loads(run.stdout)  # type: ignore[no-any-return]  # our own program's answer


def _members(listing: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Every group with all hosts below it, level by level, as Ansible counts them (Group.get_hosts)."""
    members = {group: tuple(dict.fromkeys(_walk(group, listing))) for group in listing if group != "_meta"}
    members.setdefault("all", ())
    return members


def _walk(group: str, listing: Mapping[str, Any]) -> Iterator[str]:
    level, seen = [group], {group}
    while level:
        children: list[str] = []
        for name in level:
            content = listing.get(name, {})
            yield from content.get("hosts", ())
            children += [child for child in content.get("children", ()) if child not in seen]
            seen.update(children)
        level = list(dict.fromkeys(children))
