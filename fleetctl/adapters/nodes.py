"""Nodes over SSH: the probe, the lease, the boot id, and the order to restart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from fleetctl.adapters.notify import run_site_command
from fleetctl.adapters.ssh import Completed, Failure, Ssh
from fleetctl.model.fleet import Json, Node
from fleetctl.model.node_facts import Lease, RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.ports import Answer

LEASE_PROGRAM = "/var/lib/fleetctl/lease.py"
"""Where take_lease puts the program that guards every later change (fleetctl/probe/lease.py)."""

_ROOT_PYTHON = ("sudo", "-n", "python3")
_SCHEMA = 1
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

# Exit codes of lease.py, see its docstring.
_FOREIGN, _NOT_RUN = 96, 97


class SshNodes:
    """ports.Nodes on real machines. Root is reached with `sudo -n`; programs come over standard input."""

    def __init__(
        self,
        ssh: Ssh,
        *,
        probe_parameters: Mapping[str, Json] | None = None,
        probe_deadline_s: float = 120,
        lease_wait_s: float = 30,
        power_cycle_deadline_s: float = 120,
    ) -> None:
        self._ssh = ssh
        self._probe_deadline_s = probe_deadline_s
        self._lease_wait_s = lease_wait_s
        self._power_cycle_deadline_s = power_cycle_deadline_s
        parameters = json.dumps(dict(probe_parameters or {}))
        probe = _program("probe.py").replace('PARAMETERS = "{}"', f"PARAMETERS = {parameters!r}", 1)
        lease = _program("lease.py")
        self._probe = probe.encode()
        # A program that comes over standard input can't read itself from a file: it is told its own text.
        self._lease = f"SOURCE = {lease!r}\n{lease}".encode()

    async def probe(self, node: Node) -> Reading[RawFacts]:
        said = await self._ssh.run(node, [*_ROOT_PYTHON, "-"], self._probe, self._probe_deadline_s)
        if not said.is_known:
            return unknown(said.reason)
        return _read_facts(said.get())

    async def take_lease(self, node: Node, lease: Lease) -> Answer:
        words = ("take", "--install", lease.rollout, lease.controller, str(lease.epoch), lease.nonce)
        return await self._ask_lease(node, words)

    async def release_lease(self, node: Node, lease: Lease) -> Answer:
        return await self._ask_lease(node, ("release", lease.rollout, str(lease.epoch)))

    async def boot_id(self, node: Node) -> Reading[str]:
        said = await self._ssh.run(node, ["cat", "/proc/sys/kernel/random/boot_id"], deadline_s=10)
        if not said.is_known:
            return unknown(said.reason)
        text = said.get().stdout.decode(errors="replace").strip()
        if not _UUID.fullmatch(text):
            return unknown(f"what came as boot id is none: {text[:80] or said.get().last_words!r}")
        return value_of(text)

    async def restart(self, node: Node, lease: Lease) -> Answer:
        argv = [*_ROOT_PYTHON, LEASE_PROGRAM, "--wait-s", "5", "exec", lease.rollout, str(lease.epoch), "--"]
        said = await self._ssh.attempt(node, [*argv, "systemctl", "reboot"], deadline_s=30)
        if isinstance(said, Failure):
            # Going down takes the connection with it. Whether the node really went, only its next boot id tells.
            return Answer("ok") if said.kind == "lost" and said.begun else Answer("unknown", str(said))
        return _answer(said)

    async def power_cycle(self, node: Node, command: Sequence[str]) -> Answer:
        failure = await run_site_command(command, {"FLEETCTL_NODE": node.name}, self._power_cycle_deadline_s)
        return Answer("unknown", failure) if failure else Answer("ok")

    async def _ask_lease(self, node: Node, words: Sequence[str]) -> Answer:
        argv = [*_ROOT_PYTHON, "-", "--wait-s", f"{self._lease_wait_s:g}", *words]
        said = await self._ssh.run(node, argv, self._lease, deadline_s=self._lease_wait_s + 15)
        return _answer(said.get()) if said.is_known else Answer("unknown", said.reason)


def _program(name: str) -> str:
    return (files("fleetctl.probe") / name).read_text(encoding="utf-8")


def _read_facts(said: Completed) -> Reading[RawFacts]:
    """The probe's one line of JSON, if it is of the schema that we know and was read as root."""
    if said.returncode != 0:
        return unknown(f"the probe failed: {said.last_words}")
    lines = said.stdout.splitlines()
    try:
        facts: Any = json.loads(lines[-1]) if lines else None
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return unknown("the probe's answer is not JSON")
    if facts.get("schema") != _SCHEMA:
        return unknown(f"the probe's answer has schema {facts.get('schema')!r}, not {_SCHEMA}")
    if facts.get("uid") != 0:
        return unknown("the probe did not run as root")
    return value_of(facts)


def _answer(said: Completed) -> Answer:
    """lease.py's exit code and its one line of JSON."""
    if said.returncode == 0:
        return Answer("ok")
    kind = "foreign" if said.returncode in (_FOREIGN, _NOT_RUN) else "unknown"
    return Answer("foreign" if kind == "foreign" else "unknown", f"lease: {_why(said)}")


def _why(said: Completed) -> str:
    try:
        told = json.loads(said.last_words)
        why = next(str(told[key]) for key in ("refused", "busy", "error") if key in told)
    except (ValueError, TypeError, StopIteration):
        return said.last_words
    holder = told.get("lease")
    if isinstance(holder, dict) and "rollout" in holder:
        why += f" ({holder['rollout']}, epoch {holder.get('epoch')}, controller {holder.get('controller')})"
    return why
