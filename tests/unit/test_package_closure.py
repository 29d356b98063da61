"""The judging of a set of packages by the role package_closure, on what dpkg and apt print."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import package_closure as closure  # roles/package_closure/module_utils
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

OPEN = {"libnvidia-compute": "580.95.05-1", "nvidia-open": "580.95.05-1", "nvidia-persistenced": "580.95.05-1"}
SET = closure.Declared(
    owner="nvidia_driver",
    version="580.95.05",
    members="nvidia-open(-[0-9]+)?|libnvidia-compute.*|nvidia-persistenced",
    roots=[["nvidia-open-580", "nvidia-open"]],
    independent="-",
    may_remove="nvidia-fabricmanager.*",
    moves_along=False,
    exact=None,
    exact_held=None,
    way_back=None,
    needs_way_back=True,
    repository={},
    recommends=False,
    adopt_holds=False,
    lock_timeout_s=600,
    install_timeout_s=3600,
)


def declared(**changes: Any) -> closure.Declared:
    return replace(SET, **changes)


def database(*rows: str) -> closure.Database:
    return closure.read_database("\n".join(["install|installed|dpkg|1.21.22|amd64", *rows]) + "\n")


def found(packages: closure.Closure, broken: tuple[str, ...] = (), held: tuple[str, ...] = ()) -> closure.Found:
    return closure.Found(packages, list(broken), list(held))


def refusal(act: Any, *arguments: Any) -> str:
    with pytest.raises(closure.Refused) as refused:
        act(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- what is there


def test_the_machines_own_architecture_is_no_part_of_a_name_and_a_foreign_one_is() -> None:
    read = database(
        "hold|installed|libnvidia-compute:amd64|580.95.05-1|amd64",
        "install|installed|libnvidia-compute:i386|580.95.05-1|i386",
        "deinstall|config-files|nvidia-open|570.195.03-1|all",
        "unknown|not-installed|nvidia-open-570||",
        "install|half-configured|nvidia-persistenced|580.95.05-1|amd64",
        "install|installed|nvidia-container-toolkit|1.18.0-1|amd64",
    )
    seen = closure.find(SET, read)
    assert list(seen.packages) == ["libnvidia-compute", "libnvidia-compute:i386", "nvidia-persistenced"]
    assert seen.broken == ["nvidia-persistenced"]
    assert seen.held == ["libnvidia-compute"]


def test_a_database_without_dpkg_is_not_an_empty_one() -> None:
    assert "can't be read" in refusal(closure.read_database, "")


@given(st.text(alphabet="ab|:-\n dpkg", max_size=200))
@example("||||")
@example("install|installed|dpkg|1|")
def test_no_text_makes_the_reader_of_the_database_fail_in_another_way(text: str) -> None:
    try:
        read = closure.read_database(text)
    except closure.Refused:
        return
    assert read.native


@pytest.mark.parametrize(
    ("packages", "current"),
    [
        (OPEN, True),
        ({**OPEN, "nvidia-open": "580.65.06-1"}, False),
        ({**OPEN, "nvidia-open": "1:580.95.05-0ubuntu1"}, True),
        ({"libnvidia-compute": "580.95.05-1"}, False),
        ({}, False),
    ],
    ids=["as declared", "a stray", "another packager", "a root is missing", "nothing"],
)
def test_a_set_is_current_with_every_root_and_no_stray(packages: closure.Closure, current: bool) -> None:
    assert closure.is_current(SET, found(packages)) is current


def test_a_half_configured_set_is_never_current() -> None:
    assert not closure.is_current(SET, found(OPEN, broken=("nvidia-open",)))


def test_a_package_with_versions_of_its_own_is_no_stray() -> None:
    packages = {**OPEN, "nvidia-persistenced": "535.171.04-1"}
    assert not closure.is_current(SET, found(packages))
    assert closure.is_current(declared(independent="nvidia-persistenced"), found(packages))


def test_an_exact_closure_is_current_when_nothing_is_more_or_less() -> None:
    exact = closure.without_native(declared(exact={"nvidia-open:amd64": "570.195.03-1"}), "amd64")
    assert closure.is_current(exact, found({"nvidia-open": "570.195.03-1"}))
    assert not closure.is_current(exact, found({"nvidia-open": "570.195.03-1", "libnvidia-compute": "570.195.03-1"}))
    assert closure.is_current(declared(exact={}), found({}))


def test_what_moves_along_is_asked_for_with_its_branch_and_without() -> None:
    moving = declared(moves_along=True)
    roots = closure.roots_of(
        moving, found({"nvidia-open-570": "570.195.03-1", "libnvidia-compute-570": "570.195.03-1"})
    )
    assert roots == [*SET.roots, ["libnvidia-compute-580", "libnvidia-compute"]]


# --- what bars a change


def test_half_configured_packages_bar_a_change_whosever_they_are() -> None:
    read = database("install|half-configured|lustre-client|2.15|amd64", "install|unpacked|nvidia-open|580.95.05-1|all")
    told = refusal(closure.require_unobstructed, SET, read, closure.find(SET, read), "")
    assert told.startswith("packages are half-configured: lustre-client, nvidia-open; look with dpkg --audit")


def test_the_way_back_mends_a_half_configured_set_but_nothing_else() -> None:
    back = declared(exact={"nvidia-open": "570.195.03-1"})
    own = database("install|unpacked|nvidia-open|580.95.05-1|all")
    closure.require_unobstructed(back, own, closure.find(back, own), "")
    other = database("install|triggers-pending|lustre-client|2.15|amd64")
    assert "lustre-client" in refusal(closure.require_unobstructed, back, other, closure.find(back, other), "")


def test_a_hold_is_ours_where_an_earlier_run_has_pinned_the_package() -> None:
    read = database("hold|installed|nvidia-open|580.65.06-1|all", "hold|installed|libnvidia-compute|580.65.06-1|amd64")
    seen = closure.find(SET, read)
    closure.require_unobstructed(SET, read, seen, closure.pins(SET, seen.packages))
    told = refusal(closure.require_unobstructed, SET, read, seen, closure.pins(SET, {"nvidia-open": "1"}))
    assert told.startswith(
        "held by somebody else: libnvidia-compute; release with apt-mark unhold, or set nvidia_driver_"
    )
    closure.require_unobstructed(declared(adopt_holds=True), read, seen, "")


# --- what is asked for

MADISON = """\
nvidia-open | 590.48.01-1 | http://10.0.0.1/nvidia  Packages
nvidia-open | 580.95.05-2 | http://10.0.0.1/nvidia  Packages
nvidia-open | 580.95.05-1 | http://10.0.0.1/nvidia  Packages
nvidia-open-580 | 580.95.05-0ubuntu1 | http://archive.invalid jammy/restricted amd64 Packages
"""


def test_the_first_name_of_a_root_and_the_newest_build_are_taken() -> None:
    assert closure.choose_targets(SET, SET.roots, closure.read_offers(MADISON)) == [
        "nvidia-open-580=580.95.05-0ubuntu1"
    ]
    roots = [["nvidia-open"]]
    assert closure.choose_targets(SET, roots, closure.read_offers(MADISON)) == ["nvidia-open=580.95.05-2"]


@pytest.mark.parametrize("uri", ["http://10.0.0.1/nvidia", "http://10.0.0.1/nvidia/"])
def test_a_declared_repository_is_the_only_one_that_counts_until_it_is_absent(uri: str) -> None:
    here = declared(repository={"uri": uri})
    assert closure.choose_targets(here, SET.roots, closure.read_offers(MADISON)) == ["nvidia-open=580.95.05-2"]
    gone = declared(repository={"uri": uri, "state": "absent"})
    assert closure.choose_targets(gone, SET.roots, closure.read_offers(MADISON)) == [
        "nvidia-open-580=580.95.05-0ubuntu1"
    ]


def test_a_version_that_nobody_offers_is_refused_with_what_is_offered() -> None:
    offers = closure.read_offers("nvidia-open | 590.48.01-1 | x\nnvidia-open | 590.48.01-1 | y\n")
    assert refusal(closure.choose_targets, SET, SET.roots, offers) == (
        "nvidia_driver 580.95.05 is in no repository of this node (asked for nvidia-open-580 or nvidia-open; "
        "offered: nvidia-open=590.48.01-1)"
    )
    assert refusal(closure.choose_targets, SET, SET.roots, []).endswith("offered: nothing)")


@given(st.text(max_size=200))
@example("| | |")
def test_any_answer_of_the_index_can_be_read(text: str) -> None:
    assert all(len(offer) == 3 for offer in closure.read_offers(text))


def test_the_set_and_what_it_may_remove_are_taken_out_of_the_status_and_nothing_else() -> None:
    parts = [
        "Package: dpkg\nStatus: install ok installed\nVersion: 1",
        "Package: nvidia-open\nStatus: install ok installed\nDescription: x\n Package: dpkg",
        "Package: nvidia-fabricmanager-580\nStatus: hold ok installed",
        "Package: nvidia-openssl\nDescription: about\n Package: nvidia-open",
    ]
    assert closure.without_set(SET, "\n\n".join(parts) + "\n") == f"{parts[0]}\n\n{parts[3]}\n"


# --- what the simulation says

SIMULATION = """\
Remv nvidia-fabricmanager-570 [570.195.03-1]
Purg nvidia-persistenced [570.195.03-1]
Inst nvidia-open [570.195.03-1] (580.95.05-1 NVIDIA:lab [all]) []
Inst libnvidia-compute [570.195.03-1] (580.95.05-1 NVIDIA:lab [amd64])
Inst lib-other (1.0 Debian:12 [amd64])
Conf nvidia-open (580.95.05-1 NVIDIA:lab [all])
"""
OLD = {"libnvidia-compute": "570.195.03-1", "nvidia-open": "570.195.03-1", "nvidia-persistenced": "570.195.03-1"}
NEW = {"libnvidia-compute": "580.95.05-1", "nvidia-open": "580.95.05-1"}


def test_a_simulation_gives_the_packages_of_the_set() -> None:
    assert closure.resolved(SET, SIMULATION) == NEW


def test_a_transaction_ends_with_exactly_what_was_asked_for() -> None:
    closure.require_transaction(SET, found(OLD), NEW, SIMULATION)
    told = refusal(closure.require_transaction, SET, found(OLD), {**NEW, "nvidia-open": "580.95.05-2"}, SIMULATION)
    assert told == (
        "nvidia_driver 580.95.05: apt would end with other packages than asked for: "
        "nvidia-open=580.95.05-1, nvidia-open=580.95.05-2"
    )


def test_a_transaction_that_takes_a_stranger_away_is_refused() -> None:
    simulation = SIMULATION + "Remv lustre-client [2.15]\nPurg lustre-client [2.15]\n"
    told = refusal(closure.require_transaction, SET, found(OLD), NEW, simulation)
    assert told == "nvidia_driver 580.95.05: the change would also remove lustre-client"


def test_apts_refusal_is_told_in_its_own_words() -> None:
    out = "Some packages could not be installed.\n nvidia-open : Depends: libc6 (>= 3) but 2.36 is to be installed\n"
    err = "W: something else\nE: Unable to correct problems, you have held broken packages.\n"
    assert closure.told_by_apt(out, err) == (
        "nvidia-open : Depends: libc6 (>= 3) but 2.36 is to be installed "
        "E: Unable to correct problems, you have held broken packages."
    )


# --- the way back

DIRECTORY = "/var/cache/fleetctl/nvidia_driver/archives"


def test_kept_files_are_known_by_name_version_and_foreign_architecture() -> None:
    names = ["nvidia-open_1%3a570.195.03-1_all.deb", "libnvidia-compute_570.195.03-1_amd64.deb"]
    names += ["libnvidia-compute_570.195.03-1_i386.deb", "partial.deb", "nvidia-open_1.deb"]
    kept = closure.kept_files([f"{DIRECTORY}/{name}" for name in names], "amd64")
    assert kept == {
        "nvidia-open=1:570.195.03-1": f"{DIRECTORY}/{names[0]}",
        "libnvidia-compute=570.195.03-1": f"{DIRECTORY}/{names[1]}",
        "libnvidia-compute:i386=570.195.03-1": f"{DIRECTORY}/{names[2]}",
    }


def test_forward_comes_from_the_signed_index_and_back_from_the_kept_files() -> None:
    kept = {"nvidia-open=580.95.05-1": "/a.deb"}
    assert closure.compose(SET, found(OLD), NEW, kept) == [
        *("libnvidia-compute=580.95.05-1", "nvidia-open=580.95.05-1", "nvidia-persistenced-")
    ]
    assert closure.compose(declared(exact=NEW), found(OLD), NEW, kept) == [
        *("/a.deb", "libnvidia-compute=580.95.05-1", "nvidia-persistenced-")
    ]


def test_what_is_neither_kept_nor_offered_is_lost() -> None:
    offers = closure.read_offers("libnvidia-compute | 570.195.03-1 | x\nnvidia-open | 570.211.01-1 | x\n")
    to_keep, lost = closure.split_way_back(OLD, {"nvidia-persistenced=570.195.03-1": "/a.deb"}, offers)
    assert to_keep == ["libnvidia-compute=570.195.03-1"]
    assert lost == ["nvidia-open=570.195.03-1"]
    assert closure.no_way_back(lost) == "no way back: nvidia-open=570.195.03-1 is in no repository"
    assert closure.no_way_back([*lost, "a", "b"]).endswith("nvidia-open=570.195.03-1 and 2 more are in no repository")


def test_all_is_held_but_where_a_recorded_closure_was_not() -> None:
    assert closure.to_hold(SET, NEW) == list(NEW)
    assert closure.to_hold(declared(exact=NEW, exact_held=[]), NEW) == []
    assert closure.to_hold(declared(exact=NEW), NEW) == list(NEW)
