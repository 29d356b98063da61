"""Which of the chosen nodes a rollout would take, and why each of the others is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from fleetctl.decide.guard import left_behind, may_be_taken
from fleetctl.decide.owing import outlasts
from fleetctl.model.drift import Drift
from fleetctl.model.mark import read_mark
from fleetctl.model.policy import RolloutPolicy
from fleetctl.model.reading import Reading
from fleetctl.model.survey import Observation
from fleetctl.model.work import Work


class Why(StrEnum):
    """Why a node is not planned."""

    NOT_DECLARED = "not_declared"
    NOT_IN_SCHEDULER = "not_in_scheduler"
    HELD = "held"
    OTHER_ROLLOUT = "other_rollout"
    LEASED = "leased"
    DOWN = "down"
    UNREACHABLE = "unreachable"
    NOT_OBSERVED = "not_observed"
    UNWELL = "unwell"
    REFUSED = "refused"
    HALF_CONFIGURED = "half_configured"
    OUTLASTS = "outlasts"
    NO_WAY_BACK = "no_way_back"


@dataclass(frozen=True, slots=True)
class NotPlanned:
    """One node that is left alone; `since` and `by` are the scheduler's words on who took it out."""

    node: str
    why: Why
    reason: str
    since: datetime | None = None
    by: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the selection rests on besides the survey."""

    policy: RolloutPolicy
    now: datetime
    adoptable: frozenset[str] = frozenset()
    """Rollouts that are over: what they left drained may be taken up."""
    lost: Mapping[str, Reading[tuple[str, ...]]] = field(default_factory=dict)
    """By node, packages of its way back that could not be had any more."""


def not_planned(node: str, seen: Reading[Observation], work: Work | None, terms: Terms) -> NotPlanned | None:
    """Why the node is left alone; None: it is taken, to be changed or to be verified and skipped."""
    if seen.kind == "not_applicable":
        return NotPlanned(node, Why.NOT_DECLARED, seen.reason)
    if work is None:
        step = "add it to slurm.conf, or leave it out of the inventory"
        return NotPlanned(node, Why.NOT_IN_SCHEDULER, "the scheduler does not know it", next_step=step)
    if work.cordoned and (taken := _taken_by_others(node, work, terms)):
        return taken
    if not seen.is_known:
        return NotPlanned(node, Why.UNREACHABLE, seen.reason, _out_since(work))
    found = seen.get()
    taken = _leased(node, found) or _out_of_use(node, work, terms)
    return taken or _judge(node, found, work, terms)


def _taken_by_others(node: str, work: Work, terms: Terms) -> NotPlanned | None:
    if left_behind(work.reason, terms.adoptable) is not None:
        return None
    finding = may_be_taken(work, None, terms.adoptable)
    if finding.is_clear:
        return None
    mark = read_mark(work.reason)
    if mark is not None:
        step = f"`fleetctl take-over {node}` adopts it if no controller runs that rollout"
        reason = f"drained by rollout {mark.rollout}"
        return NotPlanned(node, Why.OTHER_ROLLOUT, reason, work.reason_at, work.reason_by, step)
    if finding.kind == "foreign":
        return NotPlanned(node, Why.HELD, work.reason, work.reason_at, work.reason_by)
    return NotPlanned(
        node, Why.DOWN, f'drained by the scheduler itself: "{work.reason}"', work.reason_at, next_step="find out why"
    )


def _leased(node: str, found: Observation) -> NotPlanned | None:
    lease = found.facts.lease
    if lease.kind == "unknown":
        return NotPlanned(node, Why.NOT_OBSERVED, f"the lease on the node can't be read: {lease.reason}")
    if lease.is_known:
        holder = lease.get()
        step = f"`fleetctl take-over {node}` adopts it if no controller runs that rollout"
        return NotPlanned(
            node, Why.LEASED, f"leased by rollout {holder.rollout} of {holder.controller}", next_step=step
        )
    return None


def _out_of_use(node: str, work: Work, terms: Terms) -> NotPlanned | None:
    if may_be_taken(work, None, terms.adoptable).is_clear:
        return None
    reason = f"{'+'.join(sorted(work.states))} in the scheduler"
    reason += f': "{work.reason}"' if work.reason else ""
    return NotPlanned(node, Why.DOWN, reason, _out_since(work), next_step="bring it back first")


def _judge(node: str, found: Observation, work: Work, terms: Terms) -> NotPlanned | None:
    """As the rollout's own check would judge it (flows/acts/prepare.py), before anything is touched."""
    hardware = [drift for drift in found.troubles if drift.cause == "hardware"]
    if hardware:
        return NotPlanned(node, Why.UNWELL, tell(hardware[0]), next_step=hardware[0].remedy)
    if not found.to_change:
        return _judge_current(node, found)
    if found.refusals:
        first = found.refusals[0]
        return NotPlanned(node, Why.REFUSED, first.reason, next_step=first.next_step)
    broken = found.facts.broken_packages
    if not broken.is_known:
        return NotPlanned(node, Why.NOT_OBSERVED, f"package states can't be read: {broken.reason}")
    if broken.get():
        step = "finish them by hand (dpkg --configure -a)"
        return NotPlanned(node, Why.HALF_CONFIGURED, f"packages half-way: {', '.join(broken.get())}", next_step=step)
    if outlasts(work, terms.now, terms.policy.limits.draining_s):
        return NotPlanned(node, Why.OUTLASTS, _outlasting(work, terms), next_step="raise drain_timeout_h, or wait")
    lost = terms.lost.get(node)
    if lost is not None and lost.value and terms.policy.on_failed_verify == "roll_back":
        step = "put the version back into a repository, or set on_failed_verify: quarantine"
        return NotPlanned(node, Why.NO_WAY_BACK, no_way_back(lost.value), next_step=step)
    return None


def _judge_current(node: str, found: Observation) -> NotPlanned | None:
    if found.unread:
        return NotPlanned(node, Why.NOT_OBSERVED, tell(found.unread[0]), next_step=found.unread[0].remedy)
    if found.troubles:
        reason = f"as declared, but unwell: {tell(found.troubles[0])}"
        return NotPlanned(node, Why.UNWELL, reason, next_step=found.troubles[0].remedy)
    return None


def _outlasting(work: Work, terms: Terms) -> str:
    limit_h = terms.policy.limits.draining_s / 3600
    endless = [job.id for job in work.jobs if job.ends_by is None]
    if not work.jobs:
        return "allocated, and no job says until when"
    if endless:
        return f"job {endless[0]} has no time limit, and a drain waits {limit_h:g} h at most"
    last = max(work.jobs, key=lambda job: job.ends_by or terms.now)
    assert last.ends_by is not None
    left_h = (last.ends_by - terms.now).total_seconds() / 3600
    return f"job {last.id} may run for another {left_h:.0f} h, and a drain waits {limit_h:g} h at most"


def _out_since(work: Work) -> datetime | None:
    """Since when the scheduler has it out; a reason that stands on a node in use says nothing of that."""
    return work.reason_at if work.is_out else None


def no_way_back(lost: Sequence[str]) -> str:
    """In the words of the role's preflight (roles/package_closure)."""
    if len(lost) == 1:
        return f"no way back: {lost[0]} is in no repository"
    return f"no way back: {lost[0]} and {len(lost) - 1} more are in no repository"


def tell(drift: Drift) -> str:
    """One drift as a sentence."""
    if drift.is_unknown:
        return f"{drift.component} {drift.truth} {drift.observed}"
    return f"{drift.component} {drift.truth} is {drift.observed}, declared {drift.declared}"
