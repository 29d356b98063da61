"""Declared against observed, over a whole fleet: equal findings together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fleetctl.model.drift import Cause, Disturbance, Drift, Severity
from fleetctl.model.survey import Survey


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference, and every node that has it."""

    component: str
    truth: str
    declared: str
    observed: str
    severity: Severity
    cause: Cause
    disturbance: Disturbance
    remedy: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unobserved:
    """What could not be read, and of whom: a whole node (no component), or one truth of it."""

    reason: str
    nodes: tuple[str, ...]
    component: str = ""
    truth: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """Every chosen node is in `as_declared`, in `drifting`, in `unobserved` or in `not_declared`."""

    site: str
    read_at: datetime
    components: tuple[str, ...]
    nodes: tuple[str, ...]
    as_declared: tuple[str, ...]
    """Everything was read, and nothing but notes ("info") was found."""
    drifting: tuple[str, ...]
    findings: tuple[Finding, ...]
    unobserved: tuple[Unobserved, ...]
    not_declared: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """True if every declared truth of every node was read and is as declared."""
        return not self.drifting and not self.unobserved


_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


def make_audit(survey: Survey, site: str) -> Audit:
    found: dict[Drift, list[str]] = {}
    unread: dict[tuple[str, str, str], list[str]] = {}
    as_declared, drifting, not_declared = [], [], []
    for node, seen in survey.observed.items():
        if seen.kind == "not_applicable":
            not_declared.append(node)
        elif not seen.is_known:
            unread.setdefault((seen.reason, "", ""), []).append(node)
        else:
            drifts = seen.get().drifts
            for drift in dict.fromkeys(drifts):
                if drift.is_unknown:
                    unread.setdefault((drift.observed, drift.component, drift.truth), []).append(node)
                else:
                    found.setdefault(drift, []).append(node)
            known = [drift for drift in drifts if not drift.is_unknown and drift.severity != "info"]
            if known:
                drifting.append(node)
            elif not any(drift.is_unknown for drift in drifts):
                as_declared.append(node)
    return Audit(
        site=site,
        read_at=survey.read_at,
        components=survey.components,
        nodes=tuple(survey.observed),
        as_declared=tuple(as_declared),
        drifting=tuple(drifting),
        findings=_ordered(found, survey.components),
        unobserved=tuple(
            Unobserved(reason, tuple(nodes), component, truth) for (reason, component, truth), nodes in unread.items()
        ),
        not_declared=tuple(not_declared),
    )


def _ordered(found: dict[Drift, list[str]], components: tuple[str, ...]) -> tuple[Finding, ...]:
    """Nodes that have the same findings stand together; the worst first, then the most nodes."""
    order = {component: place for place, component in enumerate(components)}
    worst: dict[tuple[str, ...], int] = {}
    for drift, nodes in found.items():
        key = tuple(nodes)
        worst[key] = min(worst.get(key, 9), _RANK[drift.severity])
    findings = [
        Finding(
            drift.component,
            drift.truth,
            drift.declared,
            drift.observed,
            drift.severity,
            drift.cause,
            drift.disturbance,
            drift.remedy,
            tuple(nodes),
        )
        for drift, nodes in found.items()
    ]
    # Sorting is stable: truths of one component keep the order in which the component looks at them.
    findings.sort(key=lambda one: (worst[one.nodes], -len(one.nodes), one.nodes, order.get(one.component, 99)))
    return tuple(findings)
