"""What fleet.yml allows a rollout to do; all checks of its form were made at the file's edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Limit:
    """A number or a percentage of nodes; a percentage rounds down, and is at least 1."""

    amount: int
    is_percent: bool = False

    def of(self, total: int) -> int:
        """How many of `total` nodes the limit allows."""
        return max(1, total * self.amount // 100) if self.is_percent else self.amount

    def __str__(self) -> str:
        return f"{self.amount}%" if self.is_percent else str(self.amount)


@dataclass(frozen=True, slots=True)
class StateLimits:
    """How long a node may stay in a state, in seconds, before the lifecycle's deadline column applies."""

    checking_s: float = 300
    draining_s: float = 48 * 3600
    preflight_s: float = 1800
    applying_s: float = 3600
    restarting_s: float = 1200
    verifying_s: float = 900
    undraining_s: float = 300
    returning_s: float = 900
    quarantined_s: float = 300
    held_s: float = 1200
    """As restarting: a node that was taken on its way down still has our lease when it is back."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Commands of the site, run on the controller for one node each, without a shell; empty means none.

    The node is in FLEETCTL_NODE, the rollout in FLEETCTL_ROLLOUT, the reason in FLEETCTL_REASON.
    """

    before_drain: tuple[str, ...] = ()
    after_undrain: tuple[str, ...] = ()
    on_quarantine: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """How many nodes may be out, in what order they go, and what happens to one that fails."""

    canary: int = 1
    soak_s: float = 0
    max_unavailable: Limit = Limit(1)
    max_unavailable_per: Mapping[str, Limit] = field(default_factory=dict)
    """By kind of failure domain; each holds in every domain of its kind."""
    max_failures: int = 0
    """Exceeded, not reached, stops the rollout: 0 stops at the first failure."""
    same_signature_stops_at: int = 3
    """This many failures with one error signature are a bad change, whatever `max_failures` allows."""
    on_failed_verify: Literal["roll_back", "quarantine"] = "roll_back"
    limits: StateLimits = StateLimits()
    retry_after_s: float = 5
    """First pause before an act whose outcome is unknown is tried again; doubles up to `retry_at_most_s`."""
    retry_at_most_s: float = 60
    deferred_again_after_s: float = 600
    poll_s: float = 10
    power_cycle: tuple[str, ...] = ()
    """Command of the site that power-cycles the node named in FLEETCTL_NODE; empty means none."""
    hooks: Hooks = Hooks()
