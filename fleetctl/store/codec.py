"""Events of a rollout as versioned JSON text, and back, exactly.

Each payload names its kind and its version. An older version is brought up to date by the upcasters; a newer one is
refused. Every field is written, also one at its default: what the journal says must not change with the program.

Own code and not pydantic's: that refuses text with undecodable bytes (a node's own words may hold some), and turns
infinity into null and number keys into text without an error.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fleetctl.errors import JournalDamaged
from fleetctl.model.fleet import Json
from fleetctl.model.rollout import Event

Upcaster = Callable[[dict[str, Json]], dict[str, Json]]
"""The fields of a payload as one version has them -> as the next version has them."""

UPCASTERS: Mapping[str, tuple[Upcaster, ...]] = {}
"""By kind, from version 1 on. A change of an event's shape, or of anything inside it, adds one here and a line to
tests/cases/journal/events.jsonl; the lines that are there stay as they are."""

_EVENTS: Mapping[str, Any] = {event.kind: event for event in get_args(Event)}
_Convert = Callable[[Any], Any]


def version_of(kind: str, upcasters: Mapping[str, tuple[Upcaster, ...]] = UPCASTERS) -> int:
    """The version in which events of this kind are written."""
    return 1 + len(upcasters.get(kind, ()))


def encode(event: Event) -> str:
    """The event as one line of ASCII JSON. TypeError or ValueError for what would not come back as it was."""
    cls: Any = type(event)
    shape = _shape(cls)[0](event)
    return json.dumps({"kind": event.kind, "version": version_of(event.kind), **shape}, separators=(",", ":"))


def decode(text: str, upcasters: Mapping[str, tuple[Upcaster, ...]] = UPCASTERS) -> Event:
    """The event that was encoded, by this program or an older one."""
    try:
        payload = json.loads(text)
        kind, version = payload.pop("kind"), payload.pop("version")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalDamaged(f"an event is not readable ({error!r}): {text[:80]!r}") from error
    newest = version_of(kind, upcasters)
    if kind not in _EVENTS or not isinstance(version, int) or version > newest:
        known = f"this program knows {newest}" if kind in _EVENTS else "this program knows no such event"
        raise JournalDamaged(f"event {kind!r} has version {version}, {known}: use the fleetctl that wrote it")
    try:
        for upcast in upcasters.get(kind, ())[version - 1 :]:
            payload = upcast(payload)
        event: Event = _shape(_EVENTS[kind])[1](payload)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalDamaged(f"event {kind!r} of version {version} does not have its shape: {error}") from error
    return event


def time_to_text(at: datetime) -> str:
    """UTC, always with microseconds, so that text sorts as time does."""
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone")
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def time_from_text(text: str) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return at


@cache
def _shape(hint: Any) -> tuple[_Convert, _Convert]:
    """How values of a type are written as plain JSON, and read back."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return _plain, _same
    if hint is datetime:
        return time_to_text, time_from_text
    if hint in (str, bool, int):
        return _same, _exactly(hint)
    if origin is Literal:
        return _same, _one_of(arguments)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and type(None) in arguments:
        return _optional(next(argument for argument in arguments if argument is not type(None)))
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(arguments[0])
    if origin is Mapping and arguments[0] is str:
        return _mapping(arguments[1])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return (lambda member: member.value), hint
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint)
    raise TypeError(f"the journal has no form for {hint}")


def _same(value: Any) -> Any:
    return value


def _exactly(kind: type) -> _Convert:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{value!r} is not {kind.__name__}")
        return value

    return read


def _one_of(choices: tuple[Any, ...]) -> _Convert:
    def read(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{value!r} is none of {', '.join(map(str, choices))}")
        return value

    return read


def _optional(hint: Any) -> tuple[_Convert, _Convert]:
    write, read = _shape(hint)
    return (lambda value: None if value is None else write(value)), (lambda text: None if text is None else read(text))


def _sequence(hint: Any) -> tuple[_Convert, _Convert]:
    write, read = _shape(hint)
    as_list = _exactly(list)

    def to_plain(items: tuple[Any, ...]) -> list[Json]:
        return [write(item) for item in items]

    return to_plain, lambda items: tuple([read(item) for item in as_list(items)])


def _mapping(hint: Any) -> tuple[_Convert, _Convert]:
    write, read = _shape(hint)

    def to_plain(mapping: Mapping[str, Any]) -> dict[str, Json]:
        return {_key(key): write(value) for key, value in mapping.items()}

    return to_plain, lambda mapping: {key: read(value) for key, value in mapping.items()}


def _record(cls: Any) -> tuple[_Convert, _Convert]:
    hints = get_type_hints(cls)
    parts = [(part.name, *_shape(hints[part.name])) for part in fields(cls)]
    names = {part.name for part in fields(cls)}

    def to_plain(record: Any) -> dict[str, Json]:
        return {name: write(getattr(record, name)) for name, write, _ in parts}

    def from_plain(plain: dict[str, Json]) -> Any:
        if plain.keys() != names:
            raise ValueError(f"{cls.__name__}: {', '.join(sorted(plain.keys() ^ names))} missing or not known")
        return cls(*[read(plain[name]) for name, _, read in parts])

    return to_plain, from_plain


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"key {key!r} is not text")
    return key


def _plain(value: Any) -> Json:
    """Plain data as it is; whatever JSON would change in silence is refused."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no form in JSON")
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    raise TypeError(f"{value!r} is not plain data")
