"""One live controller per site: a row that says who it is, and an epoch that grows with every change of hands.

A dead controller is followed without a question: on its own machine its process is gone; seen from another, it has
shown no heartbeat for DEAD_AFTER_S. One that is stopped, or lives on, is followed only by a person's word (force);
whatever it writes after that is refused, since owner and epoch are looked at in the very transaction that appends.
Hosts that share a database keep their clocks in step (NTP); DEAD_AFTER_S is far above what they may differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa

from fleetctl.errors import Refused
from fleetctl.store.codec import time_from_text, time_to_text
from fleetctl.store.database import Database
from fleetctl.store.liveness import Controller, look_at, this_controller
from fleetctl.store.tables import locks

HEARTBEAT_S = 5
DEAD_AFTER_S = 60


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one controller to write the journal of one rollout, until the epoch grows."""

    site: str
    rollout: str
    epoch: int
    controller: Controller


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a site's lock, and what can be told of them."""

    claim: Claim
    started_at: datetime
    heartbeat_at: datetime
    condition: Literal["live", "stopped", "dead"]

    @property
    def is_live(self) -> bool:
        return self.condition != "dead"


def acquire(
    database: Database,
    site: str,
    rollout: str,
    now: datetime,
    controller: Controller | None = None,
    *,
    force: bool = False,
) -> Claim:
    """Become the site's controller. Refused, naming it, while another one lives; `force` takes over."""
    me = controller or this_controller()
    with database.write() as connection:
        connection.execute(_ENSURE_ROW, {"site": site})
        row = connection.execute(_row_of(site).with_for_update()).one()
        holder = _holder(row, now)
        if holder is not None and holder.is_live and not force:
            raise Refused(_refusal(holder, now))
        claim = Claim(site, rollout, row.epoch + 1, me)
        connection.execute(
            sa.update(locks)
            .where(locks.c.site == site)
            .values(
                epoch=claim.epoch,
                rollout=rollout,
                owner=me.owner,
                host=me.host,
                machine=me.machine,
                pid=me.pid,
                started_ticks=me.started_ticks,
                started_at=time_to_text(now),
                heartbeat_at=time_to_text(now),
            )
        )
    return claim


def heartbeat(database: Database, claim: Claim, now: datetime) -> None:
    """Show that we live; owed every HEARTBEAT_S. Refused once another controller has taken over."""
    with database.write() as connection:
        require(connection, claim)
        connection.execute(
            sa.update(locks).where(locks.c.site == claim.site).values(heartbeat_at=time_to_text(now)),
        )


def release(database: Database, claim: Claim) -> None:
    """Give the lock up; nothing happens if it is not ours any more. Who had it last stays to be told."""
    with database.write() as connection:
        connection.execute(
            sa.update(locks)
            .where(locks.c.site == claim.site, locks.c.epoch == claim.epoch, locks.c.owner == claim.controller.owner)
            .values(rollout="")
        )


def holder_of(database: Database, site: str, now: datetime) -> Holder | None:
    """Who has the site's lock, alive or dead; None: nobody, or it was given up."""
    with database.read() as connection:
        row = connection.execute(_row_of(site)).one_or_none()
    return _holder(row, now) if row is not None else None


def require(connection: sa.Connection, claim: Claim) -> None:
    """Refused, naming who has it, unless the lock is still ours; holds until the end of the transaction."""
    row = connection.execute(_row_of(claim.site).with_for_update()).one_or_none()
    if row is not None and _claim(row) == claim:
        return
    if row is None or (not row.rollout and _claim(row) == replace(claim, rollout="")):
        raise Refused(f"rollout {claim.rollout} is not run by us any more: `fleetctl rollout resume` takes it up")
    raise Refused(
        f"rollout {claim.rollout} was taken over by {row.owner}, pid {row.pid} (epoch {row.epoch}, ours was "
        f"{claim.epoch}): nothing more is done here; see `fleetctl rollout status`"
    )


# Understood by SQLite and PostgreSQL alike.
_ENSURE_ROW = sa.text(
    "INSERT INTO locks (site, epoch, rollout, owner, host, machine, pid, started_ticks, started_at, heartbeat_at)"
    " VALUES (:site, 0, '', '', '', '', 0, 0, '', '') ON CONFLICT DO NOTHING"
)


def _row_of(site: str) -> sa.Select[Any]:
    return sa.select(*locks.c).where(locks.c.site == site)


def _claim(row: Any) -> Claim:
    controller = Controller(row.owner, row.host, row.machine, row.pid, row.started_ticks)
    return Claim(row.site, row.rollout, row.epoch, controller)


def _holder(row: Any, now: datetime) -> Holder | None:
    if not row.rollout:
        return None
    claim, heartbeat_at = _claim(row), time_from_text(row.heartbeat_at)
    is_silent = (now - heartbeat_at).total_seconds() > DEAD_AFTER_S
    condition: Literal["live", "stopped", "dead"]
    match look_at(claim.controller):
        case "gone":
            condition = "dead"
        case "running":
            condition = "live"
        case "stopped":
            condition = "stopped"
        case "unseen":
            condition = "dead" if is_silent else "live"
    return Holder(claim, time_from_text(row.started_at), heartbeat_at, condition)


def _refusal(holder: Holder, now: datetime) -> str:
    claim = holder.claim
    silence_s = max(0, round((now - holder.heartbeat_at).total_seconds()))
    who = f"rollout {claim.rollout} is run by {claim.controller.owner}, pid {claim.controller.pid}"
    if holder.condition == "stopped":
        return f"{who}, which is stopped (SIGSTOP) since about {silence_s} s: end it, or take over with --force"
    if silence_s > DEAD_AFTER_S:
        return f"{who}, and hangs: last heartbeat {silence_s} s ago: end it, or take over with --force"
    return f"{who}, last heartbeat {silence_s} s ago: see `fleetctl rollout status`"
