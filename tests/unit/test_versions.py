"""Laws of the comparators, and dpkg's rule against the real dpkg."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.model.versions import (
    branch_of,
    compare_dotted,
    compare_dpkg,
    compare_equal_only,
    compare_rpm,
    is_prefix,
    upstream_of,
)

dotted = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(lambda parts: ".".join(f"{n:02d}" for n in parts))
part = st.text("0123456789abyzAZ.+~", min_size=1, max_size=8)


@st.composite
def debian_versions(draw: st.DrawFn) -> str:
    """Versions that dpkg takes: upstream begins with a digit, a revision only behind a dash."""
    epoch = draw(st.sampled_from(["", "0:", "1:", "3:"]))
    upstream = draw(st.sampled_from("0123456789")) + draw(part)
    revision = draw(st.sampled_from(["", "-1", "-0ubuntu1", "-0ubuntu0.24.04.1", "-1~deb12u1", "-1+b2"]))
    return epoch + upstream + revision


@pytest.mark.case("L01")
@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("470.42.0", "470.100.0"),
        ("510.99.0", "510.100.0"),
        ("550.12", "550.120"),
        ("580.95", "580.95.05"),
        ("580.95.05", "590.48.01"),
    ],
)
def test_driver_versions_are_compared_number_by_number(lower: str, higher: str) -> None:
    assert compare_dotted(lower, higher) == -1
    assert compare_dotted(higher, lower) == 1


@pytest.mark.case("L03")
def test_leading_zeros_are_equal_numbers() -> None:
    assert compare_dotted("535.54.03", "535.54.3") == 0


def test_versions_of_an_unknown_form_are_equal_or_in_no_order() -> None:
    assert compare_dotted("580.95.05", "580.95.05-rc1") is None
    assert compare_dotted("Not Present", "Not Present") == 0
    assert compare_equal_only("A42 v2.60", "A42 v2.61") is None
    assert compare_equal_only("A42 v2.60", "A42 v2.60") == 0


@pytest.mark.case("A02")
def test_nvml_prints_a_prefix_of_the_drivers_version() -> None:
    assert is_prefix("580.178", "580.178.04")
    assert not is_prefix("580.178", "580.173.02")
    assert not is_prefix("580.17", "580.178.04")
    assert not is_prefix("580.178.04", "580.178")
    assert is_prefix("590.48", "590.48.01")


@given(dotted, dotted, dotted)
def test_dotted_order_is_total_and_consistent(a: str, b: str, c: str) -> None:
    assert compare_dotted(a, a) == 0
    assert compare_dotted(a, b) == -(compare_dotted(b, a) or 0)
    if (compare_dotted(a, b) or 0) <= 0 and (compare_dotted(b, c) or 0) <= 0:
        assert (compare_dotted(a, c) or 0) <= 0


@given(st.text() | st.just("9" * 5000), st.text() | st.just("8" * 5000 + ".1") | st.just("9" * 5000 + ":1"))
def test_no_comparator_raises_on_any_text(a: str, b: str) -> None:
    for compare in (compare_dotted, compare_equal_only, compare_dpkg, compare_rpm):
        assert compare(a, b) in (-1, 0, 1, None)
    is_prefix(a, b)
    upstream_of(a)
    branch_of(a)


@pytest.mark.parametrize("compare", [compare_dpkg, compare_rpm])
@given(a=part, b=part, c=part)
def test_package_orders_are_consistent(compare: object, a: str, b: str, c: str) -> None:
    assert callable(compare)
    assert compare(a, a) == 0
    assert compare(a, b) == -compare(b, a)
    if compare(a, b) <= 0 and compare(b, c) <= 0:
        assert compare(a, c) <= 0


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg on this machine to compare with")
@settings(max_examples=150, deadline=None)
@given(debian_versions(), debian_versions())
def test_dpkg_itself_gives_the_same_order(a: str, b: str) -> None:
    order = {-1: "lt", 0: "eq", 1: "gt"}[compare_dpkg(a, b)]
    said = subprocess.run(["dpkg", "--compare-versions", a, order, b], capture_output=True, text=True, check=False)
    assert said.returncode == 0, f"{a} {order} {b}: {said.stderr}"


# Pairs of rpm's own test suite (tests/rpmvercmp.at): what its rule is known by.
@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("1.0", "1.0", 0),
        ("2.0", "2.0.1", -1),
        ("5.5p1", "5.5p10", -1),
        ("10xyz", "10.1xyz", -1),
        ("xyz.4", "8", -1),
        ("1.0~rc1", "1.0", -1),
        ("1.0^", "1.0", 1),
        ("1.0^git1", "1.01", -1),
        ("1.0~rc1^git1", "1.0~rc1", 1),
        ("2_0", "2.0", 0),
        ("3:580.95.05-1.el9", "580.159.03-1.el9", 1),
        ("580.95.05-1.el9", "580.95.05-2.el9", -1),
        ("580.95.05", "580.95.05-2.el9", 0),
    ],
)
def test_rpm_rule(left: str, right: str, order: int) -> None:
    assert compare_rpm(left, right) == order
    assert compare_rpm(right, left) == -order


@pytest.mark.parametrize(
    ("package", "upstream"),
    [
        ("580.95.05-0ubuntu0.24.04.1", "580.95.05"),
        ("590.48.01-1ubuntu1", "590.48.01"),
        ("3:580.95.05-1.el9", "580.95.05"),
        ("1:4.5.2-1", "4.5.2"),
        ("575.51", "575.51"),
    ],
)
def test_upstream_version_has_neither_epoch_nor_revision(package: str, upstream: str) -> None:
    assert upstream_of(package) == upstream


def test_branch_is_the_first_number() -> None:
    assert branch_of("580.95.05") == "580"
