"""A node as its scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Job:
    """A job that holds the node or is still leaving it. `ends_by` is its time limit, never its true end."""

    id: str
    user: str
    ends_by: datetime | None = None
    node_count: int = 1


@dataclass(frozen=True, slots=True)
class Reservation:
    """Time set aside on the node. Somebody else's counts as work from `starts_at` on, whether jobs run in it or not."""

    name: str
    starts_at: datetime
    ends_at: datetime | None = None
    users: str = ""
    is_maintenance: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """One node in one snapshot of the scheduler.

    `states` are the scheduler's own words in one normal form (upper-case tokens), for people and for the adapter.
    What the engine decides on are the booleans:
    cordoned     no new work is placed here (Slurm DRAIN, Kubernetes unschedulable)
    empty        nothing allocated, no job listed, nothing completing
    registered   the node's agent is up and complete: not down-by-silence, no invalid registration, no reboot or
                 power transition under way
    down         the base state is DOWN or ERROR, or FAIL is set: the scheduler can't use the node even if it were
                 undrained
    `reason` may remain on a node that is neither cordoned nor down; it speaks of a drain only where there is one.
    `gpus_configured` is what the scheduler's configuration promises; None: no GPU is configured.
    """

    states: frozenset[str]
    cordoned: bool
    empty: bool
    registered: bool
    down: bool
    jobs: tuple[Job, ...] = ()
    reason: str = ""
    reason_by: str = ""
    reason_at: datetime | None = None
    partitions: frozenset[str] = frozenset()
    gpus_configured: int | None = None
    reservations: tuple[Reservation, ...] = ()

    @property
    def is_out(self) -> bool:
        """True if the scheduler can place no work here now, whoever took it out."""
        return self.cordoned or self.down or not self.registered
