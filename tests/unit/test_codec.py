"""Events survive the journal exactly: every kind, every version that was ever written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import JournalDamaged
from fleetctl.model import rollout as words
from fleetctl.store.codec import UPCASTERS, decode, encode, version_of

WRITTEN = Path(__file__).parents[1] / "cases/journal/events.jsonl"
KINDS = {event.kind: event for event in get_args(words.Event)}
AT = datetime(2026, 11, 30, 2, 10, 0, 1, tzinfo=UTC)

# Nodes print what they like: characters may also be lone surrogates (undecodable bytes) or NUL.
_texts = st.text(st.characters(exclude_categories=()), max_size=20)
_names = st.lists(_texts, max_size=4).map(tuple)
_times = st.builds(
    lambda seconds, micros, hours: (
        datetime.fromtimestamp(seconds, timezone(timedelta(hours=hours))) + timedelta(microseconds=micros)
    ),
    st.integers(0, 2**33),
    st.integers(0, 999_999),
    st.sampled_from([0, 5.5, -8]),
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_variables = st.dictionaries(_texts, _json, max_size=3)
_by_type: dict[Any, st.SearchStrategy[Any]] = {
    datetime: _times,
    str: _texts,
    tuple[str, ...]: _names,
    Mapping[str, str]: st.dictionaries(_texts, _texts, max_size=3),
    Mapping[str, Any]: _variables,
}


def _records(cls: Any) -> st.SearchStrategy[Any]:
    """Instances of a dataclass with every field drawn, also those that have a default."""
    return st.builds(cls, **{name: _values(hint) for name, hint in get_type_hints(cls).items() if name != "kind"})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if hint in _by_type:
        return _by_type[hint]
    if is_dataclass(hint):
        return _records(hint)
    if get_origin(hint) is Mapping:
        return st.dictionaries(_texts, _values(get_args(hint)[1]), max_size=2)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of([_values(argument) for argument in get_args(hint)])
    return st.from_type(hint)


_events: st.SearchStrategy[words.Event] = st.one_of([_records(event) for event in KINDS.values()])


@given(_events)
def test_every_event_comes_back_as_it_was(event: words.Event) -> None:
    text = encode(event)
    again = decode(text)
    assert again == event
    assert type(again) is type(event)
    assert encode(again) == text
    assert text.isascii()
    assert "\n" not in text


@given(_events)
def test_times_come_back_in_utc(event: words.Event) -> None:
    assert decode(encode(event)).at.utcoffset() == timedelta(0)


def test_the_order_of_a_mapping_is_kept() -> None:
    overrides = {"zeta": {"b": 1, "a": 2}, "alpha": 3}
    again = decode(encode(opened(overrides=overrides)))
    assert isinstance(again, words.Opened)
    assert list(again.overrides) == ["zeta", "alpha"]
    assert list(again.overrides["zeta"]) == ["b", "a"]


@pytest.mark.parametrize(
    "value",
    [{"a": (1, 2)}, {"a": {1: "b"}}, {"a": float("nan")}, {"a": float("inf")}, {"a": {"b"}}, {"a": AT}],
    ids=str,
)
def test_what_json_would_change_in_silence_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(opened(overrides=value))


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        encode(words.Emptied(datetime(2026, 11, 30), "gpu001"))  # noqa: DTZ001


# --- versions


def test_every_line_ever_written_is_still_read() -> None:
    for line in WRITTEN.read_text().splitlines():
        decode(line)


def test_every_kind_is_on_file_in_its_present_version_and_is_written_like_that() -> None:
    """Fails when an event, or anything inside it, changes its shape: bump its version (see codec.UPCASTERS)."""
    present = {}
    for line in WRITTEN.read_text().splitlines():
        payload = json.loads(line)
        if payload["version"] == version_of(payload["kind"]):
            present[payload["kind"]] = line
    assert present.keys() == KINDS.keys()
    for line in present.values():
        assert encode(decode(line)) == line


def test_no_upcaster_is_for_an_unknown_kind() -> None:
    assert UPCASTERS.keys() <= KINDS.keys()


def test_an_older_version_is_brought_up_to_date_step_by_step() -> None:
    upcasters = {
        "emptied": (
            lambda fields: {"at": fields["when"], "host": fields["host"]},
            lambda fields: {"at": fields["at"], "node": fields["host"]},
        )
    }
    first = '{"kind":"emptied","version":1,"when":"2026-11-30T02:10:00.000001+00:00","host":"gpu001"}'
    second = '{"kind":"emptied","version":2,"at":"2026-11-30T02:10:00.000001+00:00","host":"gpu001"}'
    third = '{"kind":"emptied","version":3,"at":"2026-11-30T02:10:00.000001+00:00","node":"gpu001"}'
    assert {decode(text, upcasters) for text in (first, second, third)} == {words.Emptied(AT, "gpu001")}


def test_a_newer_version_is_refused_naming_both() -> None:
    newer = '{"kind":"emptied","version":7,"at":"2026-11-30T02:10:00+00:00","node":"gpu001"}'
    with pytest.raises(JournalDamaged, match="'emptied' has version 7, this program knows 1"):
        decode(newer)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not readable"),
        ("[]", "not readable"),
        ('{"version":1}', "not readable"),
        ('{"kind":"sung","version":1}', "knows no such event"),
        ('{"kind":"emptied","version":"1"}', "knows 1"),
        ('{"kind":"emptied","version":1,"at":"2026-11-30T02:10:00+00:00"}', "node missing"),
        ('{"kind":"emptied","version":1,"at":"2026-11-30T02:10:00+00:00","node":"a","x":1}', "x missing or not known"),
        ('{"kind":"emptied","version":1,"at":"2026-11-30T02:10:00+00:00","node":5}', "5 is not str"),
        ('{"kind":"emptied","version":1,"at":"2026-11-30T02:10:00","node":"a"}', "no time zone"),
        (
            '{"kind":"expired","version":1,"at":"2026-11-30T02:10:00+00:00","node":"a","state":"asleep"}',
            "'asleep' is not",
        ),
        (
            '{"kind":"closed","version":1,"at":"2026-11-30T02:10:00+00:00","status":"over","reason":""}',
            "'over' is none",
        ),
    ],
)
def test_what_has_not_the_shape_of_an_event_is_damage_and_said(text: str, says: str) -> None:
    with pytest.raises(JournalDamaged, match=says):
        decode(text)


def opened(**fields: Any) -> words.Opened:
    return words.Opened(AT, "r-1", "lab", ("driver",), ("gpu001",), "alice@ctl", "ctl", "n0nce", **fields)
