"""The site's own commands, run on the controller for one node: hooks and the power cycle. No shell is involved."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO


class HookNotifier:
    """Runs hooks; what goes wrong in one is told, and stops nothing."""

    def __init__(self, deadline_s: float = 60) -> None:
        self._deadline_s = deadline_s

    async def notify(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        return await run_site_command(command, environment, self._deadline_s) if command else ""


async def run_site_command(command: Sequence[str], environment: Mapping[str, str], deadline_s: float) -> str:
    """Run `command` with `environment` added to ours; why it failed in one line, or an empty text.

    Past the deadline, or when the caller is cancelled, the command is ended with all its children.
    """
    name = command[0]
    # A file, not a pipe: what a hook leaves running in the background may keep its output open.
    with tempfile.TemporaryFile() as output:
        try:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"{name} can't be started: {error}"
        try:
            async with asyncio.timeout(deadline_s):
                code = await child.wait()
        except TimeoutError:
            return f"{name} did not end within {deadline_s:g} s and was stopped"
        finally:
            if child.returncode is None:
                await _end(child)
        words = _last_line(output)
    if code == 0:
        return ""
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"{name} {how}{': ' + words if words else ''}"


def _last_line(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
    lines = output.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""


async def _end(child: asyncio.subprocess.Process) -> None:
    """Ask the command's process group to end; then end it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), 2)
        os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
