"""The rollout's log: one JSON object a line, private, without secrets, and never in the way."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from fleetctl.model.rollout import Act, Concluded, Emptied, Opened, Outcome, Result
from fleetctl.model.secret import HIDDEN, scrub, scrub_data, secrets_in
from fleetctl.store.log import RolloutLog, log_path, logged
from tests.unit.journal_parts import NOW, ROLLOUT, begun, database_in, intended, opened

CANARY = "c4nary-Value!"


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_log_numbers_events_as_the_journal_does(tmp_path: Path) -> None:
    journal = begun(database_in(tmp_path))
    log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: journal.length)
    log([opened()])
    for group in ([intended(1), intended(2)], [intended(3)]):
        journal.append(group)
        log(group)
    assert [(entry["seq"], entry["kind"]) for entry in entries(log.path)] == [
        (1, "opened"),
        (2, "intended"),
        (3, "intended"),
        (4, "intended"),
    ]
    assert logged(log.path) == journal.length == 4


def test_notes_stand_between_events_and_do_not_count(tmp_path: Path) -> None:
    log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: 7)
    log([intended(1)])
    log.note("hook failed", node="gpu001", command="silence")
    assert entries(log.path)[-1].items() >= {"kind": "note", "text": "hook failed", "node": "gpu001"}.items()
    assert logged(log.path) == 7


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
@pytest.mark.parametrize(("is_shared", "modes"), [(False, (0o700, 0o700, 0o600)), (True, (0o2770, 0o2770, 0o660))])
def test_the_log_is_private_or_the_groups_whatever_the_umask(
    tmp_path: Path, umask: int, is_shared: bool, modes: tuple[int, ...]
) -> None:
    before = os.umask(umask)
    try:
        log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: 1, is_shared=is_shared)
        log([opened()])
    finally:
        os.umask(before)
    found = [stat.S_IMODE(path.stat().st_mode) for path in (log.path.parent.parent, log.path.parent, log.path)]
    assert tuple(found) == modes


def test_a_log_that_can_not_be_written_stops_nothing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: 1)
    log([opened()])
    assert "rollout.jsonl" in log.problem
    (tmp_path / "logs").unlink()
    log([opened()])
    assert log.problem == ""
    assert len(entries(log.path)) == 1


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    path = log_path(tmp_path, ROLLOUT)
    path.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("precious\n")
    path.symlink_to(tmp_path / "elsewhere")
    log = RolloutLog(path, lambda: 1)
    log([opened()])
    assert log.problem
    assert (tmp_path / "elsewhere").read_text() == "precious\n"


def test_a_link_that_takes_the_logs_place_later_is_not_followed(tmp_path: Path) -> None:
    log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: 1)
    log([opened()])
    (tmp_path / "elsewhere").write_text("precious\n")
    log.path.unlink()
    log.path.symlink_to(tmp_path / "elsewhere")
    log.note("hello")
    assert log.problem
    assert (tmp_path / "elsewhere").read_text() == "precious\n"


def test_half_a_line_of_a_killed_controller_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = log_path(tmp_path, ROLLOUT)
    RolloutLog(path, lambda: 1)([opened()])
    with path.open("a") as torn:
        torn.write('{"seq":2,"kind":"int')
    RolloutLog(path, lambda: 3)([intended(1)])
    lines = path.read_text().splitlines()
    assert [json.loads(line)["seq"] for line in (lines[0], lines[2])] == [1, 3]
    assert logged(path) == 3


def test_the_last_number_is_found_behind_a_line_longer_than_the_part_that_is_read(tmp_path: Path) -> None:
    log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: 5)
    log([opened()])
    log.note("x" * 200_000)
    assert logged(log.path) == 5


def test_without_a_log_no_event_is_told_of(tmp_path: Path) -> None:
    assert logged(log_path(tmp_path, ROLLOUT)) == 0


# --- secrets


def test_no_canary_of_any_kind_reaches_the_log(tmp_path: Path) -> None:
    """The value of a secret variable, wherever a node or a tool may print it."""
    variables = {
        "repo_password": CANARY,
        "registry": {"auth": {"api_token": CANARY + "2"}},
        "bmc_credentials": ["admin", CANARY + "3"],
    }
    secrets = secrets_in(variables)
    log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: 1, secrets)
    for text in (
        f"fatal: {CANARY}",
        f"401 for https://user:{CANARY}2@repo/deb",
        f'{{"msg": "{CANARY}3"}}',
        f"line\n{CANARY}\nline",
    ):
        log([Concluded(NOW, Outcome(1, "gpu001", Act.APPLY, Result.FAILED, text, signature=text))])
    log([opened_with(variables)])
    log.note(f"hook said {CANARY}", output=[CANARY, {"deep": CANARY + "2"}])
    written = log.path.read_text()
    assert not log.problem
    assert len(entries(log.path)) == 6
    assert CANARY not in written
    assert HIDDEN in written


def test_the_values_of_secret_variables_are_found_at_any_depth() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n-----END KEY-----"
    variables = {
        "vault_db_passwd": "abcd1234",
        "nested": [{"slack_token": "xoxb-1"}],
        "secrets": {"any": {"name": "inner"}},
        "bmc_pass": "calvin",
        "ssh_private_key": key,
        "short_secret": "no",
        "secret_count": 3,
        "bypass_check": "visible",
        "nvidia_driver_version": "580.95.05",
    }
    found = secrets_in(variables)
    assert set(found) == {
        "abcd1234",
        "xoxb-1",
        "inner",
        "calvin",
        key,
        "MIIEvQIBADANBgkqhkiG",
        "-----BEGIN KEY-----",
        "-----END KEY-----",
    }
    assert list(found) == sorted(found, key=lambda value: (-len(value), value))


def test_a_secret_inside_a_longer_one_does_not_leave_its_rest() -> None:
    secrets = secrets_in({"a_password": "abcd", "b_password": "abcdefgh"})
    assert scrub("x abcdefgh y abcd", secrets) == f"x {HIDDEN} y {HIDDEN}"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://bob:hunter2@repo.example/x", f"https://bob:{HIDDEN}@repo.example/x"),
        ("postgresql+psycopg://u:p:q@db/x", f"postgresql+psycopg://u:{HIDDEN}@db/x"),
        ("https://abcdefghij0123456789@git/x", f"https://{HIDDEN}@git/x"),
        ("password=hunter2 next", f"password={HIDDEN} next"),
        ("db_password: 'hun ter2', x", f"db_password: {HIDDEN}, x"),
        ('{"api_key": "hunter2", "a": 1}', f'{{"api_key": {HIDDEN}, "a": 1}}'),
        ("curl --token hunter2 -v", f"curl --token {HIDDEN} -v"),
        ("--password=hunter2", f"--password={HIDDEN}"),
        ("Authorization: Bearer hunter2", f"Authorization: Bearer {HIDDEN}"),
        ("Authorization: Basic aHVudGVyMg==", f"Authorization: Basic {HIDDEN}"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----", HIDDEN),
        ("-----BEGIN PRIVATE KEY-----\nhunter2 and cut off", HIDDEN),
    ],
)
def test_what_has_the_form_of_a_secret_is_hidden(text: str, kept: str) -> None:
    assert scrub(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "Permission denied (publickey,password).",
        "the password prompt never came",
        "ssh://alice@head-1:22",
        "driver 570.195.03 -> 580.95.05",
        'drained by root: "ECC errors"',
        "http://packages.example:8080/deb",
        "fleetctl:r-20261130-a7:5f0c93d1 driver",
    ],
)
def test_what_people_need_to_read_stays(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    "piece",
    [
        "x",
        "password",
        "password=",
        'token="',
        "token='",
        "--",
        "--a ",
        "://",
        "a://b:",
        "a:@",
        "authorization: ",
        " ",
        "=",
        "authorization ",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "://" + "y" * 30,
    ],
)
def test_a_line_of_any_length_is_scrubbed_in_time_that_grows_no_faster(piece: str) -> None:
    text = piece * (400_000 // len(piece))
    begun_at = time.process_time()
    scrub(text)
    assert time.process_time() - begun_at < 2  # a search that looks back takes minutes


def test_names_decide_in_data_whatever_the_value_is() -> None:
    data = {"token": {"value": "x", "list": ["y", 5, None, True]}, "other": "kept", "at": str(NOW)}
    assert scrub_data(data) == {
        "token": {"value": HIDDEN, "list": [HIDDEN, HIDDEN, None, True]},
        "other": "kept",
        "at": str(NOW),
    }


def test_scrubbing_keeps_an_ordinary_event_as_it_is(tmp_path: Path) -> None:
    log = RolloutLog(log_path(tmp_path, ROLLOUT), lambda: 1)
    log([Emptied(NOW, "gpu001")])
    assert entries(log.path) == [
        {"seq": 1, "kind": "emptied", "version": 1, "at": "2026-11-30T02:10:00.000000+00:00", "node": "gpu001"}
    ]


def opened_with(overrides: dict[str, Any]) -> Opened:
    return dataclasses.replace(opened(), overrides=overrides, summary=f"with {CANARY}")
