"""A role's meta/argument_specs.yml: the one home of field names, types, choices and defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fleetctl.errors import BadInput
from fleetctl.model.fleet import Json
from fleetctl.store.content import find_role

# The C loader where libyaml is there: it is on the way of every command.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """The options of a role's main entry point, as its argument_specs.yml gives them."""

    role: str
    path: Path
    options: Mapping[str, Mapping[str, Any]]

    @property
    def required(self) -> frozenset[str]:
        return frozenset(name for name, option in self.options.items() if option.get("required"))

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(name for name, option in self.options.items() if option.get("no_log"))

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Defaults that are plain; one that is a template is the role's own affair."""
        return {
            name: option["default"]
            for name, option in self.options.items()
            if "default" in option and "{{" not in str(option["default"])
        }


def read_spec(role: str, roles_path: Sequence[Path]) -> RoleSpec:
    """The spec of the first role of that name. BadInput names the file that is missing or not of that form."""
    directory = find_role(role, roles_path)
    path = next(
        (p for p in (directory / "meta" / f"argument_specs.{end}" for end in ("yml", "yaml")) if p.is_file()), None
    )
    if path is None:
        raise BadInput(
            f"role {role} has no meta/argument_specs.yml in {directory}: add one, it says what may be declared"
        )
    try:
        options = yaml.load(path.read_text(encoding="utf-8"), _LOADER)["argument_specs"]["main"]["options"]  # noqa: S506
        wrong = next((name for name in options if not str(name).startswith(f"{role}_")), None)
        known = {name: dict(option) for name, option in options.items()}
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise BadInput(f"{path} has no argument_specs: main: options: as Ansible wants them ({exc})") from exc
    if wrong is not None:
        raise BadInput(f"{path}: option {wrong} does not start with the role's name: rename it to {role}_{wrong}")
    return RoleSpec(role, path, known)


def owner_of(variable: str, roles: Iterable[str]) -> str | None:
    """The role whose prefix `variable` carries; the longest, if the name of one role begins that of another."""
    owners = [role for role in roles if variable.startswith(f"{role}_")]
    return max(owners, key=len, default=None)
