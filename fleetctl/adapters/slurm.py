"""Slurm as the scheduler, through its own commands.

What Slurm does with drains and reasons (read in node_mgr.c of 22.05 and 24.11, and seen on both by
tests/contract/test_slurm_*.py):

- `update State=DRAIN Reason=...` replaces the reason whoever wrote it: the guard against taking over somebody's drain
  is our own re-read. There is no compare-and-set, so the time between re-read and update remains.
- `update Reason=...` without a state replaces the reason and leaves the state: that is how a mark gets new text
  without the node ever being undrained, and without draining again a node that was resumed a moment ago.
- While a node is DRAIN, drains of Slurm's own (epilog failed, kill failed) are dropped with their reasons:
  drain_nodes() returns at once. The mark stands, and hides them.
- A reason is appended to (" : Not responding") and replaced by an invalid registration, both since 23.02.
- RESUME clears DRAIN, DOWN, FAIL and pending reboots; UNDRAIN clears DRAIN alone. slurmctld refuses both while the
  registration is invalid. After both the node is NOT_RESPONDING until its slurmd has registered again.
- 23.11 to 25.11 without accounting leave the reason on a node that was given back (clusteracct_storage_g_node_up()),
  and a later drain of Slurm's own keeps what it finds: it would look like ours. So the mark is taken off as well.

Nodes are read in JSON where scontrol can (23.02 on), because no free text can be mistaken for a field there, and in
scontrol's multi-line text otherwise (22.05's `sinfo --json` can't be limited to one node and needs plugins that many
builds lack). Jobs are read as squeue's text on every version: its JSON is a hundred times the size.

Jobs are read after nodes. An undrained node may get work between the two reads: this order shows it as a job, the
other order only as an allocation without its end. For a node that is drained in the first read the order makes no
difference: it can get no work without being undrained first, and either order would then show the job or the missing
drain. A job that ends in between only makes the node look busy until the next poll.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fleetctl.adapters.command import Command
from fleetctl.adapters.slurm_commands import (
    ENVIRONMENT,
    SHOW_CONFIG,
    SHOW_RESERVATIONS,
    is_node_name,
    list_jobs,
    show_nodes,
    update_node,
)
from fleetctl.adapters.ssh import Completed
from fleetctl.errors import SchedulerError
from fleetctl.model.mark import Mark, Ownership, owner_of, read_mark
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.work import Work
from fleetctl.parse.slurm import is_down, join_listings, read_jobs
from fleetctl.parse.slurm_json import read_nodes_json
from fleetctl.parse.slurm_records import NodeListing, NodeRecord
from fleetctl.parse.slurm_states import is_registered
from fleetctl.parse.slurm_text import read_nodes_text, read_reservations
from fleetctl.ports import Answer

T = TypeVar("T")


class Slurm:
    """ports.Scheduler on one Slurm cluster.

    `privilege` is put before each command, as sites do it: ("sudo", "-n"). `deadline_s` is for each command;
    `settle_s` is how long a change may take until it reads back.
    """

    def __init__(
        self, command: Command, privilege: Sequence[str] = (), deadline_s: float = 60, settle_s: float = 10
    ) -> None:
        self._command = command
        self._prefix = (*ENVIRONMENT, *privilege)
        self._deadline_s = deadline_s
        self._settle_s = settle_s
        self._can_json: bool | None = None

    # --- reading

    async def snapshot(self) -> Reading[Mapping[str, Work]]:
        return await self._read_work("")

    async def work(self, scheduler_name: str) -> Reading[Work]:
        if not is_node_name(scheduler_name):
            return unknown(f"{scheduler_name!r} is not a node name of Slurm")
        listing = await self._read_work(scheduler_name)
        if listing.is_known and scheduler_name not in listing.get():
            return unknown(f"Slurm answered for {sorted(listing.get())} instead of {scheduler_name}")
        return listing.map(lambda nodes: nodes[scheduler_name])

    async def _read_work(self, name: str) -> Reading[Mapping[str, Work]]:
        reservations = await self._read(SHOW_RESERVATIONS, read_reservations)
        nodes = await self._read_nodes(name)
        jobs = await self._read(list_jobs(name), read_jobs)
        if not (reservations.is_known and nodes.is_known and jobs.is_known):
            return unknown(nodes.reason or jobs.reason or reservations.reason)
        return value_of(join_listings(nodes.get(), jobs.get(), reservations.get()))

    async def _read_nodes(self, name: str) -> Reading[NodeListing]:
        """Which form scontrol can print is found out by the first listing that it does print."""
        if self._can_json is not False:
            printed = await self._run(show_nodes(name, json=True))
            if printed.is_known or self._can_json:
                self._can_json = True
                return await _parse(printed, read_nodes_json)
        printed = await self._run(show_nodes(name, json=False))
        if printed.is_known:
            self._can_json = False
        return await _parse(printed, read_nodes_text)

    async def _read_node(self, name: str) -> Reading[NodeRecord]:
        if not is_node_name(name):
            return unknown(f"{name!r} is not a node name of Slurm")
        listing = await self._read_nodes(name)
        if listing.is_known and name not in listing.get():
            return unknown(f"Slurm answered for {sorted(listing.get())} instead of {name}")
        return listing.map(lambda nodes: nodes[name])

    async def _read(self, argv: Sequence[str], parse: Callable[[str], Reading[T]]) -> Reading[T]:
        return await _parse(await self._run(argv), parse)

    async def _run(self, argv: Sequence[str]) -> Reading[str]:
        """What a command printed; unknown if it failed, with its last words."""
        done = await self._command.run((*self._prefix, *argv), self._deadline_s)
        if not done.is_known:
            return unknown(done.reason)
        completed: Completed = done.get()
        if completed.returncode != 0:
            return unknown(f"{argv[0]}: {completed.last_words}")
        return value_of(completed.stdout.decode(errors="replace"))

    # --- changing

    async def drain(self, scheduler_name: str, mark: Mark, replaces: Mark | None = None) -> Answer:
        before = await self._read_node(scheduler_name)
        if not before.is_known:
            return Answer("unknown", before.reason)
        node, reason = before.get(), str(mark)
        is_left_behind = replaces is not None and owner_of(node.reason, replaces) is Ownership.OURS
        owner = Ownership.OURS if is_left_behind else owner_of(node.reason, mark)
        if _is_out(node) and (held := _why_held(node, owner)):
            return held
        if not _is_cordoned(node):
            if node.is_allocated and node.states & _KILLED_BY_DRAIN:
                return Answer("unknown", f"being powered up for a job, which a drain would kill: {_join(node)}")
            written = await self._run(update_node(scheduler_name, state="DRAIN", reason=reason))
        elif read_mark(node.reason) != read_mark(reason):
            written = await self._run(update_node(scheduler_name, reason=reason))
        else:
            return Answer("ok")
        if not written.is_known:
            return Answer("unknown", written.reason)
        return await self._read_back_drain(scheduler_name, mark)

    async def _read_back_drain(self, name: str, mark: Mark) -> Answer:
        after = await self._read_node(name)
        if not after.is_known:
            return Answer("unknown", f"marked, but not read back: {after.reason}")
        node = after.get()
        if not _is_cordoned(node):
            return Answer("foreign", f"undrained by somebody while we marked it; state {_join(node)}")
        return _why_held(node, owner_of(node.reason, mark)) or Answer("ok")

    async def undrain(self, scheduler_name: str, mark: Mark) -> Answer:
        before = await self._read_node(scheduler_name)
        if not before.is_known:
            return Answer("unknown", before.reason)
        node = before.get()
        if not _is_cordoned(node):
            return await self._take_off(scheduler_name, node, mark, f"not drained any more; state {_join(node)}")
        if held := _why_held(node, owner_of(node.reason, mark)):
            return held
        if not is_registered(node.states):
            return Answer("unknown", f"slurmd has not registered, or not with all it should have: {_join(node)}")
        # UNDRAIN leaves DOWN as it is; RESUME would also clear what others set, so it is used for DOWN only
        state = "RESUME" if "DOWN" in node.states else "UNDRAIN"
        written = await self._run(update_node(scheduler_name, state=state))
        if not written.is_known:
            return Answer("unknown", written.reason)
        return await self._read_back_undrain(scheduler_name, mark)

    async def _read_back_undrain(self, name: str, mark: Mark) -> Answer:
        last = "undrained, but not read back"
        try:
            async with asyncio.timeout(self._settle_s):
                while True:
                    after = await self._read_node(name)
                    if after.is_known and not _is_cordoned(after.get()):
                        break
                    if after.is_known and (held := _why_held(after.get(), owner_of(after.get().reason, mark))):
                        return held
                    last = f"undrained, but {after.reason or 'the drain is still there'}"
                    await asyncio.sleep(0.2)
        except TimeoutError:
            return Answer("unknown", last)
        return await self._take_off(name, after.get(), mark)

    async def _take_off(self, name: str, node: NodeRecord, mark: Mark, reason: str = "") -> Answer:
        """Take a mark off that was left on an undrained node. Slurm can replace a reason, not empty it."""
        if owner_of(node.reason, mark) is Ownership.OURS:
            written = await self._run(update_node(name, reason=f"given back by {mark.token}"))
            if not written.is_known:
                return Answer("unknown", f"undrained, but its reason is still our mark: {written.reason}")
        return Answer("ok", reason)

    # --- before anything starts

    async def slurm_version(self) -> str:
        """Release of the controller, as in 22.05.8. Raises SchedulerError."""
        return (await self._read_config()).get("SLURM_VERSION", "")

    async def check_access(self, *, to_change: bool = True) -> None:
        """Raises SchedulerError unless our identity sees every job and, `to_change`, may drain nodes."""
        config = await self._read_config()
        private = set(config.get("PrivateData", "none").lower().split(",")) & {"jobs", "nodes", "reservations"}
        if not (private or to_change):
            return
        missing = [f"does not see others' {what} (PrivateData)" for what in sorted(private)]
        refusal = await self._ask_for_update()
        if refusal:
            if to_change:
                missing.insert(0, f"may not update nodes ({refusal})")
            raise SchedulerError(
                f"Slurm {config.get('SLURM_VERSION', '')}: our identity {' and '.join(missing)}. Run as root or "
                f"SlurmUser, or: sacctmgr modify user where name=USER set AdminLevel=Administrator"
            )

    async def _ask_for_update(self) -> str:
        """Why slurmctld would not let us update nodes; empty if it would.

        It is asked to change a node that does not exist: it looks at the identity first (_slurm_rpc_update_node), so
        one answer is "permission", the other "no such node". Who may update nodes sees all jobs as well
        (validate_super_user is narrower than validate_operator).
        """
        done = await self._command.run(
            (*self._prefix, *update_node("fleetctl-access-check", reason="fleetctl access check")), self._deadline_s
        )
        if not done.is_known:
            raise SchedulerError(f"Slurm can't be asked: {done.reason}")
        words = done.get().last_words
        return "" if re.search(r"invalid node name", words, re.IGNORECASE) else words

    async def _read_config(self) -> Mapping[str, str]:
        printed = await self._run(SHOW_CONFIG)
        if not printed.is_known:
            raise SchedulerError(f"Slurm can't be reached: {printed.reason}; try `scontrol ping` there")
        fields = re.findall(r"^(\w+) *= (.*)$", printed.get(), re.MULTILINE)
        return {key: value.strip() for key, value in fields}


# update_node() of every version: "DRAIN/FAIL request for node which is allocated and being powered up. Requeuing jobs"
_KILLED_BY_DRAIN = frozenset({"POWERED_DOWN", "POWERING_UP"})


async def _parse(printed: Reading[str], parse: Callable[[str], Reading[T]]) -> Reading[T]:
    """In a thread: ten thousand nodes take half a second, and the loop has others to serve."""
    return await asyncio.to_thread(parse, printed.get()) if printed.is_known else unknown(printed.reason)


def _is_cordoned(node: NodeRecord) -> bool:
    return "DRAIN" in node.states


def _is_out(node: NodeRecord) -> bool:
    return _is_cordoned(node) or is_down(node)


def _why_held(node: NodeRecord, owner: Ownership) -> Answer | None:
    """The answer for a node that is out and not ours to change; None for one that is ours."""
    by = f"{node.reason!r}" + (f" by {node.reason_by}" if node.reason_by else "")
    if "FAIL" in node.states:
        return Answer("foreign", f"set to FAIL: {by}")
    match owner:
        case Ownership.OURS:
            return None
        case Ownership.SYSTEM if not _is_cordoned(node):
            return None  # down by silence: nobody's drain, and it may be marked
        case Ownership.SYSTEM:
            return Answer("unknown", f"Slurm itself set the reason {by}")
        case Ownership.NOBODY if not _is_cordoned(node):
            return None
        case Ownership.NOBODY:
            return Answer("foreign", "drained without a reason")
        case Ownership.OTHER_ROLLOUT:
            return Answer("foreign", f"drained by another rollout: {by}")
        case Ownership.FOREIGN:
            return Answer("foreign", f"drained or down: {by}")


def _join(node: NodeRecord) -> str:
    return "+".join(sorted(node.states))
