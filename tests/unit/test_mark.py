"""The ownership mark: what is written, and whose a reason is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fleetctl.model.mark import Mark, Ownership, owner_of, read_mark
from tests.unit.case_files import params, read_cases

REASONS = read_cases("slurm/reasons.yaml")
MARK = Mark("r-20261130-a7", "9f3c", "driver")

rollouts = st.from_regex(r"[A-Za-z0-9._-]{1,30}", fullmatch=True)
nonces = st.from_regex(r"[A-Za-z0-9]{1,16}", fullmatch=True)
appended = st.sampled_from(["", " : Not responding", " : reboot issued : reboot complete", " : whatever comes next"])


@pytest.mark.parametrize("case", params(REASONS, lambda case: case["reason"] or "empty"))
def test_whose_a_reason_is(case: dict[str, Any]) -> None:
    assert owner_of(case["reason"], MARK) is Ownership(case["owner"])
    found = read_mark(case["reason"])
    assert (found.why if found else None) == case.get("why")


@given(rollouts, nonces, st.text(), appended)
def test_what_is_written_is_read_back_as_ours_whatever_is_appended(
    rollout: str, nonce: str, why: str, suffix: str
) -> None:
    mark = Mark(rollout, nonce, why)
    assert owner_of(str(mark) + suffix, mark) is Ownership.OURS
    found = read_mark(str(mark))
    assert found is not None
    assert found.token == mark.token


@given(rollouts, nonces, st.text())
@example("r-20261130-a7", "9f3c", "ü" * 400)
@example("r-20261130-a7", "9f3c", 'dkms says "no"')
def test_what_is_written_is_one_printable_line_that_slurm_keeps_as_it_is(rollout: str, nonce: str, why: str) -> None:
    written = str(Mark(rollout, nonce, why))
    assert written.isprintable()
    assert len(written.encode()) <= 255, "slurmdbd's column"
    assert written.strip() == written
    assert not written.endswith('"'), "scontrol takes a closing quote off"


@given(rollouts, nonces, rollouts, nonces)
def test_another_rollout_or_nonce_is_never_ours(rollout: str, nonce: str, other: str, other_nonce: str) -> None:
    mine, theirs = Mark(rollout, nonce, "x"), Mark(other, other_nonce, "x")
    assert (owner_of(str(theirs), mine) is Ownership.OURS) == ((rollout, nonce) == (other, other_nonce))


@given(st.text())
def test_a_reason_without_the_token_is_never_ours(reason: str) -> None:
    if MARK.token not in reason:
        assert owner_of(reason, MARK) is not Ownership.OURS


@pytest.mark.parametrize(
    ("rollout", "nonce"), [("", "a"), ("r", ""), ("a b", "c"), ("a:b", "c"), ("r", "a-b"), ("r\n", "a")]
)
def test_a_mark_that_could_not_be_read_back_is_not_made(rollout: str, nonce: str) -> None:
    with pytest.raises(ValueError, match="can't carry"):
        Mark(rollout, nonce)
