"""The life of a node in a rollout: one table. The README's copy is generated from it.

A state owes one act. The act's result, or the state's limit running out, says where the node goes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fleetctl.model.rollout import Act, Result, State


class Turn(Enum):
    """Where a node goes when one state is not the whole answer."""

    AGAIN = "observe again"
    BACK = "direction back, else quarantined"
    ONWARD = "restarting, or verifying where no restart is needed"
    BY_DISTURBANCE = "draining, or applying where nothing is disturbed"
    CONCLUDE = "done, rolled_back or deferred"
    STAY = "stays"
    POWER_CYCLE = "power cycle where declared, else quarantined"
    UNCHANGED_OR_BACK = "returning if nothing was changed, else as failed"


@dataclass(frozen=True, slots=True)
class Row:
    state: State
    owes: Act | None
    results: Mapping[Result, State | Turn]
    late: State | Turn | None = None
    """Past the state's limit; None: the state has no limit."""


_AGAIN = {Result.UNKNOWN: Turn.AGAIN}
_HELD = {Result.FOREIGN: State.HELD}

LIFECYCLE: Mapping[State, Row] = {
    row.state: row
    for row in (
        Row(State.PENDING, None, {}),
        Row(
            State.CHECKING,
            Act.CHECK,
            {
                Result.OK: Turn.BY_DISTURBANCE,
                Result.CURRENT: State.SKIPPED,
                Result.UNWELL: State.UNHEALTHY,
                Result.FAILED: State.DEFERRED,
                Result.BLOCKED: State.DEFERRED,
                **_HELD,
                **_AGAIN,
            },
            late=State.DEFERRED,
        ),
        Row(
            State.DRAINING,
            Act.DRAIN,
            # ok: marked; the node moves on when it is seen empty (event Emptied)
            {Result.OK: Turn.STAY, Result.FAILED: State.RETURNING, **_HELD, **_AGAIN},
            late=State.RETURNING,
        ),
        Row(
            State.PREFLIGHT,
            Act.PREFLIGHT,
            {
                Result.OK: State.APPLYING,
                Result.FAILED: State.RETURNING,
                Result.BLOCKED: State.RETURNING,
                **_HELD,
                **_AGAIN,
            },
            late=State.RETURNING,
        ),
        Row(
            State.APPLYING,
            Act.APPLY,
            {
                Result.OK: Turn.ONWARD,
                Result.FAILED: Turn.BACK,
                Result.BLOCKED: Turn.UNCHANGED_OR_BACK,
                **_HELD,
                **_AGAIN,
            },
            late=Turn.AGAIN,
        ),
        Row(
            State.RESTARTING,
            Act.RESTART,
            {Result.OK: State.VERIFYING, Result.FAILED: Turn.BACK, **_HELD, **_AGAIN},
            late=Turn.POWER_CYCLE,
        ),
        Row(
            State.VERIFYING,
            Act.VERIFY,
            {
                Result.OK: State.UNDRAINING,
                Result.FAILED: Turn.BACK,
                Result.HARDWARE: State.QUARANTINED,
                **_HELD,
                **_AGAIN,
            },
            late=Turn.BACK,
        ),
        Row(
            State.UNDRAINING,
            Act.UNDRAIN,
            {Result.OK: Turn.CONCLUDE, Result.FAILED: State.QUARANTINED, **_HELD, **_AGAIN},
            late=State.QUARANTINED,
        ),
        Row(
            State.RETURNING,
            Act.VERIFY_UNCHANGED,
            {
                Result.OK: State.UNDRAINING,
                Result.FAILED: State.QUARANTINED,
                Result.HARDWARE: State.QUARANTINED,
                **_HELD,
                **_AGAIN,
            },
            late=State.QUARANTINED,
        ),
        Row(
            State.QUARANTINED,
            Act.LABEL,
            {Result.OK: Turn.STAY, Result.FAILED: Turn.STAY, Result.FOREIGN: Turn.STAY, **_AGAIN},
            late=Turn.STAY,
        ),
        Row(State.DONE, None, {}),
        Row(State.SKIPPED, None, {}),
        Row(State.UNHEALTHY, None, {}),
        Row(State.DEFERRED, None, {}),
        Row(
            State.HELD,
            Act.LET_GO,
            {Result.OK: Turn.STAY, Result.FAILED: Turn.STAY, Result.FOREIGN: Turn.STAY, **_AGAIN},
            late=Turn.STAY,
        ),
        Row(State.ROLLED_BACK, None, {}),
    )
}
