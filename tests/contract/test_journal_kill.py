"""A controller is killed at random moments: whatever its journal acknowledged is there, whole and in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

from fleetctl.errors import SelectionError
from fleetctl.model.rollout import Act, Event, Intended, Intent, Opened, Resumed
from fleetctl.store.database import Database, default_url, open_database
from fleetctl.store.journal import Journal, read_events, verify
from fleetctl.store.lock import acquire

pytestmark = pytest.mark.contract

KILLS = 20
KILLS_WHILE_STARTING = 5  # some of these before the database exists
ROLLOUT = "r-20261130-a7"
NOW = datetime(2026, 11, 30, 2, 10, tzinfo=UTC)


def intended(number: int, last_of_group: int) -> Intended:
    return Intended(NOW, Intent(number, "gpu001", Act.CHECK, why=f"{last_of_group} {'x' * (number % 997)}"))


def append_until_killed(directory: Path, acknowledge: IO[str]) -> None:
    """The child: opens or resumes the rollout and appends groups of one to seven, each number in its own event.

    Prints the journal's length after every append that returned.
    """
    database = open_database(default_url(directory))
    claim = acquire(database, "lab", ROLLOUT, NOW)
    journal = Journal(database, claim)
    first: Event = Resumed(NOW, str(claim.controller), claim.epoch)
    if journal.length == 0:
        first = Opened(NOW, ROLLOUT, "lab", ("driver",), ("gpu001",), "alice@ctl-1", "ctl-1", "5f0c93d1")
    journal.append([first])
    dice = random.Random(os.getpid())
    while True:
        print(journal.length, file=acknowledge, flush=True)
        last = journal.length + dice.randint(1, 7)
        journal.append([intended(number, last) for number in range(journal.length + 1, last + 1)])


def test_no_acknowledged_event_is_lost_to_a_kill_and_none_is_half_written(tmp_path: Path) -> None:
    dice = random.Random()
    acknowledged = 0
    for kill in range(KILLS):
        is_early = kill < KILLS_WHILE_STARTING
        delay_s = dice.uniform(0.1, 1.5) if is_early else dice.uniform(0, 0.5)
        killed = run_and_kill(tmp_path, delay_s, is_early=is_early)
        if killed:
            assert killed[0] > acknowledged, "the child went on from a journal that had lost its end"
            acknowledged = killed[-1]
        check(tmp_path, acknowledged, f"kill {kill} after {delay_s:.3f} s")


def run_and_kill(directory: Path, delay_s: float, *, is_early: bool) -> list[int]:
    """What the child acknowledged before it was killed: some time after its start, or after its first append."""
    argv = [sys.executable, "-m", "tests.contract.test_journal_kill", str(directory)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = "" if is_early else child.stdout.readline()
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        lines = (first + child.stdout.read()).split("\n")
        assert child.wait() == -signal.SIGKILL, "the child ended by itself"
    return [int(line) for line in lines[:-1]]  # the last is empty, or half a line


def check(directory: Path, acknowledged: int, when: str) -> None:
    """The journal is whole, and holds every event that was acknowledged, in groups that are complete."""
    database: Database = open_database(default_url(directory))
    try:
        chain = verify(database, ROLLOUT)
    except SelectionError:
        assert acknowledged == 0, when
        return
    events = list(read_events(database, ROLLOUT))
    database.close()
    assert chain.broken_at is None, f"{when}: {chain.reason}"
    assert chain.length == len(events) >= acknowledged, when
    for number, event in enumerate(events, 1):
        if number == 1:
            assert isinstance(event, Opened), when
        elif not isinstance(event, Resumed):
            assert isinstance(event, Intended), when
            last_of_group = int(event.intent.why.split()[0])
            assert event == intended(number, last_of_group), when
            assert last_of_group <= chain.length, f"{when}: half a group"


if __name__ == "__main__":
    append_until_killed(Path(sys.argv[1]), sys.stdout)
