"""Ansible's connection variables as a Connection."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.model.fleet import Connection
from fleetctl.store.connection import CONNECTION_VARIABLES, Untranslatable, connection_of

CASES = yaml.safe_load((Path(__file__).parents[1] / "cases/inventory/connection.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_variables_make_this_connection_or_are_refused(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(Untranslatable, match=case["refused"]):
            connection_of("gpu001", case["variables"])
    else:
        assert connection_of("gpu001", case["variables"]) == Connection(**case["connection"])


def test_a_key_in_the_home_directory_is_given_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/admin")
    found = connection_of("gpu001", {"ansible_ssh_private_key_file": "~/.ssh/fleet"})
    assert found.identity_file == "/home/admin/.ssh/fleet"


@given(st.dictionaries(st.sampled_from(sorted(CONNECTION_VARIABLES)), st.text(max_size=30)))
def test_odd_text_is_refused_in_words_or_becomes_a_connection(variables: dict[str, str]) -> None:
    with contextlib.suppress(Untranslatable):
        found = connection_of("gpu001", variables)
        assert not found.host.startswith("-")
        assert 0 < found.port < 65536
