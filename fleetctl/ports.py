"""What the flows ask of the world. Adapters implement these on real nodes, the twin on simulated ones.

No port raises for a node that fails: the answer says so. A port raises only a FleetctlError that concerns the fleet.
Everything that may wait is a coroutine; it is cancelled by its caller, never by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from fleetctl.model.drift import Drift, Refusal
from fleetctl.model.fleet import HostVars, Json, Node
from fleetctl.model.mark import Mark
from fleetctl.model.node_facts import Lease, RawFacts
from fleetctl.model.reading import Reading
from fleetctl.model.record import Owed
from fleetctl.model.rollout import Closure, Course, Event, Outcome, Polled, Request
from fleetctl.model.work import Work

# --- a thing that has a version


class Component(Protocol):
    """What the controller knows about one thing that has a version. Pure: no I/O, no clock.

    `declared` raises InventoryError for a value that can't be; nothing else raises.
    """

    name: str
    role: str
    requires: frozenset[str]
    moves_with: frozenset[str]

    def declared(self, host_vars: HostVars) -> Any | None:
        """None: not declared for this host. `str()` of it is the version that a person wants to see."""
        ...

    def observed(self, raw: RawFacts) -> Any: ...
    def compare(self, declared: Any, observed: Any) -> tuple[Drift, ...]: ...
    def refusals(self, declared: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[Refusal, ...]: ...
    def closure(self, observed: Any) -> Closure: ...
    def blocks_restart(self, declared: Any, observed: Any) -> str:
        """Why this node must not be restarted now (module missing for the next boot's kernel, ...); empty: nothing."""
        ...

    def summary(self, observed: Any) -> str:
        """The one version a person wants to see."""
        ...


# --- the scheduler


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking for a change: done; refused because it is not ours; or not known."""

    kind: Literal["ok", "foreign", "unknown"]
    reason: str = ""


class Scheduler(Protocol):
    async def snapshot(self) -> Reading[Mapping[str, Work]]:
        """All nodes by scheduler name. Unknown if any part (nodes or jobs) could not be read."""
        ...

    async def work(self, scheduler_name: str) -> Reading[Work]:
        """One node, read now."""
        ...

    async def drain(self, scheduler_name: str, mark: Mark, replaces: Mark | None = None) -> Answer:
        """Cordon and write the mark. A drain of others is left alone (foreign). Ours again, or new text: ok.

        A drain that carries the mark `replaces` (of a rollout that is over) is taken over.
        """
        ...

    async def undrain(self, scheduler_name: str, mark: Mark) -> Answer:
        """Give back if, and only if, the mark re-read now is ours; reads back. No drain at all: ok."""
        ...


# --- nodes


class Nodes(Protocol):
    async def probe(self, node: Node) -> Reading[RawFacts]: ...

    async def take_lease(self, node: Node, lease: Lease) -> Answer:
        """Create the lease exclusively. The same rollout's already, epoch not above: ok, epoch raised."""
        ...

    async def release_lease(self, node: Node, lease: Lease) -> Answer: ...

    async def boot_id(self, node: Node) -> Reading[str]:
        """The boot id, over a new connection; a value always has the form of a UUID."""
        ...

    async def restart(self, node: Node, lease: Lease) -> Answer:
        """Order a reboot under the lease. ok says that the order was given, not that the node is back."""
        ...

    async def lost_packages(self, node: Node, packages: Mapping[str, Mapping[str, str]]) -> Reading[tuple[str, ...]]:
        """Which of these packages (name to version, by role) no repository of the node offers, read now.

        Unknown where a repository can't be read, or is declared for the role and not on the node yet.
        """
        ...

    async def power_cycle(self, node: Node, command: Sequence[str]) -> Answer:
        """Run the site's command on the controller."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """What the roles are to do on one node."""

    components: tuple[str, ...]
    course: Course
    variables: Mapping[str, Json] = field(default_factory=dict)
    """Overrides of declared variables, same for all nodes of a rollout."""
    closures: Mapping[str, Closure] = field(default_factory=dict)
    """Going forward: what to keep a way back to. Going back: what to install, exactly."""
    needs_way_back: bool = True
    """False: what can't be kept of the way back is no obstacle; a node that fails is quarantined, not brought back."""


@dataclass(frozen=True, slots=True)
class Applied:
    """How the roles ended on one node.

    ok       every task ran, and the marker task at the end was seen for this host
    failed   a task failed; `reason` in one line, `signature` without what differs between nodes
    blocked  a preflight task said no before anything was changed
    unknown  unreachable, missing from the stats, cancelled, or the run was lost
    """

    kind: Literal["ok", "failed", "blocked", "unknown"]
    reason: str = ""
    signature: str = ""
    changed: bool = False
    reboot_required: bool = False


class Changer(Protocol):
    async def preflight(self, node: Node, change: Change, lease: Lease) -> Applied:
        """Simulate and download; changes nothing that is installed, pinned or held."""
        ...

    async def apply(self, node: Node, change: Change, lease: Lease) -> Applied: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of verify. Passed only if checks ran and each of them passed; skipped checks are named."""

    passed: int = 0
    failures: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    unknown: str = ""
    """Why nothing can be said: unreachable, run lost, zero checks collected."""

    @property
    def is_pass(self) -> bool:
        return self.passed > 0 and not self.failures and not self.skipped and not self.unknown


class Verifier(Protocol):
    async def verify(
        self, node: Node, components: Sequence[str], declared: Mapping[str, Json], *, passive: bool
    ) -> Verdict:
        """Run the verify files of `components` against the variables `declared`.

        passive: only checks that disturb no running work. A failure that no other version of the software would
        cure begins with "hardware: ".
        """
        ...


# --- the rollout's own memory


class Journal(Protocol):
    def append(self, events: Sequence[Event]) -> None:
        """Durable on return, in order, all or none."""
        ...


class Inbox(Protocol):
    def take(self, until: datetime | None) -> Sequence[Outcome | Polled | Request]:
        """What has come in; waits for the first of it, or until `until`. Empty: the time came."""
        ...


class Performer(Protocol):
    def start(self, owed: Sequence[Owed]) -> None:
        """Returns at once; each intent's Outcome comes through the inbox. A node's earlier act is cancelled first."""
        ...


class Clock(Protocol):
    def now(self) -> datetime: ...


class Notifier(Protocol):
    async def notify(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Run a hook of the site; returns why it failed, or an empty text. A hook never stops a node."""
        ...
