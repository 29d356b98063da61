"""Comparing versions. Each kind of version has its own rule, chosen by who knows the kind; there is no general one.

A comparator gives -1, 0 or 1, or None where two versions are not in any order that we could vouch for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest

Comparator = Callable[[str, str], "int | None"]

# Python refuses to read numbers of thousands of digits; no version has one.
_DOTTED = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})*\Z")
_EPOCH = re.compile(r"([0-9]{1,18}):(.*)\Z", re.DOTALL)


def compare_dotted(left: str, right: str) -> int | None:
    """Numbers between dots: 470.100.0 is above 470.42.0, 535.54.03 equals 535.54.3, 580.95 is below 580.95.05."""
    if not (_DOTTED.match(left) and _DOTTED.match(right)):
        return 0 if left == right else None
    return _sign(_numbers(left), _numbers(right))


def is_prefix(short: str, full: str) -> bool:
    """True if `full` begins with the components of `short`. NVML prints 580.178 for 580.178.04."""
    if not (_DOTTED.match(short) and _DOTTED.match(full)):
        return short == full
    numbers = _numbers(short)
    return _numbers(full)[: len(numbers)] == numbers


def compare_equal_only(left: str, right: str) -> int | None:
    """For versions of a form that we do not know: the same text, or no answer."""
    return 0 if left == right else None


def compare_dpkg(left: str, right: str) -> int:
    """Debian policy 5.6.12: epoch, upstream version, revision; `~` sorts before the end of the text."""
    return (
        _sign(_epoch(left)[0], _epoch(right)[0])
        or _compare_dpkg_part(_split_revision(_epoch(left)[1])[0], _split_revision(_epoch(right)[1])[0])
        or _compare_dpkg_part(_split_revision(_epoch(left)[1])[1], _split_revision(_epoch(right)[1])[1])
    )


def compare_rpm(left: str, right: str) -> int:
    """rpm's rule for [epoch:]version[-release]; a side without a release is equal to any release."""
    (left_epoch, left_rest), (right_epoch, right_rest) = _epoch(left), _epoch(right)
    left_version, _, left_release = left_rest.partition("-")
    right_version, _, right_release = right_rest.partition("-")
    order = _sign(left_epoch, right_epoch) or _compare_rpm_part(left_version, right_version)
    if order or not (left_release and right_release):
        return order
    return _compare_rpm_part(left_release, right_release)


def upstream_of(package_version: str) -> str:
    """A package's version without epoch and without the packager's revision: 3:580.95.05-1.el9 is 580.95.05."""
    return _split_revision(_epoch(package_version)[1])[0]


def branch_of(version: str) -> str:
    """The release branch: 580 of 580.95.05."""
    return version.partition(".")[0]


def _sign(left: object, right: object) -> int:
    return int(left > right) - int(left < right)  # type: ignore[operator]  # both sides are of one ordered type


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _epoch(version: str) -> tuple[int, str]:
    found = _EPOCH.match(version)
    return (int(found[1]), found[2]) if found else (0, version)


def _split_revision(version: str) -> tuple[str, str]:
    upstream, dash, revision = version.rpartition("-")
    return (upstream, revision) if dash else (version, "")


def _rank(character: str) -> int:
    """dpkg's order of characters outside numbers: ~, end of text, letters, everything else."""
    if character == "~":
        return -1
    return ord(character) if character.isalpha() else ord(character) + 256


def _compare_dpkg_part(left: str, right: str) -> int:
    while left or right:
        left_text, left = _take(left, digits=False)
        right_text, right = _take(right, digits=False)
        width = max(len(left_text), len(right_text)) + 1
        order = _sign(_ranks(left_text, width), _ranks(right_text, width))
        if order:
            return order
        left_number, left = _take(left, digits=True)
        right_number, right = _take(right, digits=True)
        order = _sign(_magnitude(left_number), _magnitude(right_number))
        if order:
            return order
    return 0


def _magnitude(digits: str) -> tuple[int, str]:
    """Orders numbers of any length."""
    significant = digits.lstrip("0")
    return len(significant), significant


def _ranks(text: str, width: int) -> list[int]:
    return [_rank(character) for character in text] + [0] * (width - len(text))


def _take(text: str, digits: bool) -> tuple[str, str]:
    """The longest beginning of digits, or of anything but digits, and the rest."""
    found = re.match(r"[0-9]*" if digits else r"[^0-9]*", text)
    end = found.end() if found else 0
    return text[:end], text[end:]


def _compare_rpm_part(left: str, right: str) -> int:
    """rpm's rpmvercmp: runs of digits or letters; `~` below the end of the text, `^` just above it."""
    runs_of = re.compile(r"[0-9]+|[A-Za-z]+|~|\^").findall
    left_runs, right_runs = runs_of(left), runs_of(right)
    for left_run, right_run in zip_longest(left_runs, right_runs, fillvalue=""):
        order = _sign(_rpm_rank(left_run), _rpm_rank(right_run))
        if order:
            return order
    return 0


def _rpm_rank(run: str) -> tuple[int, int, str]:
    if run == "~":
        return (0, 0, "")
    if not run:
        return (1, 0, "")
    if run == "^":
        return (2, 0, "")
    return (4, *_magnitude(run)) if run[0].isdigit() else (3, 0, run)
