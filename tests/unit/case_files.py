"""Entries of the data files of tests/cases as parameters of a test, each marked with its case from the field."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

CASES = Path(__file__).parents[1] / "cases"


def read_cases(name: str) -> list[dict[str, Any]]:
    """The entries of tests/cases/`name`."""
    entries: list[dict[str, Any]] = yaml.safe_load((CASES / name).read_text(encoding="utf-8"))
    return entries


def params(cases: Iterable[dict[str, Any]], title: Callable[[dict[str, Any]], str], before: str = "") -> list[Any]:
    """One parameter for each entry, named by its id and its title, so that `pytest -k A06` and `-m case` find it."""
    return [
        pytest.param(
            case,
            id=" ".join(f"{before} {case.get('id', '')} {title(case)}".split()),
            marks=[pytest.mark.case(case["id"])] if "id" in case else [],
        )
        for case in cases
    ]
