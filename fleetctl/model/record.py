"""What the rollout knows of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from fleetctl.model.drift import Disturbance
from fleetctl.model.node_facts import Identity
from fleetctl.model.rollout import Act, Closure, Course, Intent, Learnt, State


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of the rollout, folded from the journal; replaced, never changed in place."""

    name: str
    state: State = State.PENDING
    course: Course = Course.FORWARD
    entered_at: datetime | None = None
    wave: str = ""
    intent: Intent | None = None
    """The act under way: written down, its outcome not yet in."""
    attempts: int = 0
    """How often the act of this state was started without a usable outcome."""
    not_before: datetime | None = None
    next_act: Act | None = None
    """Owed instead of the state's own act (a power cycle after a restart that never came back)."""
    act_is_over: bool = False
    """The act of this state has ended, and the node waits for something else (a drain: to be empty)."""
    marked: bool = False
    """Our mark may be on the node: set with the first drain intent, cleared by an undrain that was read back."""
    marked_at: datetime | None = None
    """When the mark was known to stand; what was read of the scheduler before that says nothing of it."""
    changed: bool = False
    """Anything on the node may differ from how it was found: set with the first apply intent."""
    failed: bool = False
    """Counted against the failure budget in this attempt."""
    power_cycled: bool = False
    soaked: bool = False
    """The recheck at the end of the canary's soak has passed."""
    disturbance: Disturbance = Disturbance.REBOOT
    identity: Identity | None = None
    boot_id: str = ""
    closures: Mapping[str, Closure] = field(default_factory=dict)
    reason: str = ""
    turned_by: str = ""
    """Why it goes back, or home unchanged: what people want to know of it in the end."""
    lifts: int = 0

    @property
    def is_unchanged_under_way(self) -> bool:
        """True while the node can be given back as it was found."""
        return self.is_under_way and not self.changed and self.course is Course.FORWARD

    @property
    def is_under_way(self) -> bool:
        """True from admission until a final state."""
        return self.state is not State.PENDING and not self.state.is_final

    @property
    def conclusion(self) -> State:
        """The final state that an undrain of this node ends in."""
        return {Course.FORWARD: State.DONE, Course.BACK: State.ROLLED_BACK, Course.UNCHANGED: State.DEFERRED}[
            self.course
        ]

    def learning(self, learnt: Learnt) -> NodeRecord:
        """The record with what an act found out. The first identity and the first closures found stand."""
        return replace(
            self,
            disturbance=self.disturbance if learnt.disturbance is None else learnt.disturbance,
            identity=self.identity or learnt.identity,
            boot_id=learnt.boot_id or self.boot_id,
            closures=self.closures or learnt.closures or {},
        )


@dataclass(frozen=True, slots=True)
class Owed:
    """An intent with what is known of its node when it was written down."""

    intent: Intent
    record: NodeRecord
