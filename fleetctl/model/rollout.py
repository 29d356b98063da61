"""The words of a rollout: states, acts, intents, outcomes, requests, and the events that the journal keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Literal

from fleetctl.model.drift import Disturbance
from fleetctl.model.fleet import Json
from fleetctl.model.node_facts import Identity
from fleetctl.model.work import Work


class State(StrEnum):
    """Where a node is; each state owes at most one act (the table is decide/lifecycle.py)."""

    PENDING = "pending"
    CHECKING = "checking"
    DRAINING = "draining"
    PREFLIGHT = "preflight"
    APPLYING = "applying"
    RESTARTING = "restarting"
    VERIFYING = "verifying"
    UNDRAINING = "undraining"
    RETURNING = "returning"
    DONE = "done"
    SKIPPED = "skipped"
    UNHEALTHY = "unhealthy"
    DEFERRED = "deferred"
    HELD = "held"
    ROLLED_BACK = "rolled_back"
    QUARANTINED = "quarantined"

    @property
    def is_final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset(
    {
        State.DONE,
        State.SKIPPED,
        State.UNHEALTHY,
        State.DEFERRED,
        State.HELD,
        State.ROLLED_BACK,
        State.QUARANTINED,
    }
)


class Act(StrEnum):
    """What a state can owe a node."""

    CHECK = "check"
    DRAIN = "drain"
    PREFLIGHT = "preflight"
    APPLY = "apply"
    RESTART = "restart"
    POWER_CYCLE = "power_cycle"
    VERIFY = "verify"
    VERIFY_UNCHANGED = "verify_unchanged"
    UNDRAIN = "undrain"
    LABEL = "label"
    """Write the quarantine's reason behind our mark, where people look for it."""
    LET_GO = "let_go"
    """Take our lease off a node that is others' now, and nothing else."""
    RECHECK = "recheck"
    """Verify a node that is done and back at work once more (end of the canary's soak); passive."""


class Course(StrEnum):
    """Which way a node is going: to the new versions, back to the recorded closure, or home unchanged."""

    FORWARD = "forward"
    BACK = "back"
    UNCHANGED = "unchanged"


class Result(StrEnum):
    """How an act ended.

    ok         as owed
    current    checking: the node is as declared and well: nothing to do
    unwell     checking: the node is as declared but does not pass a passive verify
    failed     it was tried and did not work; the reason says why
    hardware   verify failed for a reason that no other version of the software would cure
    blocked    it was not tried, nothing was changed (package lock held, simulation refused, ...)
    foreign    somebody else has the node: drained, undrained, leased by others, or another machine
    unknown    no answer, or not safe to touch yet: observe again
    """

    OK = "ok"
    CURRENT = "current"
    UNWELL = "unwell"
    FAILED = "failed"
    HARDWARE = "hardware"
    BLOCKED = "blocked"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Closure:
    """The exact set of packages that makes one state of a node: name to version, the held names, and the flavour."""

    packages: Mapping[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    variables: Mapping[str, Json] = field(default_factory=dict)
    """What else the role needs to come back here: version, flavour, source."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What an act found out that later acts rest on; None where it has nothing to add."""

    disturbance: Disturbance | None = None
    identity: Identity | None = None
    boot_id: str | None = None
    closures: Mapping[str, Closure] | None = None
    """By component; the way back."""
    changed: bool | None = None
    """True once anything on the node may differ from how it was found."""


@dataclass(frozen=True, slots=True)
class Intent:
    """An act that is owed to a node, written down before it is started."""

    id: int
    node: str
    act: Act
    course: Course = Course.FORWARD
    boot_id: str = ""
    """For a restart: the boot id that must change."""
    conclusion: State | None = None
    """For an undrain: the state that it ends in."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an intent ended. `signature` is equal for failures of the same kind (numbers and names left out)."""

    intent: int
    node: str
    act: Act
    result: Result
    reason: str = ""
    signature: str = ""
    learnt: Learnt = Learnt()


@dataclass(frozen=True, slots=True)
class Polled:
    """One poll of the scheduler: what differs from the poll before it. Not readable: nothing is known at all.

    `read_at` is the time before the poll was sent: it says nothing of what happened after.
    """

    read_at: datetime
    changed: Mapping[str, Work | None] = field(default_factory=dict)
    """By node name; None: the scheduler no longer knows the node."""
    is_readable: bool = True
    reason: str = ""


Verb = Literal["pause", "resume", "abort", "stop", "retry", "skip", "release", "leave"]
"""stop: admit no more, finish what is under way. abort: also give back what is unchanged. release: leave nodes that are
under way to a person, drained as they are. leave: go away now."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a person or another process asks of a running rollout; `id` is its row in the store."""

    verb: Verb
    by: str
    nodes: tuple[str, ...] = ()
    why: str = ""
    id: int = 0


# --- events: what the journal keeps. Each names its kind; `at` is the controller's clock in UTC.


@dataclass(frozen=True, slots=True)
class Opened:
    """The rollout begins; everything that its decisions rest on, so that a replay needs nothing else."""

    kind: ClassVar[str] = "opened"
    at: datetime
    rollout: str
    site: str
    components: tuple[str, ...]
    nodes: tuple[str, ...]
    by: str
    controller: str
    nonce: str
    policy: Mapping[str, Json] = field(default_factory=dict)
    overrides: Mapping[str, Json] = field(default_factory=dict)
    """Declared variables overridden for this rollout (--to)."""
    targets: Mapping[str, Mapping[str, Closure]] = field(default_factory=dict)
    """By node and component, the closures that an undo goes to; empty for a rollout to what is declared."""
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Resumed:
    """A controller takes the rollout up; every open intent is observed again."""

    kind: ClassVar[str] = "resumed"
    at: datetime
    controller: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Admitted:
    kind: ClassVar[str] = "admitted"
    at: datetime
    node: str
    wave: str


@dataclass(frozen=True, slots=True)
class Intended:
    kind: ClassVar[str] = "intended"
    at: datetime
    intent: Intent


@dataclass(frozen=True, slots=True)
class Concluded:
    kind: ClassVar[str] = "concluded"
    at: datetime
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Emptied:
    """The last work left a node that we drain."""

    kind: ClassVar[str] = "emptied"
    at: datetime
    node: str


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else took, drained or gave back a node that was ours."""

    kind: ClassVar[str] = "taken"
    at: datetime
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lifted:
    """What kept a held or deferred node out is gone: it is looked at again."""

    kind: ClassVar[str] = "lifted"
    at: datetime
    node: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expired:
    """A node stayed in `state` past its limit."""

    kind: ClassVar[str] = "expired"
    at: datetime
    node: str
    state: State


@dataclass(frozen=True, slots=True)
class Relapsed:
    """A node that was done went down, or was drained by others, before the rollout closed."""

    kind: ClassVar[str] = "relapsed"
    at: datetime
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Requested:
    kind: ClassVar[str] = "requested"
    at: datetime
    request: Request


@dataclass(frozen=True, slots=True)
class Closed:
    kind: ClassVar[str] = "closed"
    at: datetime
    status: Literal["complete", "incomplete", "stopped"]
    reason: str = ""


Event = (
    Opened
    | Resumed
    | Admitted
    | Intended
    | Concluded
    | Emptied
    | Taken
    | Lifted
    | Expired
    | Relapsed
    | Requested
    | Closed
)


def node_of(event: Event) -> str | None:
    """The node that an event is about; None: the whole rollout."""
    match event:
        case Concluded():
            return event.outcome.node
        case Intended():
            return event.intent.node
        case Opened() | Resumed() | Requested() | Closed():
            return None
        case _:
            return event.node
