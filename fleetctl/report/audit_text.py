"""The audit on one screen: what differs, on whom, and what closes it."""

from __future__ import annotations

from fleetctl.decide.audit import Audit, Finding
from fleetctl.report.tables import Column, sentence, table
from fleetctl.report.words import count, folded


def audit_text(audit: Audit) -> str:
    """At most 100 columns wide."""
    parts = [_head(audit), _findings(audit), _remedies(audit), _unobserved(audit)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _head(audit: Audit) -> list[str]:
    whole = [node for one in audit.unobserved for node in one.nodes if not one.component]
    partly = {node for one in audit.unobserved for node in one.nodes if one.component} - set(audit.drifting)
    counts = [
        (len(audit.as_declared), "as declared"),
        (len(audit.drifting), "with drift"),
        (len(partly), "not observed in part"),
        (len(whole), "not observed"),
        (len(audit.not_declared), f"without a declared {' or '.join(map(_plain, audit.components))}"),
    ]
    told = ", ".join(f"{number} {what}" for number, what in counts if number)
    return sentence(f"site {audit.site}: {count(len(audit.nodes), 'node')}: {told}", indent="  ")


def _findings(audit: Audit) -> list[str]:
    rows, last = [], None
    for finding in audit.findings:
        key = (finding.nodes, finding.component)
        nodes = folded(finding.nodes) if last is None or last[0] != finding.nodes else ""
        component = _plain(finding.component) if last != key else ""
        last = key
        declared, observed = finding.declared, finding.observed
        rows.append((nodes, component, _plain(finding.truth), declared, observed, _mark(finding)))
    columns = [
        Column("NODES", 24),
        Column("COMPONENT", 14),
        Column("TRUTH", 13),
        Column("DECLARED", 18),
        Column("OBSERVED"),
        Column("", 7),
    ]
    return table(columns, rows) if rows else []


def _mark(finding: Finding) -> str:
    return "" if finding.severity == "error" else finding.severity


def _remedies(audit: Audit) -> list[str]:
    """Each remedy once, with all the nodes that need it."""
    together: dict[tuple[str, str], dict[str, None]] = {}
    for finding in audit.findings:
        if finding.remedy and finding.severity != "info":
            nodes = together.setdefault((finding.component, finding.remedy), {})
            nodes.update(dict.fromkeys(finding.nodes))
    rows = [(folded(nodes), _plain(component), remedy) for (component, remedy), nodes in together.items()]
    if not rows:
        return []
    lines = table([Column("TO DO", 24), Column("COMPONENT", 14), Column("")], rows)
    curable = dict.fromkeys(
        one.component for one in audit.findings if one.cause == "version" and one.severity == "error"
    )
    return [*lines, f"what a rollout would do about it: fleetctl plan {','.join(curable)}"] if curable else lines


def _unobserved(audit: Audit) -> list[str]:
    rows = [
        (
            folded(one.nodes),
            f"{_plain(one.component)} {_plain(one.truth)}" if one.component else "the whole node",
            one.reason.removeprefix("unknown: "),
        )
        for one in audit.unobserved
    ]
    return table([Column("NOT OBSERVED", 24), Column("WHAT", 28), Column("WHY")], rows) if rows else []


def _plain(name: str) -> str:
    return name.replace("_", " ")
