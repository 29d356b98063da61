"""The site's own commands: told in one line when they fail, ended with all their children when they hang."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from fleetctl.adapters.notify import HookNotifier, run_site_command


def run(*command: str, deadline_s: float = 10, **environment: str) -> str:
    return asyncio.run(run_site_command(command, environment, deadline_s))


def test_a_hook_gets_its_environment_and_no_shell(tmp_path: Path) -> None:
    assert run("sh", "-c", f'echo "$FLEETCTL_NODE $1" > {tmp_path}/told', "sh", "$(id)", FLEETCTL_NODE="gpu001") == ""
    assert (tmp_path / "told").read_text() == "gpu001 $(id)\n"


def test_no_hook_is_nothing_to_do() -> None:
    assert asyncio.run(HookNotifier().notify((), {})) == ""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo first; echo no such channel >&2; exit 3", "sh ended with exit code 3: no such channel"),
        ("exit 4", "sh ended with exit code 4"),
        ("kill -9 $$", "sh was ended by signal 9"),
    ],
)
def test_a_hook_that_fails_is_told_in_one_line(script: str, why: str) -> None:
    assert run("sh", "-c", script) == why


def test_a_hook_that_does_not_exist_is_told_too() -> None:
    assert run("/no/such/hook").startswith("/no/such/hook can't be started: ")


def test_a_hook_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    started = time.monotonic()
    why = run("sh", "-c", f"(sleep 1; touch {tmp_path}/late) & trap '' TERM; sleep 30", deadline_s=0.3)
    assert why == "sh did not end within 0.3 s and was stopped"
    assert time.monotonic() - started < 5
    time.sleep(1)
    assert not (tmp_path / "late").exists()


def test_a_hook_may_leave_something_in_the_background(tmp_path: Path) -> None:
    started = time.monotonic()
    assert run("sh", "-c", f"(sleep 0.5; touch {tmp_path}/later) &") == ""
    assert time.monotonic() - started < 0.4
    time.sleep(0.8)
    assert (tmp_path / "later").exists()


def test_a_cancelled_hook_is_ended(tmp_path: Path) -> None:
    async def cancel() -> None:
        running = asyncio.create_task(HookNotifier().notify(["sh", "-c", f"sleep 0.6; touch {tmp_path}/late"], {}))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancel())
    time.sleep(0.8)
    assert not (tmp_path / "late").exists()
