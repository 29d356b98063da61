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
        return sum(1 for member in self._members.values() if self._has_soaked(member)) >= self._wanted

    def _has_soaked(self, member: NodeRecord) -> bool:
        return member.soaked or (not self._soak and member.state is State.DONE)

    @property
    def wants_another(self) -> bool:
        """True if one more canary may be admitted."""
        good = sum(1 for member in self._members.values() if member.is_under_way or member.state is State.DONE)
        return good < self._wanted

    @property
    def is_soaking(self) -> bool:
        """True while enough canaries are done and what they owe is time, or a second verify."""
        return not self.is_open and len(self._done()) >= self._wanted

    def next_look(self) -> datetime | None:
        """When a second verify will be owed that is neither under way nor waiting for its next try."""
        waiting = [
            member for member in self._done() if not member.soaked and not member.intent and not member.not_before
        ]
        return self._soak_ends() if self.is_soaking and waiting else None

    def owing_recheck(self, now: datetime) -> Iterable[NodeRecord]:
        """Canaries whose soak is over and whose second verify is not under way."""
        if not self.is_soaking or now < self._soak_ends():
            return ()
        return tuple(
            member
            for member in self._done()
            if not member.soaked and member.intent is None and (member.not_before is None or member.not_before <= now)
        )

    def _done(self) -> list[NodeRecord]:
        return [member for member in self._members.values() if member.state is State.DONE]

    def _soak_ends(self) -> datetime:
        return max(member.entered_at for member in self._done() if member.entered_at is not None) + self._soak
