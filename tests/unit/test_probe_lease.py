"""The lease on a node, run for real: processes that race, die and wait, in a directory of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.python_3_6 import PYTHON_3_6

LEASE = Path(__file__).parents[2] / "fleetctl" / "probe" / "lease.py"
PYTHON = PYTHON_3_6 or sys.executable

OK, FOREIGN, NOT_RUN, BUSY, DAMAGED = 0, 96, 97, 98, 99


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "fleetctl"


class Node:
    """The lease program on one node, under the oldest Python at hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def argv(self, *words: str, wait_s: float = 5) -> list[str]:
        return [PYTHON, str(LEASE), "--directory", str(self.directory), "--wait-s", str(wait_s), *words]

    def ask(self, *words: str, wait_s: float = 5) -> tuple[int, dict[str, Any]]:
        said = subprocess.run(self.argv(*words, wait_s=wait_s), capture_output=True, text=True, timeout=60, check=False)
        lines = (said.stdout + said.stderr).splitlines()
        return said.returncode, json.loads(lines[-1]) if lines else {}

    def stored(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "lease.json").read_text())
        return found

    def start(self, *command: str, epoch: str = "1") -> subprocess.Popen[bytes]:
        argv = self.argv("exec", "r-1", epoch, "--", *command)
        nothing = subprocess.DEVNULL
        return subprocess.Popen(argv, stdin=nothing, stdout=nothing, stderr=nothing)


@pytest.fixture
def node(directory: Path) -> Iterator[Node]:
    yield Node(directory)
    # What a test left running would hold its lock for ever.
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in words:
            os.kill(int(process.name), signal.SIGKILL)


def wait_for(condition: Callable[[], bool], at_most_s: float = 10) -> None:
    until = time.monotonic() + at_most_s
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


def test_a_lease_is_taken_shown_checked_and_released(node: Node) -> None:
    assert node.ask("show") == (OK, {"lease": None})
    code, said = node.ask("take", "r-1", "head:1", "1", "n1")
    assert (code, said["lease"]) == (OK, node.stored())
    assert node.stored() == {"rollout": "r-1", "controller": "head:1", "epoch": 1, "nonce": "n1"}
    assert node.ask("show")[1] == {"lease": node.stored()}
    assert node.ask("check", "r-1", "1")[0] == OK
    assert node.ask("check", "r-1", "2")[0] == FOREIGN
    assert node.ask("release", "r-1", "head:1", "1", "n1")[0] == OK
    assert not (node.directory / "lease.json").exists()
    assert node.ask("release", "r-1", "head:1", "1", "n1")[0] == OK, "released already is as good"


def test_modes_keep_others_from_writing_and_from_holding_the_lock(node: Node) -> None:
    node.ask("take", "r-1", "c", "1", "n")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [node.directory, *node.directory.iterdir()]}
    assert modes == {"fleetctl": 0o755, "lease.json": 0o644, "lease.lock": 0o600, "lease.mutex": 0o600}


def test_another_rollout_is_refused_by_the_lease_that_is_there(node: Node) -> None:
    node.ask("take", "r-1", "c1", "1", "n1")
    code, said = node.ask("take", "r-2", "c2", "9", "n2")
    assert code == FOREIGN
    assert said["lease"] == node.stored()
    assert node.stored()["rollout"] == "r-1"
    assert node.ask("release", "r-2", "c2", "9", "n2")[0] == FOREIGN
    assert node.stored()["rollout"] == "r-1"


def test_a_rollout_of_the_same_name_from_another_journal_is_another_rollout(node: Node) -> None:
    node.ask("take", "r-1", "c1", "1", "n1")
    assert node.ask("take", "r-1", "c2", "2", "n2")[0] == FOREIGN
    assert node.stored()["nonce"] == "n1"


def test_the_epoch_is_raised_and_never_lowered(node: Node) -> None:
    node.ask("take", "r-1", "c1", "1", "n")
    assert node.ask("take", "r-1", "c2", "3", "n")[0] == OK
    assert node.stored()["epoch"] == 3
    assert node.ask("take", "r-1", "c1", "2", "n")[0] == FOREIGN
    assert node.ask("take", "r-1", "c1", "3", "n")[0] == FOREIGN, "one epoch has one controller"
    assert node.ask("take", "r-1", "c2", "3", "n")[0] == OK, "asking again changes nothing"
    assert node.stored() == {"rollout": "r-1", "controller": "c2", "epoch": 3, "nonce": "n"}
    assert node.ask("release", "r-1", "c1", "1", "n")[0] == FOREIGN
    assert node.ask("release", "r-1", "c1", "3", "n")[0] == FOREIGN


def test_a_successor_takes_off_the_lease_that_a_dead_controller_of_its_rollout_left(node: Node) -> None:
    node.ask("take", "r-1", "c1", "3", "n")
    assert node.ask("release", "r-1", "c0", "2", "n")[0] == FOREIGN, "an earlier controller"
    assert node.ask("release", "r-2", "c2", "4", "m")[0] == FOREIGN, "another rollout"
    assert node.ask("release", "r-1", "c2", "4", "m")[0] == FOREIGN, "one of the same name, in another journal"
    assert node.stored()["epoch"] == 3
    assert node.ask("release", "r-1", "c2", "4", "n") == (OK, {"lease": None})
    assert not (node.directory / "lease.json").exists()


def test_of_many_that_take_at_once_exactly_one_gets_it(node: Node) -> None:
    racers = [
        subprocess.Popen(node.argv("take", f"r-{number}", "c", "1", "n"), stdout=subprocess.PIPE) for number in range(8)
    ]
    codes = {number: racer.wait(timeout=60) for number, racer in enumerate(racers)}
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.close()
    (winner,) = [number for number, code in codes.items() if code == OK]
    assert {code for number, code in codes.items() if number != winner} == {FOREIGN}
    assert node.stored()["rollout"] == f"r-{winner}"


def test_a_guarded_command_gets_input_output_and_exit_code_of_its_own(node: Node) -> None:
    node.ask("take", "r-1", "c", "1", "n")
    argv = node.argv("exec", "r-1", "1", "--", "sh", "-c", 'cat; echo "$1" >&2; exit 7', "x", "two  words; $HOME")
    said = subprocess.run(argv, input="from stdin\n", capture_output=True, text=True, timeout=30, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (7, "from stdin\n", "two  words; $HOME\n")


@pytest.mark.parametrize(("command", "code"), [("kill -9 $$", 137), ("exit 0", 0), ("exit 97", 97)])
def test_how_the_command_ended_is_told(node: Node, command: str, code: int) -> None:
    node.ask("take", "r-1", "c", "1", "n")
    assert node.ask("exec", "r-1", "1", "--", "sh", "-c", command)[0] == code


def test_a_command_that_does_not_exist_says_so(node: Node) -> None:
    node.ask("take", "r-1", "c", "1", "n")
    argv = node.argv("exec", "r-1", "1", "--", "/nowhere/prog")
    said = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert (said.returncode, "/nowhere/prog" in said.stderr) == (127, True)


@pytest.mark.parametrize(
    ("rollout", "epoch"), [("r-1", "1"), ("r-1", "3"), ("r-2", "2")], ids=["stale", "not yet", "another rollout"]
)
def test_without_the_present_lease_nothing_is_run(node: Node, tmp_path: Path, rollout: str, epoch: str) -> None:
    node.ask("take", "r-1", "c", "2", "n")
    code, said = node.ask("exec", rollout, epoch, "--", "touch", str(tmp_path / "ran"))
    assert code == NOT_RUN
    assert said["lease"]["epoch"] == 2
    assert not (tmp_path / "ran").exists()


def test_without_any_lease_nothing_is_run(node: Node, tmp_path: Path) -> None:
    node.ask("install")
    assert node.ask("exec", "r-1", "1", "--", "touch", str(tmp_path / "ran"))[0] == NOT_RUN
    assert not (tmp_path / "ran").exists()


def test_a_take_over_waits_for_a_running_command_and_lets_no_new_one_of_the_old_epoch_begin(
    node: Node, tmp_path: Path
) -> None:
    node.ask("take", "r-1", "old", "1", "n")
    go = tmp_path / "go"
    running = node.start("sh", "-c", f"touch {tmp_path}/begun; while [ ! -e {go} ]; do sleep 0.05; done")
    wait_for((tmp_path / "begun").exists)
    taking = subprocess.Popen(node.argv("take", "r-1", "new", "2", "n", wait_s=30), stdout=subprocess.PIPE)
    wait_for(lambda: node.stored()["epoch"] == 2)
    assert node.ask("exec", "r-1", "1", "--", "true")[0] == NOT_RUN
    assert taking.poll() is None, "the take-over is not done while the old command runs"
    go.touch()
    assert running.wait(timeout=10) == 0
    assert taking.wait(timeout=10) == OK
    taking.communicate()
    assert node.ask("exec", "r-1", "2", "--", "true")[0] == OK


def test_a_take_over_that_waited_long_enough_says_busy_and_may_be_asked_again(node: Node) -> None:
    node.ask("take", "r-1", "old", "1", "n")
    running = node.start("sleep", "600")
    time.sleep(0.3)
    code, said = node.ask("take", "r-1", "new", "2", "n", wait_s=0.5)
    assert code == BUSY
    assert said["holders"]
    running.terminate()
    assert running.wait(timeout=10) == 128 + signal.SIGTERM
    assert node.ask("take", "r-1", "new", "2", "n")[0] == OK


def test_orphans_of_a_command_keep_the_lease_but_not_the_caller(node: Node, tmp_path: Path) -> None:
    """As dpkg under an apt that was killed, and through a program that closes descriptors that it does not know."""
    node.ask("take", "r-1", "old", "1", "n")
    go = tmp_path / "go"
    child = f"exec >/dev/null 2>&1; while [ ! -e {go} ]; do sleep 0.05; done"
    closing = f"import os, subprocess; os.closerange(3, 256); subprocess.Popen(['setsid', 'sh', '-c', {child!r}])"
    started = time.monotonic()
    assert node.ask("exec", "r-1", "1", "--", sys.executable, "-c", closing)[0] == OK
    assert time.monotonic() - started < 5, "the caller goes on when its command has ended"
    assert node.ask("take", "r-1", "new", "2", "n", wait_s=0.5)[0] == BUSY
    go.touch()
    assert node.ask("take", "r-1", "new", "2", "n", wait_s=10)[0] == OK


def test_a_daemon_that_package_managers_leave_behind_holds_nothing(node: Node, tmp_path: Path) -> None:
    node.ask("take", "r-1", "old", "1", "n")
    agent = tmp_path / "gpg-agent"
    shutil.copy("/bin/sleep", agent)
    leave = f"{agent} 60 >/dev/null 2>&1 & echo $! > {tmp_path}/pid"
    assert node.ask("exec", "r-1", "1", "--", "sh", "-c", leave)[0] == OK
    assert node.ask("take", "r-1", "new", "2", "n", wait_s=5)[0] == OK
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_caller_that_was_killed_leaves_the_command_running_under_the_lease(node: Node, tmp_path: Path) -> None:
    node.ask("take", "r-1", "old", "1", "n")
    running = node.start("sh", "-c", f"touch {tmp_path}/begun; sleep 1.5; touch {tmp_path}/finished")
    wait_for((tmp_path / "begun").exists)
    running.kill()
    running.wait()
    assert node.ask("take", "r-1", "new", "2", "n", wait_s=0.3)[0] == BUSY
    assert node.ask("take", "r-1", "new", "2", "n", wait_s=10)[0] == OK
    assert (tmp_path / "finished").exists()


def test_a_damaged_lease_is_never_overwritten(node: Node) -> None:
    node.ask("take", "r-1", "c", "1", "n")
    (node.directory / "lease.json").write_text('{"rollout": "r-1", "contr')
    for words in (("take", "r-1", "c", "2", "n"), ("release", "r-1", "c", "1", "n"), ("check", "r-1", "1"), ("show",)):
        assert node.ask(*words)[0] == DAMAGED
    assert node.ask("exec", "r-1", "1", "--", "true")[0] == DAMAGED
    assert (node.directory / "lease.json").read_text() == '{"rollout": "r-1", "contr'


# Runs lease.py and kills itself before the n-th call that touches a file.
KILLER = """
import os, signal, sys
left = int(sys.argv.pop(1))
def deadly(call):
    def wrapped(*words, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*words, **named)
    return wrapped
for name in ("open", "close", "unlink", "link", "rename", "fsync", "fchmod", "fdopen", "listdir"):
    setattr(os, name, deadly(getattr(os, name)))
sys.argv[0] = %r
exec(compile(open(%r).read(), "lease.py", "exec"))
"""


@pytest.mark.parametrize("first", [True, False], ids=["the first take", "a take-over"])
def test_killed_before_any_step_it_leaves_a_whole_lease_or_the_one_before(node: Node, first: bool) -> None:
    whole = {"rollout": "r-1", "controller": "c", "nonce": "n"}
    seen = set()
    for step in range(1, 100):
        shutil.rmtree(node.directory, ignore_errors=True)
        if not first:
            node.ask("take", "r-1", "c", "1", "n")
        words = node.argv("take", "r-1", "c", "2", "n")
        killed = [PYTHON, "-c", KILLER % (str(LEASE), str(LEASE)), str(step), *words[2:]]
        code = subprocess.run(killed, stdout=subprocess.DEVNULL, timeout=30, check=False).returncode
        stands = node.stored() if (node.directory / "lease.json").exists() else None
        assert stands in ([None] if first else [{**whole, "epoch": 1}]) + [{**whole, "epoch": 2}]
        seen.add(None if stands is None else stands["epoch"])
        assert node.ask("take", "r-1", "c", "3", "n")[0] == OK, "the next take is not in its way"
        litter = [path.name for path in node.directory.iterdir() if path.name.startswith(".")]
        assert litter == []
        if code == OK:
            break
        assert code == -signal.SIGKILL
    else:
        raise AssertionError("the program never came to its end")
    assert seen == ({None, 2} if first else {1, 2})
    assert step > 8


def test_it_installs_itself_when_it_comes_over_standard_input(node: Node) -> None:
    text = LEASE.read_text()
    source = f"SOURCE = {text!r}\n{text}"
    argv = [PYTHON, "-", "--directory", str(node.directory), "take", "--install", "r-1", "c", "1", "n"]
    said = subprocess.run(argv, input=source, capture_output=True, text=True, timeout=30, check=False)
    assert said.returncode == OK, said.stderr
    installed = node.directory / "lease.py"
    assert installed.read_text() == text
    assert stat.S_IMODE(installed.stat().st_mode) == 0o755
    before = installed.stat().st_ino
    subprocess.run(argv, input=source, capture_output=True, text=True, timeout=30, check=True)
    assert installed.stat().st_ino == before, "the same text is not written again"
    words = [
        PYTHON,
        str(installed),
        "--directory",
        str(node.directory),
        "exec",
        "r-1",
        "1",
        "--",
        "echo",
        "-n",
        "--",
        "a",
    ]
    assert subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout == "-- a"


@pytest.mark.parametrize("words", [(), ("exec", "r-1", "1"), ("exec", "r-1", "1", "--")])
def test_wrong_usage_is_told_from_a_refusal(node: Node, words: tuple[str, ...]) -> None:
    assert subprocess.run(node.argv(*words), capture_output=True, timeout=30, check=False).returncode == 2


def test_what_can_not_be_written_is_an_error_and_not_a_lease(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    node = Node(tmp_path / "file" / "below")
    code, said = node.ask("take", "r-1", "c", "1", "n")
    assert code == 70
    assert "error" in said
