"""The README is true: its tables are the code's, and what it names is there."""

from __future__ import annotations

import re

import pytest

from tools.readme_tables import README, with_tables

TEXT = README.read_text()


def test_the_tables_are_as_the_code_has_them() -> None:
    assert with_tables(TEXT) == TEXT, "run: python tools/readme_tables.py"


def test_a_table_that_differs_is_noticed() -> None:
    assert with_tables(TEXT.replace("| checking | check |", "| checking | guess |")) != TEXT.replace(
        "| checking | check |", "| checking | guess |"
    )


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:tests|fleetctl|roles)/[\w./]+)`", TEXT))))
def test_every_file_that_it_names_is_there(path: str) -> None:
    assert (README.parent / path).exists()
