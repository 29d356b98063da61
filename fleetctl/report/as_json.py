"""The same reports for scripts. Keys are stable: one may be added, none changes its meaning or goes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from fleetctl.decide.audit import Audit
from fleetctl.decide.plan import NodeChange, Plan, Wave
from fleetctl.model.fleet import Json


def plan_json(plan: Plan) -> Mapping[str, Json]:
    """Spans are seconds (`_s`), times are ISO 8601 in UTC."""
    return {
        "site": plan.site,
        "made_at": _time(plan.made_at),
        "summary": plan.summary,
        "components": list(plan.components),
        "overrides": dict(plan.overrides),
        "notes": list(plan.notes),
        "declared": plan.declared,
        "nodes": list(plan.nodes),
        "to_change": {change.node: _change(change) for change in plan.to_change},
        "current": list(plan.current),
        "current_but_busy": list(plan.busy_current),
        "not_planned": {
            found.node: {
                "why": found.why.value,
                "reason": found.reason,
                "since": _time(found.since),
                "by": found.by,
                "next_step": found.next_step,
            }
            for found in plan.not_planned
        },
        "waves": [_wave(wave) for wave in plan.waves],
        "waits_until_others_are_back": {node: str(full) for node, full in plan.stuck.items()},
        "max_unavailable": {
            "setting": str(plan.budgets.whole),
            "allowed": plan.budgets.allowed,
            "per_kind": {kind: str(limit) for kind, limit in plan.budgets.per_kind.items()},
            "out_now": {out.node: out.reason for out in plan.budgets.out},
        },
        "soak_s": plan.soak_s,
        "takes_s": plan.takes_s,
        "is_measured": plan.typical.measured > 0,
        "gpu_hours_lost": round(plan.gpu_hours, 1),
        "without_gpu_count": plan.without_gpu_count,
    }


def audit_json(audit: Audit) -> Mapping[str, Json]:
    """Every chosen node is in `as_declared`, `drifting`, `not_observed` or `not_declared`."""
    return {
        "site": audit.site,
        "read_at": _time(audit.read_at),
        "components": list(audit.components),
        "is_clean": audit.is_clean,
        "nodes": list(audit.nodes),
        "as_declared": list(audit.as_declared),
        "drifting": list(audit.drifting),
        "not_declared": list(audit.not_declared),
        "findings": [
            {
                "component": one.component,
                "truth": one.truth,
                "declared": one.declared,
                "observed": one.observed,
                "severity": one.severity,
                "cause": one.cause,
                "disturbance": one.disturbance.name.lower(),
                "remedy": one.remedy,
                "nodes": list(one.nodes),
            }
            for one in audit.findings
        ],
        "not_observed": [
            {"component": one.component, "truth": one.truth, "reason": one.reason, "nodes": list(one.nodes)}
            for one in audit.unobserved
        ],
    }


def _change(change: NodeChange) -> Json:
    return {
        "from": dict(change.before),
        "to": dict(change.after),
        "drifts": [
            {"component": d.component, "truth": d.truth, "declared": d.declared, "observed": d.observed}
            for d in change.drifts
        ],
        "disturbance": change.disturbance.name.lower(),
        "steps": list(change.steps),
        "packages": change.packages,
        "has_way_back": change.has_way_back,
        "way_back_doubt": change.way_back_doubt,
        "jobs": [job.id for job in change.jobs],
        "free_at": _time(change.free_at),
        "takes_s": change.takes_s,
        "gpus": change.gpus,
    }


def _wave(wave: Wave) -> Json:
    return {
        "name": wave.name,
        "nodes": list(wave.nodes),
        "out_at_once": wave.out_at_once,
        "limited_by": list(wave.limited_by),
        "jobs": wave.jobs,
        "last_end": _time(wave.last_end),
        "takes_s": wave.takes_s,
    }


def _time(at: datetime | None) -> str | None:
    return at.isoformat(timespec="seconds") if at else None
