"""YAML read strictly."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import BadInput, PolicyError
from fleetctl.store.yaml_file import parse_yaml, read_yaml

PATH = Path("site/fleet.yml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3", "site/fleet.yml:3 gives a a second time (first in line 1)"),
        ("a: {b: 1,\n  b: 2}", "site/fleet.yml:2 gives b a second time"),
        ("a: [{b: 1, b: 2}]", "gives b a second time"),
        ("a: [1,\n2", "site/fleet.yml:2 is not valid YAML"),
        ("- a", "must hold keys and values"),
        ("text", "must hold keys and values"),
        ("a: &x {b: *x}", "refers to itself"),
        ("1: a", "the key 1"),
        ("a: 2026-13-45", "can't express"),
        ("a: \x00", "not valid YAML"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("a: !!python/object:os.system {}", "not valid YAML"),
        ("{" * 3000, "can't express"),
    ],
)
def test_what_is_not_one_mapping_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        parse_yaml(text, PATH, PolicyError)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_empty_file_says_nothing() -> None:
    assert parse_yaml("# only words\n", PATH, PolicyError).values == {}


def test_each_key_knows_its_line() -> None:
    file = parse_yaml("a: 1\nb:\n  c: [x,\n    y]\n", PATH, PolicyError)
    assert file.place(("b", "c")) == "site/fleet.yml:3"
    assert file.place(("b", "c", 1)) == "site/fleet.yml:4"
    assert file.place(("b", "d")) == "site/fleet.yml:2"
    assert file.place(("nowhere",)) == "site/fleet.yml"


def test_a_missing_file_is_named() -> None:
    with pytest.raises(PolicyError, match=r"site/fleet.yml can't be read: No such file"):
        read_yaml(PATH, PolicyError)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcdef", min_size=1), inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(st.text("abcdef", min_size=1).filter(lambda key: key != "e"), plain, max_size=6))
def test_what_was_written_is_read(values: dict[str, object]) -> None:
    assert parse_yaml(yaml.safe_dump(values), PATH, PolicyError).values == values


@given(st.text(max_size=60))
def test_odd_text_is_refused_in_words_or_becomes_a_mapping(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert all(isinstance(key, str) for key in parse_yaml(text, PATH, PolicyError).values)
