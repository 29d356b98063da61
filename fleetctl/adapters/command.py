"""Commands on one machine: here, or over SSH on a head node by one connection that is kept.

`argv` is a list on both ways: here no shell sees it, over SSH every word is quoted for the remote one. A deadline ends
the command here with all its children; over SSH it ends our waiting, and what the command did is not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from fleetctl.adapters.ssh import Completed, Failure, Ssh, Unconnected, converse, failure_of
from fleetctl.model.fleet import Connection
from fleetctl.model.reading import Reading, unknown, value_of

if TYPE_CHECKING:
    import asyncssh

# Ten thousand nodes in JSON are about 30 MB.
_STDOUT_LIMIT_BYTES = 512 << 20


class Command(Protocol):
    """Where commands are run."""

    async def run(self, argv: Sequence[str], deadline_s: float = 30) -> Reading[Completed]:
        """What came of it; unknown, with the reason, unless it ran to its end."""
        ...

    async def close(self) -> None: ...


class LocalCommand:
    """Runs commands on this machine."""

    async def run(self, argv: Sequence[str], deadline_s: float = 30) -> Reading[Completed]:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word
            return unknown(f"{argv[0]} can't be started here: {error}")
        try:
            async with asyncio.timeout(deadline_s):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            return unknown(f"{argv[0]} did not end within {deadline_s:g} s")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return value_of(Completed(process.returncode or 0, stdout, stderr))

    async def close(self) -> None:
        """Nothing is kept open."""


class SshCommand:
    """Runs commands on a head node; logs in once, and again after the connection broke.

    sshd allows ten sessions on a connection (MaxSessions) and frees one a moment after it is over: seen, eight at once
    are sometimes refused. So `at_once` stays well below, and a refused session is asked for again.
    """

    def __init__(self, target: Connection, ssh: Ssh | None = None, at_once: int = 4) -> None:
        self._target = target
        self._ssh = ssh or Ssh()
        self._slots = asyncio.Semaphore(at_once)
        self._lock = asyncio.Lock()
        self._connection: asyncssh.SSHClientConnection | None = None

    async def run(self, argv: Sequence[str], deadline_s: float = 30) -> Reading[Completed]:
        outcome = await self._attempt(argv, deadline_s)
        return unknown(f"{self._target.host}: {outcome}") if isinstance(outcome, Failure) else value_of(outcome)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()
            self._connection = None
        await self._ssh.close()

    async def _attempt(self, argv: Sequence[str], deadline_s: float) -> Completed | Failure:
        mark = secrets.token_hex(16)  # what the login shell says before it is not the command's output
        line = f"printf '%s\\n' {mark}; exec {shlex.join(argv)}"
        seen = bytearray()
        async with self._slots:
            try:
                connection = await self._connected()
                async with asyncio.timeout(deadline_s):
                    return await self._converse(connection, line, mark.encode(), seen)
            except TimeoutError:
                return Failure("timeout", f"{argv[0]} did not end within {deadline_s:g} s", begun=bool(seen))
            except Unconnected as reason:
                return reason.failure
            except Exception as error:  # noqa: BLE001  # whatever asyncssh says is the answer
                return failure_of(error, self._target, begun=bool(seen))

    async def _converse(
        self, connection: asyncssh.SSHClientConnection, line: str, mark: bytes, seen: bytearray
    ) -> Completed | Failure:
        import asyncssh

        while True:
            try:
                return await converse(connection, line, mark, b"", _STDOUT_LIMIT_BYTES, seen)
            except asyncssh.ChannelOpenError:  # no session, so nothing was begun
                if connection.is_closed():
                    raise
                await asyncio.sleep(0.1)

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._lock:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._ssh.connect(self._target)
            return self._connection
