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
        offers_limit_s: float = 180,
        offers_parameters: Mapping[str, Json] | None = None,
        power_cycle_deadline_s: float = 120,
    ) -> None:
        self._ssh = ssh
        self._probe_deadline_s = probe_deadline_s
        self._lease_wait_s = lease_wait_s
        self._offers_parameters = {"limit_s": offers_limit_s, **(offers_parameters or {})}
        self._offers_deadline_s = offers_limit_s + 15
        self._power_cycle_deadline_s = power_cycle_deadline_s
        lease = _program("lease.py")
        self._probe = _with_parameters("probe.py", probe_parameters or {})
        # A program that comes over standard input can't read itself from a file: it is told its own text.
        self._lease = f"SOURCE = {lease!r}\n{lease}".encode()

    async def probe(self, node: Node) -> Reading[RawFacts]:
        said = await self._ssh.run(node, [*_ROOT_PYTHON, "-"], self._probe, self._probe_deadline_s)
        if not said.is_known:
            return unknown(said.reason)
        return _read_facts(said.get())

    async def take_lease(self, node: Node, lease: Lease) -> Answer:
        return await self._ask_lease(node, ("take", "--install"), lease)

    async def release_lease(self, node: Node, lease: Lease) -> Answer:
        return await self._ask_lease(node, ("release",), lease)

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

    async def lost_packages(self, node: Node, packages: Mapping[str, Mapping[str, str]]) -> Reading[tuple[str, ...]]:
        declared = [node.variables.get(f"{role}_repository") or {} for role in packages]
        uris = [found["uri"] for found in declared if "uri" in found and found.get("state") != "absent"]
        asked = {**self._offers_parameters, "packages": packages, "repositories": uris}
        program = _with_parameters("offers.py", asked)
        said = await self._ssh.run(node, [*_ROOT_PYTHON, "-"], program, self._offers_deadline_s)
        return _read_lost(said.get()) if said.is_known else unknown(said.reason)

    async def power_cycle(self, node: Node, command: Sequence[str]) -> Answer:
        failure = await run_site_command(command, {"FLEETCTL_NODE": node.name}, self._power_cycle_deadline_s)
        return Answer("unknown", failure) if failure else Answer("ok")

    async def _ask_lease(self, node: Node, verb: Sequence[str], lease: Lease) -> Answer:
        words = (*verb, lease.rollout, lease.controller, str(lease.epoch), lease.nonce)
        argv = [*_ROOT_PYTHON, "-", "--wait-s", f"{self._lease_wait_s:g}", *words]
        said = await self._ssh.run(node, argv, self._lease, deadline_s=self._lease_wait_s + 15)
        return _answer(said.get()) if said.is_known else Answer("unknown", said.reason)


def _program(name: str) -> str:
    return (files("fleetctl.probe") / name).read_text(encoding="utf-8")


def _with_parameters(program: str, parameters: Mapping[str, Json]) -> bytes:
    text = json.dumps(dict(parameters))
    return _program(program).replace('PARAMETERS = "{}"', f"PARAMETERS = {text!r}", 1).encode()


def _read_facts(said: Completed) -> Reading[RawFacts]:
    return _read_line(said, "the probe")


def _read_lost(said: Completed) -> Reading[tuple[str, ...]]:
    """What offers.py calls lost, unless it says that it does not know."""
    line = _read_line(said, "the program that asks repositories")
    if not line.is_known:
        return unknown(line.reason)
    doubt, lost = line.get().get("unknown"), line.get().get("lost")
    if doubt or not isinstance(lost, list):
        return unknown(str(doubt or "its answer names no packages"))
    return value_of(tuple(str(package) for package in lost))


def _read_line(said: Completed, program: str) -> Reading[RawFacts]:
    """A program's one line of JSON, if it is of the schema that we know and was read as root."""
    if said.returncode != 0:
        return unknown(f"{program} failed: {said.last_words}")
    lines = said.stdout.splitlines()
    try:
        facts: Any = json.loads(lines[-1]) if lines else None
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return unknown(f"{program}'s answer is not JSON")
    if facts.get("schema") != _SCHEMA:
        return unknown(f"{program}'s answer has schema {facts.get('schema')!r}, not {_SCHEMA}")
    if facts.get("uid") != 0:
        return unknown(f"{program} did not run as root")
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
