"""Commands on one node over SSH (asyncssh): strict host keys, deadlines, and failures as data.

Every command has a connection of its own: a login costs the controller a few milliseconds, and a connection that is
kept may still answer for a machine that has gone down. Only jump hosts are shared, because their sshd limits how many
logins may be under way at once (MaxStartups).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fleetctl.adapters.ssh_target import Route, login_to, read_hop, read_route
from fleetctl.model.fleet import Connection, Node
from fleetctl.model.reading import Reading, unknown, value_of

if TYPE_CHECKING:
    import asyncssh

FailureKind = Literal["refused", "timeout", "host_key", "auth", "shell", "lost"]


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran to its end; `returncode` is negative for a signal."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """The last line that it said, stderr first."""
        for said in (self.stderr, self.stdout):
            if lines := said.decode(errors="replace").strip().splitlines():
                return lines[-1].strip()
        return f"exit {self.returncode} without a word"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a command did not run to its end.

    refused   no such name, no route, or nobody listens
    timeout   no answer within the limit, or the command did not end within its deadline
    host_key  the host's key is not in known_hosts, or is another one
    auth      none of our keys is accepted, or a key can't be read
    shell     we are let in but the command can't be started (nologin, forced command), or it said too much
    lost      the connection broke
    """

    kind: FailureKind
    detail: str
    begun: bool = False
    """True if the node's shell had started the command."""

    def __str__(self) -> str:
        return f"ssh: {self.kind}: {self.detail}"


class Ssh:
    """Runs commands on nodes; at most `connections_at_once` at a time."""

    def __init__(
        self,
        *,
        connections_at_once: int = 64,
        connect_timeout_s: float = 10,
        keepalive_s: float = 15,
    ) -> None:
        self._slots = asyncio.Semaphore(connections_at_once)
        self._connect_timeout_s = connect_timeout_s
        self._keepalive_s = keepalive_s
        self._routes: dict[Connection, Route] = {}
        self._known_hosts: dict[tuple[str, ...], tuple[tuple[int, ...], asyncssh.SSHKnownHosts]] = {}
        self._jump_hosts: dict[str, asyncssh.SSHClientConnection] = {}
        self._jump_locks: dict[str, asyncio.Lock] = {}

    async def run(
        self,
        node: Node,
        argv: Sequence[str],
        stdin: bytes = b"",
        deadline_s: float = 30,
        stdout_limit_bytes: int = 8 << 20,
    ) -> Reading[Completed]:
        """Run `argv` on `node`; unknown, with the failure as its reason, unless it ran to its end."""
        outcome = await self.attempt(node, argv, stdin, deadline_s, stdout_limit_bytes)
        return unknown(str(outcome)) if isinstance(outcome, Failure) else value_of(outcome)

    async def attempt(
        self,
        node: Node,
        argv: Sequence[str],
        stdin: bytes = b"",
        deadline_s: float = 30,
        stdout_limit_bytes: int = 8 << 20,
    ) -> Completed | Failure:
        """As `run`, for callers that must tell the failures apart. The deadline counts from the login on."""
        # What a login shell says before our line (banners, profile scripts) is not the command's output.
        mark = secrets.token_hex(16)
        command = f"printf '%s\\n' {mark}; exec {shlex.join(argv)}"
        async with self._slots:
            seen = bytearray()
            try:
                async with self._connected(node.connection) as connection, asyncio.timeout(deadline_s):
                    return await converse(connection, command, mark.encode(), stdin, stdout_limit_bytes, seen)
            except TimeoutError:
                return Failure("timeout", f"{argv[0]} did not end within {deadline_s:g} s", mark.encode() in seen)
            except Unconnected as reason:
                return reason.failure
            except Exception as error:  # noqa: BLE001  # whatever asyncssh says of one node is that node's data
                return failure_of(error, node.connection, begun=mark.encode() in seen)

    async def close(self) -> None:
        """Close the connections to jump hosts."""
        jump_hosts, self._jump_hosts = list(self._jump_hosts.values()), {}
        for connection in jump_hosts:
            await _close(connection)

    @contextlib.asynccontextmanager
    async def _connected(self, target: Connection) -> AsyncIterator[asyncssh.SSHClientConnection]:
        try:
            connection = await self.connect(target)
        except Unconnected:
            raise
        except Exception as error:
            raise Unconnected(failure_of(error, target, begun=False)) from error
        try:
            yield connection
        finally:
            await _close(connection)

    async def connect(self, target: Connection, more_known_hosts: str = "") -> asyncssh.SSHClientConnection:
        """A new connection; what asyncssh raises is for failure_of, what comes from a jump host is Unconnected."""
        import asyncssh

        route = await self._route_to(target)
        tunnel = await self._through(route.hops, target.known_hosts or more_known_hosts) if route.hops else None
        known_hosts = (more_known_hosts, *route.known_hosts) if more_known_hosts else route.known_hosts
        return await asyncssh.connect(
            target.host,
            **login_to(target),
            tunnel=tunnel,
            known_hosts=self._read_known_hosts(known_hosts),
            connect_timeout=self._connect_timeout_s,
            login_timeout=self._connect_timeout_s,
            keepalive_interval=self._keepalive_s,
            keepalive_count_max=3,
        )

    async def _route_to(self, target: Connection) -> Route:
        """What this target and ~/.ssh/config say of jump hosts and known hosts; read once per target."""
        if target not in self._routes:
            self._routes[target] = await asyncio.to_thread(read_route, target)
        return self._routes[target]

    async def _through(self, hops: str, known_hosts: str) -> asyncssh.SSHClientConnection:
        """The connection to the last of the comma-separated jump hosts, opened once and shared.

        A jump host's key may stand in the fleet's own file or in the user's, as with `ssh -F` and both files.
        """
        before, _, last = hops.rpartition(",")
        hop = read_hop(last, before)
        async with self._jump_locks.setdefault(hops, asyncio.Lock()):
            connection = self._jump_hosts.get(hops)
            if connection is None or connection.is_closed():
                try:
                    connection = await self.connect(hop, known_hosts)
                except Unconnected:
                    raise
                except Exception as error:
                    failure = failure_of(error, hop, begun=False)
                    raise Unconnected(Failure(failure.kind, f"jump host {failure.detail}")) from error
                self._jump_hosts[hops] = connection
        return connection

    def _read_known_hosts(self, paths: tuple[str, ...]) -> asyncssh.SSHKnownHosts:
        """The parsed files, read again when one of them changes; a file of 10,000 hosts takes long to parse."""
        import asyncssh

        present = tuple(path for path in paths if Path(path).is_file())
        stamp = tuple(Path(path).stat().st_mtime_ns for path in present)
        known = self._known_hosts.get(present)
        if known is None or known[0] != stamp:
            known = self._known_hosts[present] = (stamp, asyncssh.read_known_hosts(present))
        return known[1]


class Unconnected(Exception):
    """Carries a Failure out of a nest of context managers; no caller of run or attempt sees it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


async def converse(
    connection: asyncssh.SSHClientConnection,
    command: str,
    mark: bytes,
    stdin: bytes,
    stdout_limit_bytes: int,
    seen: bytearray,
) -> Completed | Failure:
    """Run `command`, a line for the shell that prints `mark` first; feed `stdin`, collect what comes after the mark.

    `seen` grows with the output.
    """
    process = await connection.create_process(command, encoding=None)
    with contextlib.suppress(OSError):  # a command that does not read its input is no failure
        process.stdin.write(stdin)
        process.stdin.write_eof()
    stderr = asyncio.create_task(_read_tail(process.stderr))
    try:
        while chunk := await process.stdout.read(65536):
            seen += chunk
            if len(seen) > stdout_limit_bytes:
                return Failure("shell", f"printed more than {stdout_limit_bytes} bytes", begun=True)
        said = await stderr
        await process.wait_closed()
    finally:
        stderr.cancel()
        process.close()  # on a connection that is kept, a session given up must not count any longer
    returncode = process.returncode
    noise, found, stdout = bytes(seen).partition(mark + b"\n")
    if returncode is None:
        return Failure("lost", "the connection ended before the command did", begun=bool(found))
    if not found:
        words = Completed(returncode, noise, said).last_words
        return Failure("shell", f"logged in, but the command was not started: {words}")
    return Completed(returncode, stdout, said)


async def _read_tail(reader: asyncssh.SSHReader[bytes], limit_bytes: int = 64 << 10) -> bytes:
    tail = b""
    while chunk := await reader.read(65536):
        tail = (tail + chunk)[-limit_bytes:]
    return tail


def failure_of(error: BaseException, target: Connection, *, begun: bool) -> Failure:
    """The failure class of what asyncssh or the system raised."""
    import asyncssh

    where = f"{target.host}:{target.port}"
    text = str(error) or type(error).__name__
    match error:
        case TimeoutError():
            return Failure("timeout", f"no answer from {where}", begun)
        case asyncssh.HostKeyNotVerifiable():
            return Failure(
                "host_key", f"the key of {where} is unknown or has changed; see its line in known_hosts", begun
            )
        case asyncssh.PermissionDenied():
            return Failure("auth", f"{where} accepts none of our keys for {target.user or 'this user'}", begun)
        case asyncssh.KeyImportError() | asyncssh.KeyEncryptionError() | PermissionError() | FileNotFoundError():
            return Failure("auth", f"the key {target.identity_file or ''} can't be used: {text}", begun)
        case asyncssh.ChannelOpenError():
            refused = error.code == asyncssh.OPEN_CONNECT_FAILED
            return Failure("refused" if refused else "shell", f"{where}: {error.reason or text}", begun)
        case ConnectionResetError() | BrokenPipeError() | asyncssh.ConnectionLost():
            return Failure("lost", f"{where}: {text}", begun)
        case ConnectionRefusedError():
            return Failure("refused", f"nobody listens at {where}", begun)
        case OSError():
            return Failure("refused", f"{where}: {error.strerror or text}", begun)
        case asyncssh.DisconnectError():
            return Failure("lost", f"{where}: {error.reason or text}", begun)
        case _:
            return Failure("refused", f"{where}: {type(error).__name__}: {text}", begun)


async def _close(connection: asyncssh.SSHClientConnection) -> None:
    connection.close()
    try:
        async with asyncio.timeout(1):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()
