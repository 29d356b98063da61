"""Canary first: the main wave opens when enough canaries are done, have soaked, and passed a second verify."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from fleetctl.model.rollout import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetctl.model.policy import RolloutPolicy
    from fleetctl.model.record import NodeRecord

CANARY = "canary"
MAIN = "main"


class CanaryGate:
    """A canary that does not end well is replaced by another; its failure counts like any other."""

    def __init__(self, policy: RolloutPolicy) -> None:
        self._wanted = policy.canary
        self._soak = timedelta(seconds=policy.soak_s)
        self._members: dict[str, NodeRecord] = {}

    def update(self, record: NodeRecord) -> None:
        if record.wave == CANARY:
            self._members[record.name] = record

    @property
    def is_open(self) -> bool:
        return sum(1 for member in self._members.values() if member.soaked) >= self._wanted

    @property
    def wants_another(self) -> bool:
        """True if one more canary may be admitted."""
        good = sum(1 for member in self._members.values() if member.is_under_way or member.state is State.DONE)
        return good < self._wanted

    def soaked_at(self) -> datetime | None:
        """When the soak of the present canaries ends; None while they are not all done."""
        done = [member for member in self._members.values() if member.state is State.DONE]
        if self.is_open or len(done) < self._wanted:
            return None
        return max(member.entered_at for member in done if member.entered_at is not None) + self._soak

    def owing_recheck(self, now: datetime) -> Iterable[NodeRecord]:
        """Canaries whose soak is over and whose second verify is not yet under way."""
        ends = self.soaked_at()
        if ends is None or now < ends:
            return ()
        return tuple(
            member
            for member in self._members.values()
            if member.state is State.DONE
            and not member.soaked
            and member.intent is None
            and (member.not_before is None or member.not_before <= now)
        )
