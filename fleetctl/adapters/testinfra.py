"""Verifies nodes by their roles' testinfra checks: nodes that are ready together share a run, each has its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fleetctl
from fleetctl.adapters.ansible_reason import one_line
from fleetctl.adapters.quiet import end_everything_of
from fleetctl.adapters.ssh import Completed, Ssh
from fleetctl.adapters.ssh_target import ssh_config
from fleetctl.model.fleet import Json, Node
from fleetctl.model.secret import is_secret_name, scrub, secrets_in
from fleetctl.ports import Verdict

WINDOW_S = 0.5
NODES_PER_RUN = 64
_HARDWARE = "hardware: "
_PLUGINS = ("testinfra.plugin", "fleetctl.adapters.testinfra_plugin", "fleetctl.adapters.testinfra_report")


class TestinfraVerifier:
    """ports.Verifier. `roles` gives the role of each component; one without a verify file never passes."""

    __test__ = False  # a name that pytest would collect

    def __init__(self, ssh: Ssh, roles_path: Sequence[Path], roles: Mapping[str, str], deadline_s: float = 900) -> None:
        self._ssh = ssh
        self._verify_files = {component: _verify_files(role, roles_path) for component, role in roles.items()}
        self._deadline_s = deadline_s
        self._waiting: dict[tuple[tuple[str, ...], bool], _Batch] = {}
        self._runs: set[asyncio.Task[None]] = set()

    async def verify(
        self, node: Node, components: Sequence[str], overrides: Mapping[str, Json], passive: bool
    ) -> Verdict:
        bare = [name for name in components if not self._verify_files.get(name)]
        if bare or not components:
            return Verdict(unknown=f"there is no check for {', '.join(bare) or 'nothing'}")
        unreachable = await self._unreachable(node)
        if unreachable:
            return Verdict(unknown=unreachable)
        member = _Member(node, {**node.variables, **overrides}, asyncio.get_running_loop().create_future())
        self._join((tuple(components), passive), member)
        try:
            await member.answer
        except asyncio.CancelledError:
            member.end()
            raise
        # A connection that broke looks like a failed check; nvidia-smi's own 255 looks like a broken connection.
        if member.lost and (unreachable := await self._unreachable(node)):
            return Verdict(unknown=unreachable)
        return member.verdict()

    async def _unreachable(self, node: Node) -> str:
        """Why no check could be run on the node, whatever its state; empty if they can."""
        said = await self._ssh.attempt(node, ["sudo", "-n", "true"], deadline_s=20)
        if not isinstance(said, Completed):
            return f"unreachable: {said}"
        return "" if said.returncode == 0 else f"no sudo on the node: {said.last_words}"

    def _join(self, key: tuple[tuple[str, ...], bool], member: _Member) -> None:
        batch = self._waiting.get(key)
        if batch is None or member.node.name in batch.members or len(batch.members) >= NODES_PER_RUN:
            batch = self._waiting[key] = _Batch(*key)
            asyncio.get_running_loop().call_later(WINDOW_S, self._launch, key, batch)
        batch.members[member.node.name] = member

    def _launch(self, key: tuple[tuple[str, ...], bool], batch: _Batch) -> None:
        if self._waiting.get(key) is batch:
            del self._waiting[key]
        batch.members = {name: member for name, member in batch.members.items() if not member.answer.done()}
        if not batch.members:
            return
        files = dict.fromkeys(path for component in batch.components for path in self._verify_files[component])
        run = asyncio.create_task(_run(batch, files, self._deadline_s))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)


def _verify_files(role: str, roles_path: Sequence[Path]) -> tuple[Path, ...]:
    """Of the first directory that has the role, as Ansible would take it."""
    found = next((path / role for path in roles_path if (path / role).is_dir()), None)
    return tuple(sorted((found / "verify").glob("test_*.py"))) if found else ()


@dataclass(slots=True, eq=False)
class _Member:
    """One node's checks: which there are, how each ended, and what went wrong around them."""

    node: Node
    declared: Mapping[str, Json]
    answer: asyncio.Future[None]
    expected: tuple[str, ...] = ()
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    lost: bool = False
    pid: int = 0
    trouble: str = ""

    def fold(self, line: Mapping[str, Any]) -> None:
        if "checks" in line:
            self.expected = tuple(line["checks"])
        elif "pid" in line:
            self.pid = line["pid"]
        elif "check" in line:
            self.outcomes[line["check"]] = (line["outcome"], line["text"])
            self.lost |= line["lost"]
        elif "ended" in line:
            self.pid = 0
            self.close("" if line["ended"] == 0 else f"the checks were ended ({line['ended']})")

    def close(self, trouble: str) -> None:
        """No more will come."""
        if not self.answer.done():
            self.trouble = trouble
            self.answer.set_result(None)

    def end(self) -> None:
        """Kill the checks of this node alone."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def verdict(self) -> Verdict:
        secrets = secrets_in(self.declared)

        def named(wanted: str) -> tuple[str, ...]:
            ended = ((check, text) for check, (outcome, text) in self.outcomes.items() if outcome == wanted)
            return tuple(scrub(one_line(_sentence(check, text)), secrets) for check, text in ended)

        missing = [check for check in self.expected if check not in self.outcomes]
        unknown = self.trouble
        if not self.expected:
            unknown = f"no check was collected: {unknown}" if unknown else "no check was collected"
        elif missing:
            unknown = f"{unknown or 'the run ended early'}; without an answer: {', '.join(missing)}"
        passed = sum(outcome == "passed" for outcome, _ in self.outcomes.values())
        return Verdict(passed, named("failed"), named("skipped"), scrub(one_line(unknown), secrets))


def _sentence(check: str, text: str) -> str:
    """A tag in front of what a check says (testinfra_plugin.py) stays in front."""
    rest = text.removeprefix(_HARDWARE)
    return f"{_HARDWARE if rest != text else ''}{check}: {rest}"


@dataclass(slots=True, eq=False)
class _Batch:
    components: tuple[str, ...]
    passive: bool
    members: dict[str, _Member] = field(default_factory=dict)


async def _run(batch: _Batch, files: Iterable[Path], deadline_s: float) -> None:
    """Run pytest to its end or its deadline. Whatever happens, every member is answered."""
    run = uuid.uuid4().hex
    directory = Path(tempfile.mkdtemp(prefix="fleetctl-"))
    trouble = "the run was lost"
    try:
        async with asyncio.timeout(deadline_s):
            trouble = await _converse(batch, files, directory, run)
    except TimeoutError:
        trouble = f"the checks did not end within {deadline_s:g} s"
    except Exception as error:  # noqa: BLE001  # a run that can't be started says nothing of its nodes
        trouble = f"the run was lost: {type(error).__name__}: {error}"
    finally:
        for member in batch.members.values():
            member.close(trouble)
        # With ssh's masters, which are in sessions of their own.
        await asyncio.to_thread(end_everything_of, run)
        shutil.rmtree(directory, ignore_errors=True)


async def _converse(batch: _Batch, files: Iterable[Path], directory: Path, run: str) -> str:
    """Start pytest and listen to its report; what it said last, should a node be left without an answer."""
    reading, writing = os.pipe()
    try:
        arguments = _arguments(batch, files, directory)
        with (directory / "output").open("wb") as output:
            child = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                env=_environment(directory, run, writing),
                pass_fds=(writing,),
                start_new_session=True,
            )
    finally:
        os.close(writing)
    report = asyncio.StreamReader(limit=1 << 20)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(report), os.fdopen(reading, "rb")
    )
    errors: list[str] = []
    try:
        while text := await report.readline():
            line = json.loads(text)
            if "error" in line:
                errors.append(line["error"])
            elif line["node"] in batch.members:
                batch.members[line["node"]].fold(line)
            else:
                errors.append(f"checks without a node: {', '.join(line.get('checks', ()))}")
        code = await child.wait()
    finally:
        transport.close()
    if errors:
        return "; ".join(errors)
    said = (directory / "output").read_text(errors="replace").strip().splitlines()
    return f"pytest ended with exit code {code}: {said[-1] if said else 'without a word'}"


def _arguments(batch: _Batch, files: Iterable[Path], directory: Path) -> list[str]:
    members = batch.members.values()
    config = directory / "ssh_config"
    config.write_text(ssh_config([(member.node.name, member.node.connection) for member in members], str(directory)))
    (directory / "declared.json").write_text(json.dumps({member.node.name: _told(member) for member in members}))
    # An empty configuration of its own: none of a project or a home around it counts.
    (directory / "pytest.ini").write_text("[pytest]\n")
    plugins = [word for plugin in _PLUGINS for word in ("-p", plugin)]
    return [
        *(sys.executable, "-m", "pytest", "-q", "-s", "--noconftest", "--import-mode=importlib"),
        *("-c", str(directory / "pytest.ini"), "--rootdir", str(directory), "-p", "no:cacheprovider", *plugins),
        *("--hosts", ",".join(f"ssh://{member.node.name}" for member in members)),
        *("--ssh-config", str(config), "--sudo"),
        *(("-m", "not active") if batch.passive else ()),
        *(str(path) for path in files),
    ]


def _told(member: _Member) -> dict[str, Json]:
    """What the checks may know: the declared variables, not how we log in, nor what is secret."""
    return {
        name: value
        for name, value in member.declared.items()
        if not name.startswith("ansible_") and not is_secret_name(name)
    }


def _environment(directory: Path, run: str, report: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    package = str(Path(fleetctl.__file__).resolve().parent.parent)
    return kept | {
        "FLEETCTL_RUN": run,
        "FLEETCTL_DECLARED": str(directory / "declared.json"),
        "FLEETCTL_REPORT_FD": str(report),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
