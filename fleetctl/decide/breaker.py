"""When a rollout stops by itself.

A bad change fails the same way on several nodes: stop. Bad hardware fails each time in its own way: quarantine the
node and go on, as long as the failure budget holds. The budget is exceeded, not reached: 0 stops at the first failure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Breaker:
    """Opens once, with a reason, and stays open."""

    max_failures: int
    same_signature_stops_at: int
    failed: dict[str, str] = field(default_factory=dict)
    """Node to error signature; an empty signature (hardware, no answer) is like no other."""
    reason: str = ""

    @property
    def is_open(self) -> bool:
        return bool(self.reason)

    def count(self, node: str, signature: str) -> None:
        """Record a node's failure; a node counts once."""
        self.failed.setdefault(node, signature)
        if self.is_open:
            return
        if len(self.failed) > self.max_failures:
            self.reason = f"{len(self.failed)} failures, {self.max_failures} allowed (max_failures)"
            return
        for shared, nodes in Counter(filter(None, self.failed.values())).items():
            if nodes >= self.same_signature_stops_at:
                self.reason = f"{nodes} nodes failed the same way, so the change is bad: {shared}"

    def forget(self, node: str) -> None:
        """The node gets another try by a person's word."""
        self.failed.pop(node, None)

    def close(self) -> None:
        """A person has seen the failures and goes on."""
        self.reason = ""
        self.failed.clear()
