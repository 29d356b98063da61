"""The plan of a rollout on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo

from fleetctl.decide.candidates import NotPlanned, Why
from fleetctl.decide.plan import NodeChange, Plan, Wave, from_to, title
from fleetctl.model.drift import Disturbance
from fleetctl.model.names import fold
from fleetctl.report.tables import Column, sentence, table
from fleetctl.report.words import age, ago, clock, count, folded, hours

_WHY = {
    Why.NOT_DECLARED: "not declared",
    Why.NOT_IN_SCHEDULER: "not in the scheduler",
    Why.HELD: "held",
    Why.OTHER_ROLLOUT: "another rollout's",
    Why.LEASED: "leased",
    Why.DOWN: "down",
    Why.UNREACHABLE: "unreachable",
    Why.NOT_OBSERVED: "can't be judged",
    Why.UNWELL: "unwell",
    Why.REFUSED: "refused",
    Why.HALF_CONFIGURED: "half-configured",
    Why.OUTLASTS: "busy for too long",
    Why.NO_WAY_BACK: "no way back",
}


def plan_text(plan: Plan, zone: tzinfo) -> str:
    """The whole plan, at most 100 columns wide."""
    parts = [_head(plan), _not_planned(plan), _transitions(plan), _waves(plan, zone), _foot(plan)]
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines)


def _head(plan: Plan) -> Iterator[str]:
    yield plan.summary
    chosen = len(plan.to_change) + len(plan.current) + len(plan.not_planned)
    counts = [("change", len(plan.to_change)), ("already current", len(plan.current))]
    counts.append(("not planned", len(plan.not_planned)))
    told = ", ".join(f"{word} {number}" for word, number in counts if number or word == "change")
    of = "" if chosen == plan.declared else f", {chosen} of them chosen"
    yield f"site {plan.site}: {count(plan.declared, 'node')} declared{of}: {told}"
    for note in plan.notes:
        yield from sentence(f"note: {note}", indent="      ")


def _not_planned(plan: Plan) -> list[str]:
    together: dict[tuple[str, str], list[str]] = {}
    for found in plan.not_planned:
        together.setdefault((_WHY[found.why], _reason(found, plan)), []).append(found.node)
    if plan.busy_current:
        reason = "already current; the rollout leaves it alone, since its work may outlast the drain limit"
        together["current", reason] = list(plan.busy_current)
    rows = [(folded(nodes), why, reason) for (why, reason), nodes in together.items()]
    return table([Column("NOT PLANNED", 28), Column("WHY", 20), Column("")], rows) if rows else []


def _reason(found: NotPlanned, plan: Plan) -> str:
    when = f" {ago(found.since, plan.made_at)}" if found.since else ""
    if found.why is Why.HELD:
        by = f"drained by {found.by or 'somebody'}{when}"
        return f'{by}: "{found.reason}"' if found.reason else f"{by}, without a reason"
    step = f"; {found.next_step}" if found.next_step else ""
    if found.why is Why.OTHER_ROLLOUT:
        return f"{found.reason}{when}{step}"
    out = f"; out for {age(found.since, plan.made_at)}" if found.since else ""
    return f"{found.reason.removeprefix(f'{_WHY[found.why]}: ')}{out}{step}"


def _transitions(plan: Plan) -> list[str]:
    """Only where the first line could not tell all."""
    own = [transition for transition in plan.transitions if transition.component in plan.chosen]
    if len(own) <= len({transition.component for transition in own}):
        return []
    rows = [(title(one.component), from_to(one.before, one.after), folded(one.nodes)) for one in own]
    return table([Column("COMPONENT", 20), Column("CHANGE", 46), Column("NODES")], rows)


def _waves(plan: Plan, zone: tzinfo) -> list[str]:
    if not plan.to_change:
        return []
    rows = []
    for wave in plan.waves:
        rows.append(
            (
                wave.name,
                fold(wave.nodes),
                str(len(wave.nodes)),
                str(wave.out_at_once),
                _waits_for(wave, plan, zone),
                hours(wave.takes_s),
            )
        )
        if wave.name == "canary" and plan.soak_s:
            rows.append(("", "soak, then verify again", "", "", "", hours(plan.soak_s)))
    if len(rows) > 1:
        rows.append(("total", "", str(sum(len(wave.nodes) for wave in plan.waves)), "", "", hours(plan.takes_s)))
    columns = [
        Column("WAVE", 6),
        Column("NODES"),
        Column("COUNT", 6, is_right=True),
        Column("OUT AT ONCE", 11, is_right=True),
        Column("WAITS FOR", 32),
        Column("ETA", 7, is_right=True),
    ]
    return table(columns, rows) if rows else []


def _waits_for(wave: Wave, plan: Plan, zone: tzinfo) -> str:
    if not wave.jobs:
        return "nothing, all are idle" if len(wave.nodes) > 1 else "nothing, it is idle"
    last = f" by {clock(wave.last_end, plan.made_at, zone)}" if wave.last_end else ""
    return f"1 job, ends{last}" if wave.jobs == 1 else f"{wave.jobs} jobs, the last ends{last}"


def _foot(plan: Plan) -> Iterator[str]:
    if not plan.to_change:
        if plan.current:
            yield "nothing to change: a rollout would verify the current nodes and leave them as they are"
        return
    yield from sentence(_budget(plan), indent="        ")
    if plan.stuck:
        yield from _stuck(plan)
    if not plan.waves:
        return
    yield from _steps(plan)
    no_way_back = [change.node for change in plan.to_change if not change.has_way_back]
    if no_way_back:
        yield from sentence(
            f"no way back on {folded(no_way_back)}: nothing that could be restored is installed; one that fails is "
            "quarantined",
            indent="        ",
        )
    unknown = plan.without_gpu_count
    beside = f", without {count(unknown, 'node')} whose GPUs nobody counts" if unknown else ""
    yield f"GPU-hours lost: about {plan.gpu_hours:.0f}{beside}"


def _budget(plan: Plan) -> str:
    budgets = plan.budgets
    allowed = f"{budgets.allowed}" + (f" ({budgets.whole})" if budgets.whole.is_percent else "")
    text = f"budget: {allowed} of {count(plan.declared, 'node')} may be out at once"
    text += "".join(f", {limit} per {kind}" for kind, limit in budgets.per_kind.items())
    kinds = dict.fromkeys(kind for wave in plan.waves for kind in wave.limited_by if kind != "fleet")
    text += f" (what holds nodes back: {', '.join(kinds)})" if kinds else ""
    if not budgets.out:
        return f"{text}; none is out now"
    return f"{text}; out now {len(budgets.out)}: {fold(node.node for node in budgets.out)}"


def _stuck(plan: Plan) -> Iterator[str]:
    together: dict[str, list[str]] = {}
    for node, full in plan.stuck.items():
        together.setdefault(str(full), []).append(node)
    for reason, nodes in together.items():
        yield from sentence(f"waits until others are back: {folded(nodes)} ({reason})", indent="        ")


def _steps(plan: Plan) -> Iterator[str]:
    """What happens to one node, once for each kind of disturbance."""
    typical = "as measured so far" if plan.typical.measured else "a default: nothing was measured yet"
    together: dict[Disturbance, list[NodeChange]] = {}
    for change in plan.to_change:
        together.setdefault(change.disturbance, []).append(change)
    for changes in together.values():
        alike = len(changes) == len(plan.to_change)
        where = "each node" if alike else folded(change.node for change in changes)
        fewest, most = min(changes, key=lambda c: c.packages), max(changes, key=lambda c: c.packages)
        steps = ", ".join(most.steps)
        if 0 < fewest.packages < most.packages:
            steps = steps.replace(f"replace {most.packages}", f"replace {fewest.packages} to {most.packages}")
        minutes = round(changes[0].takes_s / 60)
        yield from sentence(f"{where}: {steps}; about {minutes} min each ({typical})", indent="        ")
