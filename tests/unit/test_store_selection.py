"""Which nodes a pattern means."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import SelectionError
from fleetctl.model.names import fold, natural_key
from fleetctl.parse.slurm_hostlist import expand_hostlist
from fleetctl.store.selection import HostPatterns, members_of, split_pattern
from tests.unit.case_files import CASES, params

FILE = yaml.safe_load((CASES / "inventory/selection.yaml").read_text())
HOSTS: list[str] = FILE["inventory"]["hosts"]
PATTERNS = HostPatterns(
    dict.fromkeys(HOSTS),
    FILE["inventory"]["groups"],
    lambda name: "login1 is elsewhere" if name == "login1" else "",
)


@pytest.mark.parametrize("case", params(FILE["cases"], lambda case: case["pattern"].strip() or "(nothing)"))
def test_a_pattern_means_these_nodes_or_is_refused(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(SelectionError) as refusal:
            PATTERNS.match(case["pattern"])
        assert case["refused"] in str(refusal.value)
        assert "\n" not in str(refusal.value)
    else:
        wanted = HOSTS if case["nodes"] == "*" else case["nodes"]
        assert PATTERNS.match(case["pattern"]) == wanted


node_names = st.lists(
    st.builds(
        "{}{:0{}d}{}".format, st.sampled_from(["gpu", "n", "r1-n"]), st.integers(0, 120), st.integers(1, 4), st.just("")
    ),
    min_size=1,
    max_size=30,
    unique=True,
)


@given(node_names)
def test_folded_names_unfold_to_the_same_nodes(names: list[str]) -> None:
    patterns = HostPatterns(dict.fromkeys(names), {})
    assert set(patterns.match(fold(names))) == set(names)


@given(node_names, st.data())
def test_a_selection_never_holds_what_is_not_in_the_inventory(names: list[str], data: st.DataObject) -> None:
    patterns = HostPatterns(dict.fromkeys(names), {"half": names[::2]})
    text = data.draw(st.text(alphabet="gpn01-9[]!&~@*,:. half", max_size=20))
    with contextlib.suppress(SelectionError):
        assert set(patterns.match(text)) <= set(names)


@given(node_names)
def test_excluding_and_intersecting_split_the_whole(names: list[str]) -> None:
    patterns = HostPatterns(dict.fromkeys(names), {"half": names[::2]})
    inside, outside = patterns.match("all,&half"), patterns.match("all,!half")
    assert sorted(inside + outside) == sorted(names)


@given(st.text(max_size=30))
def test_no_term_of_a_split_pattern_is_empty(text: str) -> None:
    with contextlib.suppress(SelectionError):
        assert all(split_pattern(text))


def test_names_that_differ_only_in_width_stay_apart() -> None:
    assert expand_hostlist(fold(["n01", "n001"])).get() == ("n01", "n001")


def test_names_are_sorted_as_people_count() -> None:
    assert sorted(["gpu10", "gpu2", "gpu02", "login"], key=natural_key) == ["gpu2", "gpu02", "gpu10", "login"]


def test_a_group_keeps_its_name_when_none_of_its_hosts_is_a_node() -> None:
    assert members_of({"a": ["x", "y"], "b": ["z"]}, ["y"]) == {"a": ("y",), "b": ()}
