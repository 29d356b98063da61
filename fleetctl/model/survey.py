"""A fleet as it was found at one time: what each node said of itself, judged, and what its scheduler said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fleetctl.model.drift import Disturbance, Drift, Refusal
from fleetctl.model.node_facts import NodeFacts
from fleetctl.model.reading import Reading, unknown
from fleetctl.model.rollout import Closure
from fleetctl.model.work import Work


@dataclass(frozen=True, slots=True)
class Observation:
    """One node as a fresh probe found it, and as its components judge that against what is declared for it.

    `declared` and `found` are versions as people read them, by component; only components declared for the node are
    in it. `to_change`, `troubles` and `unread` are parts of `drifts`: what the roles bring back, what they do not
    cure, and what could not be read.
    """

    facts: NodeFacts
    declared: Mapping[str, str]
    found: Mapping[str, str]
    drifts: tuple[Drift, ...] = ()
    to_change: tuple[Drift, ...] = ()
    troubles: tuple[Drift, ...] = ()
    unread: tuple[Drift, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    closures: Mapping[str, Closure] = field(default_factory=dict)
    """By component, the way back."""
    disturbance: Disturbance = Disturbance.NONE
    """What closing `to_change` costs."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The chosen nodes of a fleet, and the scheduler's word on all of it."""

    read_at: datetime
    components: tuple[str, ...]
    observed: Mapping[str, Reading[Observation]]
    """The chosen nodes in natural order. Not applicable: none of the components is declared for the node."""
    work: Reading[Mapping[str, Work]] = field(default_factory=lambda: unknown("the scheduler was not asked"))
    """By node name, for every node of the fleet that the scheduler knows."""
    lost: Mapping[str, Reading[tuple[str, ...]]] = field(default_factory=dict)
    """By node that needs a way back, the packages of it that are neither kept on the node nor in a repository."""
