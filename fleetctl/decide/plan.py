"""The plan of a rollout: which nodes, in which waves, what each waits for, how long, at what cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fleetctl.decide.budget import FLEET, Budget, Full
from fleetctl.decide.candidates import NotPlanned, Terms, Why, not_planned
from fleetctl.decide.eta import Forecast, Load, Typical, WaveForecast, forecast
from fleetctl.decide.owing import outlasts
from fleetctl.errors import InventoryError, PolicyError, SchedulerError
from fleetctl.model.drift import Disturbance, Drift
from fleetctl.model.fleet import Fleet, Json
from fleetctl.model.names import fold, natural_key
from fleetctl.model.policy import Limit, RolloutPolicy
from fleetctl.model.reading import Reading
from fleetctl.model.survey import Observation, Survey
from fleetctl.model.work import Job, Work

_RESTART = {
    Disturbance.REBOOT: ("reboot",),
    Disturbance.COLD: ("power off and on",),
    Disturbance.AUX_CYCLE: ("cut and restore power",),
}


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One node that will be changed."""

    node: str
    before: Mapping[str, str]
    """By component that drifts, what was found."""
    after: Mapping[str, str]
    drifts: tuple[Drift, ...]
    disturbance: Disturbance
    packages: int
    """Packages that are installed now and will be replaced."""
    has_way_back: bool
    way_back_doubt: str
    """Why it is not known whether the packages of the way back could be had; empty: they can, or none is needed."""
    jobs: tuple[Job, ...]
    free_at: datetime | None
    """When its work must have ended by its limits; None: nothing is on it."""
    gpus: int | None
    takes_s: float
    """From the moment its work has ended until it is given back."""

    @property
    def steps(self) -> tuple[str, ...]:
        """What happens to the node, in order."""
        packages = f"replace {self.packages} packages" if self.packages else "install packages"
        if self.disturbance is Disturbance.NONE:
            return (packages, "verify")
        return ("drain", packages, *_RESTART.get(self.disturbance, ()), "verify", "undrain")


@dataclass(frozen=True, slots=True)
class Transition:
    """Nodes on which one component goes from one version to another."""

    component: str
    before: str
    after: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutNow:
    """A node of the fleet that is out already and counts against the budget."""

    node: str
    reason: str
    is_planned: bool


@dataclass(frozen=True, slots=True)
class Wave:
    name: str
    nodes: tuple[str, ...]
    out_at_once: int
    limited_by: tuple[str, ...]
    jobs: int
    """Jobs that must end first."""
    last_end: datetime | None
    takes_s: float


@dataclass(frozen=True, slots=True)
class Budgets:
    """How many nodes may be out at once, and how many are."""

    whole: Limit
    allowed: int
    per_kind: Mapping[str, Limit]
    out: tuple[OutNow, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a person wants to know before saying yes. `nodes` is what the rollout will be opened with."""

    site: str
    made_at: datetime
    chosen: tuple[str, ...]
    """Components that the person named."""
    components: tuple[str, ...]
    """Those and what moves with them, in order."""
    summary: str
    """One line, also for the drain reason: "driver 570.195.03 -> 580.95.05 (open), fabric manager with it"."""
    declared: int
    """Nodes of the whole fleet."""
    to_change: tuple[NodeChange, ...]
    current: tuple[str, ...]
    not_planned: tuple[NotPlanned, ...]
    transitions: tuple[Transition, ...]
    waves: tuple[Wave, ...]
    stuck: Mapping[str, Full]
    """Nodes to change that can't be taken while the nodes that are out now stay out."""
    budgets: Budgets
    soak_s: float
    takes_s: float
    typical: Typical
    gpu_hours: float
    without_gpu_count: int
    """Nodes to change of which nobody says how many GPUs they have; they are missing in `gpu_hours`."""
    overrides: Mapping[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    busy_current: tuple[str, ...] = ()
    """Current nodes that the rollout leaves out, since their work may outlast the drain limit."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes to change, and current ones that the rollout verifies and skips."""
        left_out = set(self.busy_current)
        names = [change.node for change in self.to_change] + [name for name in self.current if name not in left_out]
        return tuple(sorted(names, key=natural_key))

    @property
    def is_converged(self) -> bool:
        """True if every chosen node is as declared."""
        return not self.to_change and not self.not_planned


def make_plan(
    survey: Survey,
    fleet: Fleet,
    policy: RolloutPolicy,
    chosen: tuple[str, ...],
    overrides: Mapping[str, Json] | None = None,
    adoptable: frozenset[str] = frozenset(),
    typical: Typical | None = None,
) -> Plan:
    """The plan for the surveyed nodes. SchedulerError: its word is missing; InventoryError: nothing is declared."""
    if not survey.work.is_known:
        raise SchedulerError(f"nothing can be planned without the scheduler: {survey.work.reason}")
    typical, overrides = typical or Typical(), overrides or {}
    work, now = survey.work.get(), survey.read_at
    terms = Terms(policy, now, adoptable, survey.lost)
    left_alone = {
        node: found
        for node, seen in survey.observed.items()
        if (found := not_planned(node, seen, work.get(node), terms)) is not None
    }
    if (
        left_alone
        and all(found.why is Why.NOT_DECLARED for found in left_alone.values())
        and not (len(left_alone) < len(survey.observed))
    ):
        raise InventoryError(f"none of these nodes declares a version of {' or '.join(chosen)}")
    taken = {node: seen.get() for node, seen in survey.observed.items() if node not in left_alone}
    changes = tuple(
        _change(node, found, work[node], typical, now, survey.lost.get(node))
        for node, found in taken.items()
        if found.to_change
    )
    current = tuple(node for node, found in taken.items() if not found.to_change)
    loads = {change.node: Load(work[change.node], change.disturbance) for change in changes}
    out = _out_now(fleet, work, left_alone, loads)
    expected = forecast(loads, _budget(fleet, policy, out), policy, typical, now)
    transitions = _transitions(survey.components, changes)
    return Plan(
        site=fleet.site,
        made_at=now,
        chosen=chosen,
        components=survey.components,
        summary=_summary(chosen, transitions),
        declared=len(fleet.nodes),
        to_change=changes,
        current=current,
        not_planned=tuple(left_alone.values()),
        transitions=transitions,
        waves=_waves(expected, {change.node: change for change in changes}),
        stuck=expected.never,
        budgets=Budgets(
            policy.max_unavailable, policy.max_unavailable.of(len(fleet.nodes)), policy.max_unavailable_per, out
        ),
        soak_s=expected.soak_s,
        takes_s=expected.total_s,
        typical=typical,
        gpu_hours=sum((change.gpus or 0) * change.takes_s for change in changes) / 3600,
        without_gpu_count=sum(1 for change in changes if change.gpus is None),
        overrides=overrides,
        notes=(*_notes(fleet, survey, overrides), *_doubts(changes)),
        busy_current=tuple(node for node in current if outlasts(work[node], now, policy.limits.draining_s)),
    )


def require_room(plan: Plan) -> None:
    """Raises PolicyError if not one node could be taken while those that are out now stay out."""
    if not plan.stuck or plan.waves:
        return
    full = min(plan.stuck.values(), key=lambda full: full.out + 1 - full.allowed)
    kind, value = full.domain
    setting = "max_unavailable" if full.domain == FLEET else f"max_unavailable_per {kind}"
    where = "" if full.domain == FLEET else f" in {kind} {value}"
    names = fold(node.node for node in plan.budgets.out)
    raise PolicyError(
        f"no node could be taken out: {setting} allows {full.allowed}{where}, and {full.out} "
        f"{'is' if full.out == 1 else 'are'} out already ({names}): bring those back, or set {setting} to "
        f"{full.out + 1} or more"
    )


def _change(
    node: str,
    found: Observation,
    work: Work,
    typical: Typical,
    now: datetime,
    lost: Reading[tuple[str, ...]] | None,
) -> NodeChange:
    names = dict.fromkeys(drift.component for drift in found.to_change)
    return NodeChange(
        node=node,
        before={name: found.found[name] for name in names},
        after={name: found.declared[name] for name in names},
        drifts=found.to_change,
        disturbance=found.disturbance,
        packages=sum(len(found.closures[name].packages) for name in names if name in found.closures),
        has_way_back=all(name in found.closures for name in names),
        way_back_doubt=lost.reason if lost is not None else "",
        jobs=work.jobs,
        free_at=None if work.empty else Load(work, found.disturbance).free_at(now),
        gpus=work.gpus_configured,
        takes_s=typical.node_s(found.disturbance),
    )


def _out_now(
    fleet: Fleet, work: Mapping[str, Work], left_alone: Mapping[str, NotPlanned], loads: Mapping[str, Load]
) -> tuple[OutNow, ...]:
    """Everyone who is out, chosen for this rollout or not: whoever is out counts."""
    found = []
    for node in sorted(fleet.nodes, key=natural_key):
        seen = work.get(node)
        if seen is None:
            found.append(OutNow(node, "the scheduler does not know it", is_planned=False))
        elif seen.is_out:
            reason = seen.reason or "+".join(sorted(seen.states))
            found.append(OutNow(node, reason, is_planned=node in loads and node not in left_alone))
    return tuple(found)


def _budget(fleet: Fleet, policy: RolloutPolicy, out: Iterable[OutNow]) -> Budget:
    domains = {name: tuple(node.domains.items()) for name, node in fleet.nodes.items()}
    budget = Budget(domains, policy.max_unavailable, policy.max_unavailable_per)
    for node in out:
        budget.count(node.node, out=True)
    return budget


def _waves(expected: Forecast, changes: Mapping[str, NodeChange]) -> tuple[Wave, ...]:
    return tuple(_wave(name, found, [changes[node] for node in found.nodes]) for name, found in expected.waves.items())


def _wave(name: str, found: WaveForecast, changes: list[NodeChange]) -> Wave:
    busy = [change for change in changes if change.free_at is not None]
    return Wave(
        name=name,
        nodes=found.nodes,
        out_at_once=found.out_at_once,
        limited_by=found.limited_by,
        jobs=len({job.id for change in busy for job in change.jobs}),
        last_end=max((change.free_at for change in busy if change.free_at is not None), default=None),
        takes_s=found.took_s,
    )


def _transitions(components: Iterable[str], changes: Iterable[NodeChange]) -> tuple[Transition, ...]:
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for change in changes:
        for component, before in change.before.items():
            nodes.setdefault((component, before, change.after[component]), []).append(change.node)
    order = {component: place for place, component in enumerate(components)}
    found = sorted(nodes.items(), key=lambda item: (order[item[0][0]], -len(item[1]), item[0]))
    return tuple(Transition(*key, tuple(names)) for key, names in found)


def _summary(chosen: tuple[str, ...], transitions: tuple[Transition, ...]) -> str:
    parts = []
    for component in chosen:
        own = [transition for transition in transitions if transition.component == component]
        parts.append(f"{title(component)} {_story(own)}" if own else f"{title(component)}: nothing to change")
    followers = dict.fromkeys(one.component for one in transitions if one.component not in chosen)
    parts += [f"{title(component)} with it" for component in followers]
    return ", ".join(parts)


def _story(own: list[Transition]) -> str:
    text = from_to(own[0].before, own[0].after)
    return f"{text} and {len(own) - 1} more" if len(own) > 1 else text


def from_to(before: str, after: str) -> str:
    """ "570.195.03 -> 580.95.05 (open)": what both have in their brackets is said once."""
    if before == after:
        return f"{after}, not in all its parts"
    head, _, tail = before.partition(" (")
    return f"{head} -> {after}" if tail and after.endswith(f" ({tail}") else f"{before} -> {after}"


def title(component: str) -> str:
    """A component's name in a sentence."""
    return component.replace("_", " ")


def _notes(fleet: Fleet, survey: Survey, overrides: Mapping[str, Json]) -> tuple[str, ...]:
    notes = []
    for variable, value in overrides.items():
        said = Counter(str(fleet.nodes[node].variables.get(variable, "nothing")) for node in survey.observed)
        said.pop(str(value), None)
        if said:
            others = ", ".join(text for text, _ in said.most_common())
            notes.append(
                f"{variable} is {value} for this rollout only: the inventory still says {others}, and the audit will "
                "call that drift until it follows"
            )
    return tuple(notes)


def _doubts(changes: Iterable[NodeChange]) -> Iterator[str]:
    together: dict[str, list[str]] = {}
    for change in changes:
        if change.way_back_doubt:
            together.setdefault(change.way_back_doubt, []).append(change.node)
    for doubt, nodes in together.items():
        yield (
            f"not proven that {fold(nodes)} could come back ({doubt}): the preflight looks again, on the drained node, "
            "which goes home unchanged if it could not"
        )
