"""fleet.yml: what a site allows, checked at this edge and turned into the frozen Site."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from fleetctl.errors import PolicyError
from fleetctl.model.fleet import Connection
from fleetctl.model.policy import Hooks, Limit, RolloutPolicy, StateLimits
from fleetctl.model.site import Site, SlurmSettings
from fleetctl.store.problems import explain, shown, suggest
from fleetctl.store.settings import Overlaid, overlay
from fleetctl.store.yaml_file import KeyPath, YamlFile, read_yaml

_PERCENT = re.compile(r"(\d{1,9})\s*%")
_WINDOW_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_WINDOW = re.compile(
    rf"{_WINDOW_DAY}(?:-{_WINDOW_DAY})?(?:,{_WINDOW_DAY}(?:-{_WINDOW_DAY})?)* "
    r"(?:[01]\d|2[0-3]):[0-5]\d-(?:[01]\d|2[0-3]|24(?=:00)):[0-5]\d [A-Za-z_]+(?:/[A-Za-z0-9_+-]+)*"
)


def parse_limit(value: Any) -> Limit:
    """A count of nodes, or a percentage such as "5%". ValueError says what to write instead."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f'{shown(value)} must be a whole number, or a percentage such as "5%"')
    if isinstance(value, str):
        text = value.strip()
        if percent := _PERCENT.fullmatch(text):
            amount = int(percent[1])
            if not 1 <= amount <= 100:
                raise ValueError(f"{shown(value)} must be from 1% to 100%")
            return Limit(amount, is_percent=True)
        if not re.fullmatch(r"-?\d{1,9}", text):
            raise ValueError(f'{shown(value)} must be a whole number, or a percentage such as "5%"')
        value = int(text)
    if value == 0:
        raise ValueError(
            '0 would let no node out, and nothing could ever change: write 1 or more, or a percentage such as "5%"; '
            "to stop a rollout, pause it"
        )
    if value < 0:
        raise ValueError(f"{value} must be 1 or more")
    return Limit(value)


def _limits_by_kind(value: Any) -> Any:
    """{"rack": 2} as it is; "rack=2,power=10%" as a flag or a variable of the environment gives it."""
    if not isinstance(value, str):
        return value
    pairs = [item.partition("=") for item in value.split(",") if item.strip()]
    if not pairs or not all(kind.strip() and sign for kind, sign, _ in pairs):
        raise ValueError(f'{shown(value)} must look like "rack=2,power=10%"')
    return {kind.strip(): limit.strip() for kind, _, limit in pairs}


def _no_bool(value: Any) -> Any:
    # To pydantic true is 1; to the person who wrote `canary: yes` it is not.
    if isinstance(value, bool):
        raise ValueError(f"{shown(value)} must be a number")
    return value


def _argv(value: Any) -> Any:
    """A command as a list, or as one line that is split as a shell would, but never run by one."""
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as exc:
        raise ValueError(f"{shown(value)} can't be split into words: {exc}") from exc


def _head(via: Any) -> Any:
    """None for "local"; the host to reach for an ssh:// URL."""
    if via == "local":
        return None
    wrong = ValueError('must be "local" or "ssh://[user@]host[:port]", without a password')
    try:
        url = urlsplit(via if isinstance(via, str) else "")
        port = url.port or 22
    except ValueError:
        raise wrong from None
    is_plain = url.scheme == "ssh" and url.path in ("", "/") and not (url.query or url.fragment or url.password)
    if not is_plain or not url.hostname or url.hostname.startswith("-"):
        raise wrong
    # urlsplit lowers the letters of the host; a name in the inventory keeps its own.
    start = url.netloc.lower().rindex(url.hostname)
    return Connection(url.netloc[start : start + len(url.hostname)], port, url.username)


def _window(value: Any) -> Any:
    if not isinstance(value, str) or not _WINDOW.fullmatch(value):
        raise ValueError(f'{shown(value)} must look like "Mon-Fri 08:00-18:00 Europe/Paris"')
    return value


AtLeastZero = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
AtLeastOne = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Span = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, allow_inf_nan=False)]
PositiveSpan = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, allow_inf_nan=False)]
NodeLimit = Annotated[Limit, BeforeValidator(parse_limit)]
Command = Annotated[tuple[str, ...], BeforeValidator(_argv)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class _Slurm(_Section):
    via: Annotated[Connection | None, BeforeValidator(_head)] = None
    partitions: tuple[str, ...] = ()


class _Schedulers(_Section):
    slurm: _Slurm | None = None


class _LimitsMin(_Section):
    checking: PositiveSpan | None = None
    draining: PositiveSpan | None = None
    preflight: PositiveSpan | None = None
    applying: PositiveSpan | None = None
    restarting: PositiveSpan | None = None
    verifying: PositiveSpan | None = None
    undraining: PositiveSpan | None = None
    returning: PositiveSpan | None = None
    quarantined: PositiveSpan | None = None


_DEFAULT = RolloutPolicy()
_SAME_IN_POLICY = (
    "canary",
    "max_unavailable",
    "max_unavailable_per",
    "max_failures",
    "same_signature_stops_at",
    "on_failed_verify",
    "retry_after_s",
    "retry_at_most_s",
    "deferred_again_after_s",
    "poll_s",
)
"""Keys of `rollout` that mean the same, in the same unit, in RolloutPolicy."""


class _Rollout(_Section):
    canary: AtLeastZero = _DEFAULT.canary
    soak_min: Span = _DEFAULT.soak_s / 60
    max_unavailable: NodeLimit = _DEFAULT.max_unavailable
    max_unavailable_per: Annotated[dict[str, NodeLimit], BeforeValidator(_limits_by_kind)] = {}
    max_failures: AtLeastZero = _DEFAULT.max_failures
    same_signature_stops_at: AtLeastOne = _DEFAULT.same_signature_stops_at
    on_failed_verify: Literal["roll_back", "quarantine"] = _DEFAULT.on_failed_verify
    drain_timeout_h: PositiveSpan | None = None
    windows: tuple[Annotated[str, BeforeValidator(_window)], ...] = ()
    limits_min: _LimitsMin = _LimitsMin()
    retry_after_s: PositiveSpan = _DEFAULT.retry_after_s
    retry_at_most_s: PositiveSpan = _DEFAULT.retry_at_most_s
    deferred_again_after_s: PositiveSpan = _DEFAULT.deferred_again_after_s
    poll_s: PositiveSpan = _DEFAULT.poll_s


class _Hooks(_Section):
    before_drain: Command = ()
    after_undrain: Command = ()
    on_quarantine: Command = ()


class _FleetFile(_Section):
    schedulers: _Schedulers = _Schedulers()
    failure_domains: dict[str, Variable] = {}
    nodes: Annotated[str, Field(min_length=1)] = "all"
    names: dict[Literal["slurm", "kubernetes", "bmc"], Variable] = {}
    rollout: _Rollout = _Rollout()
    power_cycle: Command = ()
    hooks: _Hooks = _Hooks()
    roles_path: tuple[str, ...] = ()
    state_url: str | None = None
    state_group: str | None = None
    inventory_max_age_s: Span = 60


def read_policy(
    directory: Path, flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Site:
    """The site of `directory`: flag, else FLEETCTL_*, else its fleet.yml, else the default.

    `flags` are rollout settings by their name in fleet.yml; None means not given.
    """
    return site_of(read_yaml(directory / "fleet.yml", PolicyError), flags or {}, environ)


def site_of(file: YamlFile, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Site:
    """As read_policy, for a file that was read; all that is wrong in it is told at once."""
    overlaid = overlay(file, _Rollout.model_fields, flags, environ)
    try:
        read = _FleetFile.model_validate(overlaid.values)
    except ValidationError as exc:
        raise PolicyError("\n".join(_line(problem, overlaid) for problem in exc.errors())) from None
    directory = file.path.parent.absolute()
    _check_across(read, overlaid)
    _check_commands(read, overlaid, directory)
    slurm = read.schedulers.slurm
    return Site(
        name=directory.name,
        directory=directory,
        slurm=SlurmSettings(slurm.via, slurm.partitions) if slurm else None,
        failure_domains=read.failure_domains,
        policy=_policy(read, directory),
        nodes=read.nodes,
        names=dict(read.names.items()),
        roles_path=tuple(Path(os.path.normpath(directory / os.path.expanduser(path))) for path in read.roles_path),
        state_url=read.state_url,
        state_group=read.state_group,
        inventory_max_age_s=read.inventory_max_age_s,
    )


def _policy(read: _FleetFile, directory: Path) -> RolloutPolicy:
    rollout = read.rollout
    seconds = {
        f"{state}_s": minutes * 60 for state, minutes in rollout.limits_min.model_dump(exclude_none=True).items()
    }
    if rollout.drain_timeout_h is not None:
        seconds["draining_s"] = rollout.drain_timeout_h * 3600
    return RolloutPolicy(
        soak_s=rollout.soak_min * 60,
        limits=StateLimits(**seconds),
        power_cycle=_command(read.power_cycle, directory),
        hooks=Hooks(**{name: _command(getattr(read.hooks, name), directory) for name in _Hooks.model_fields}),
        **{name: getattr(rollout, name) for name in _SAME_IN_POLICY},
    )


def _check_commands(read: _FleetFile, overlaid: Overlaid, directory: Path) -> None:
    commands: dict[KeyPath, tuple[str, ...]] = {("power_cycle",): read.power_cycle}
    commands |= {("hooks", name): getattr(read.hooks, name) for name in _Hooks.model_fields}
    for key, command in commands.items():
        if command and Path(_command(command, directory)[0]).is_relative_to(directory):
            raise PolicyError(
                f"{overlaid.place(key)}: {command[0]} lies in the inventory, where Ansible runs each program as an "
                "inventory script: move it elsewhere"
            )


def _command(command: tuple[str, ...], directory: Path) -> tuple[str, ...]:
    """The command with its program's path from the site's directory; a bare name is looked for in PATH."""
    if not command or "/" not in command[0]:
        return command
    return os.path.normpath(directory / os.path.expanduser(command[0])), *command[1:]


def _check_across(read: _FleetFile, overlaid: Overlaid) -> None:
    """The rules between keys."""
    for kind in read.rollout.max_unavailable_per:
        if kind not in read.failure_domains:
            place = overlaid.place(("rollout", "max_unavailable_per", kind))
            known = suggest(kind, read.failure_domains)
            raise PolicyError(f"{place}: {kind} is not a key of failure_domains{known}: name its variable there")
    if read.rollout.drain_timeout_h is not None and read.rollout.limits_min.draining is not None:
        place = overlaid.place(("rollout", "drain_timeout_h"))
        raise PolicyError(f"{place}: limits_min.draining says the same as drain_timeout_h: keep one of the two")
    if read.rollout.windows:
        place = overlaid.place(("rollout", "windows"))
        raise PolicyError(f"{place}: windows are not enforced yet, so a rollout won't start under them: remove the key")


def _line(problem: Any, overlaid: Overlaid) -> str:
    # The value of a mapping that is itself wrong has "[key]" as its last part.
    at: KeyPath = tuple(part for part in problem["loc"] if part != "[key]")
    place = overlaid.place(at)
    if problem["type"] == "extra_forbidden":
        known = _fields(at[:-1])
        return f"{place}: there is no {at[-1]}{suggest(str(at[-1]), known)}: known are {', '.join(sorted(known))}"
    return f"{place}: {explain(problem)}"


def _fields(section: KeyPath) -> tuple[str, ...]:
    """The keys that fleet.yml may have in that section."""
    sections: Mapping[KeyPath, type[_Section]] = {
        (): _FleetFile,
        ("schedulers",): _Schedulers,
        ("schedulers", "slurm"): _Slurm,
        ("rollout",): _Rollout,
        ("rollout", "limits_min"): _LimitsMin,
        ("hooks",): _Hooks,
    }
    return tuple(sections[section].model_fields)
