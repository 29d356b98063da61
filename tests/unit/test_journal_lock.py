"""One live controller per site: real processes race for it, die, sleep and wake."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fleetctl.errors import FleetctlError, Refused
from fleetctl.model.rollout import Resumed
from fleetctl.store import liveness
from fleetctl.store.database import Database
from fleetctl.store.journal import Journal, read_events
from fleetctl.store.liveness import Controller, look_at, this_controller
from fleetctl.store.lock import DEAD_AFTER_S, HEARTBEAT_S, acquire, heartbeat, holder_of, release
from tests.unit.journal_parts import NOW, ROLLOUT, abandon, begun, database_in, intended, opened

_SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return database_in(tmp_path)


def elsewhere(controller: Controller) -> Controller:
    """The same, as a machine that we can't look into knows it."""
    return dataclasses.replace(controller, owner="bob@ctl-2", host="ctl-2", machine="another boot pid:[1]")


# --- free, live, dead


def test_a_free_lock_is_given_and_every_change_of_hands_raises_the_epoch(database: Database) -> None:
    assert holder_of(database, "lab", NOW) is None
    first = acquire(database, "lab", ROLLOUT, NOW)
    release(database, first)
    assert holder_of(database, "lab", NOW) is None
    second = acquire(database, "lab", "r-20261130-b8", NOW)
    assert (first.epoch, second.epoch) == (1, 2)


def test_sites_do_not_share_a_lock(database: Database) -> None:
    assert [acquire(database, site, ROLLOUT, NOW).epoch for site in ("lab", "train-a")] == [1, 1]


def test_a_live_controller_is_named_to_whoever_comes_second(database: Database) -> None:
    claim = acquire(database, "lab", ROLLOUT, NOW)
    with pytest.raises(Refused) as refusal:
        acquire(database, "lab", "r-20261130-b8", NOW + timedelta(seconds=3))
    owner, pid = claim.controller.owner, os.getpid()
    assert str(refusal.value) == (
        f"rollout {ROLLOUT} is run by {owner}, pid {pid}, last heartbeat 3 s ago: see `fleetctl rollout status`"
    )


def test_a_process_that_ended_is_followed_at_once(database: Database) -> None:
    child = subprocess.Popen(["sleep", "60"])
    claim = acquire(database, "lab", ROLLOUT, NOW, _controller_of(child.pid))
    with pytest.raises(Refused):
        acquire(database, "lab", ROLLOUT, NOW)
    child.kill()
    _until(lambda: look_at(claim.controller) == "gone")  # a zombie is gone as well: nobody has waited for it
    assert acquire(database, "lab", ROLLOUT, NOW).epoch == 2
    child.wait()
    assert look_at(claim.controller) == "gone"


def test_a_pid_that_was_given_to_another_process_is_not_the_controller(database: Database) -> None:
    abandon(database, acquire(database, "lab", ROLLOUT, NOW))
    holder = holder_of(database, "lab", NOW)
    assert holder is not None
    assert holder.condition == "dead"
    assert acquire(database, "lab", ROLLOUT, NOW).epoch == 2


@pytest.mark.parametrize(("silence_s", "is_refused"), [(DEAD_AFTER_S, True), (DEAD_AFTER_S + 1, False), (-5, True)])
def test_a_controller_on_another_machine_is_judged_by_its_heartbeat(
    database: Database, silence_s: float, is_refused: bool
) -> None:
    acquire(database, "lab", ROLLOUT, NOW, elsewhere(this_controller()))
    later = NOW + timedelta(seconds=silence_s)
    if is_refused:
        with pytest.raises(Refused, match="is run by bob@ctl-2"):
            acquire(database, "lab", ROLLOUT, later)
    else:
        assert acquire(database, "lab", ROLLOUT, later).epoch == 2


def test_a_heartbeat_keeps_a_controller_on_another_machine_alive(database: Database) -> None:
    claim = acquire(database, "lab", ROLLOUT, NOW, elsewhere(this_controller()))
    heartbeat(database, claim, NOW + timedelta(seconds=DEAD_AFTER_S))
    with pytest.raises(Refused, match=f"last heartbeat {HEARTBEAT_S} s ago"):
        acquire(database, "lab", ROLLOUT, NOW + timedelta(seconds=DEAD_AFTER_S + HEARTBEAT_S))


def test_a_controller_that_hangs_on_this_machine_is_followed_only_by_force(database: Database) -> None:
    acquire(database, "lab", ROLLOUT, NOW)
    later = NOW + timedelta(hours=2)
    with pytest.raises(Refused, match="and hangs: last heartbeat 7200 s ago: end it, or take over with --force"):
        acquire(database, "lab", ROLLOUT, later)
    assert acquire(database, "lab", ROLLOUT, later, force=True).epoch == 2


def test_a_process_that_proc_hides_counts_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """hidepid hides the processes of others: their start time can't be compared, so nobody may call them dead."""
    monkeypatch.setattr(liveness, "_read_stat", lambda _pid: None)
    assert look_at(_controller_like(pid=os.getppid())) == "running"


def test_the_start_time_is_read_though_the_command_holds_brackets_and_blanks(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as child:
        try:
            _until(lambda: _state(child.pid) == "S")
            controller = _controller_of(child.pid)
            assert look_at(controller) == "running"
            age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - controller.started_ticks / os.sysconf("SC_CLK_TCK")
            assert 0 <= age_s + 0.02 < 15
        finally:
            child.kill()


# --- after a change of hands


def test_the_heartbeat_of_one_that_was_followed_tells_by_whom(database: Database) -> None:
    old = abandon(database, acquire(database, "lab", ROLLOUT, NOW))
    acquire(database, "lab", ROLLOUT, NOW)
    with pytest.raises(Refused, match=f"taken over by .*, pid {os.getpid()}"):
        heartbeat(database, old, NOW)


def test_one_that_was_followed_is_told_by_whom_also_when_that_one_is_done(database: Database) -> None:
    old = abandon(database, acquire(database, "lab", ROLLOUT, NOW))
    release(database, acquire(database, "lab", ROLLOUT, NOW))
    with pytest.raises(Refused, match=f"taken over by .*, pid {os.getpid()}"):
        heartbeat(database, old, NOW)


def test_one_that_gave_up_its_lock_may_not_write_either(database: Database) -> None:
    claim = acquire(database, "lab", ROLLOUT, NOW)
    release(database, claim)
    with pytest.raises(Refused, match="not run by us any more"):
        heartbeat(database, claim, NOW)


def test_the_release_of_one_that_was_followed_changes_nothing(database: Database) -> None:
    old = acquire(database, "lab", ROLLOUT, NOW)
    new = acquire(database, "lab", ROLLOUT, NOW, force=True)
    release(database, old)
    holder = holder_of(database, "lab", NOW)
    assert holder is not None
    assert holder.claim == new


def test_a_controller_that_slept_through_a_take_over_wakes_and_writes_nothing(
    database: Database, tmp_path: Path
) -> None:
    ours, theirs = _SPAWN.Pipe()
    sleeper = _SPAWN.Process(target=_append_at_every_word, args=(tmp_path, theirs))
    sleeper.start()
    try:
        assert ours.poll(30)
        assert ours.recv() == "begun"
        assert sleeper.pid is not None
        os.kill(sleeper.pid, signal.SIGSTOP)
        _until(lambda: _state(sleeper.pid or 0) == "T")
        with pytest.raises(Refused, match=f"pid {sleeper.pid}, which is stopped .*take over with --force"):
            acquire(database, "lab", ROLLOUT, NOW + timedelta(hours=9))
        new = Journal(database, acquire(database, "lab", ROLLOUT, NOW, force=True))
        new.append([Resumed(NOW, "new", new.claim.epoch)])
        ours.send("append")
        os.kill(sleeper.pid, signal.SIGCONT)
        assert ours.poll(30)
        said = ours.recv()
    finally:
        sleeper.kill()
        sleeper.join()
    assert f"taken over by {new.claim.controller.owner}, pid {os.getpid()}" in said
    assert list(read_events(database, ROLLOUT)) == [opened(), Resumed(NOW, "new", 2)]


# --- races


def test_of_many_processes_at_once_exactly_one_gets_the_lock_and_its_death_frees_it(tmp_path: Path) -> None:
    """Six processes; the winner of each round is killed, and the others race again at once."""
    database_in(tmp_path)
    racers = [_Racer(tmp_path) for _ in range(6)]
    epochs = []
    try:
        for racer in racers:
            assert racer.answer() == "ready"
        while len(racers) > 1:
            for racer in racers:
                racer.pipe.send("go")
            answers = [(racer, racer.answer()) for racer in racers]
            winners = [(racer, answer) for racer, answer in answers if isinstance(answer, int)]
            assert len(winners) == 1, answers
            ((winner, epoch),) = winners
            epochs.append(epoch)
            for racer, answer in answers:
                assert racer is winner or f"pid {winner.process.pid}," in str(answer)
            winner.end()
            racers.remove(winner)
    finally:
        for racer in racers:
            racer.end()
    assert epochs == [1, 2, 3, 4, 5]


class _Racer:
    """A process that tries for the lock each time it is told to."""

    def __init__(self, directory: Path) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_try_at_every_word, args=(directory, theirs))
        self.process.start()

    def answer(self) -> object:
        assert self.pipe.poll(60)
        return self.pipe.recv()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _try_at_every_word(directory: Path, pipe: Connection) -> None:
    database = database_in(directory)
    pipe.send("ready")
    while pipe.recv():
        try:
            pipe.send(acquire(database, "lab", ROLLOUT, NOW).epoch)
        except FleetctlError as error:
            pipe.send(str(error))


def _append_at_every_word(directory: Path, pipe: Connection) -> None:
    journal = begun(database_in(directory))
    pipe.send("begun")
    pipe.recv()
    try:
        journal.append([intended(1)])
        pipe.send("written")
    except Refused as error:
        pipe.send(str(error))


def _controller_of(pid: int) -> Controller:
    seen = liveness._read_stat(pid)
    assert seen is not None
    return dataclasses.replace(this_controller(), pid=pid, started_ticks=seen[1])


def _controller_like(pid: int) -> Controller:
    return Controller("a@b", "b", this_controller().machine, pid, 1)


def _state(pid: int) -> str:
    seen = liveness._read_stat(pid)
    return seen[0] if seen else ""


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline, "waited 10 s in vain"
        time.sleep(0.01)
