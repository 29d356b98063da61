"""The laws of the design, judged from what happens in the world: never from decide/ and never from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleetctl.model.node_facts import Lease
    from fleetctl.twin.world import TwinNode, World


class LawBroken(AssertionError):
    """What must never happen has happened in the twin."""


@dataclass(slots=True)
class Laws:
    """Counters of their own, fed by the world; `trace` is the world's record, for the report of a violation."""

    max_out: int
    max_out_per_rack: int | None = None
    window_s: float = 20
    """What others did less than this ago no controller can know: a poll, its answer, and the drain under way."""
    world: World | None = None
    trace: list[str] = field(default_factory=list)
    violation: str = ""
    verifies: int = 0
    changes: int = 0
    restarts: int = 0
    drains: int = 0
    undrains: int = 0

    def note(self, text: str) -> None:
        at_s = self.world.loop.time() if self.world else 0.0
        self.trace.append(f"{at_s:10.1f} {text}")

    def broken(self, law: int, text: str) -> None:
        self.violation = self.violation or f"law {law}: {text}\n" + "\n".join(self.trace[-40:])

    def judge(self) -> None:
        """Raise what was broken since. Not raised where it happened: the acts under test would catch it."""
        if self.violation:
            raise LawBroken(self.violation)

    # --- told by the world

    def job_started(self, node: TwinNode) -> None:
        if node.cordoned or node.down:
            self.broken(4, f"{node.name}: the twin's scheduler placed a job on a node that is out")

    def drained(self, node: TwinNode, mark: str, was_cordoned: bool, reason_before: str) -> None:
        """Law 2: only a free node or one of fleetctl's is marked. Law 3: what is out now is within the budget."""
        self.drains += 1
        self.note(f"{node.name} drained: {mark}")
        if was_cordoned and not reason_before.startswith("fleetctl:"):
            self.broken(2, f"{node.name}: a drain of others was overwritten: {reason_before}")
        if was_cordoned:
            return
        assert self.world is not None
        knowable_before_s = self.world.loop.time() - self.window_s
        out = [
            other
            for other in self.world.nodes.values()
            if (other.cordoned or other.down or not other.is_up) and other.taken_out_at_s <= knowable_before_s
        ]
        if len(out) > self.max_out:
            self.broken(3, f"{len(out)} nodes are out, {self.max_out} allowed")
        in_rack = [other for other in out if other.rack == node.rack]
        if self.max_out_per_rack is not None and len(in_rack) > self.max_out_per_rack:
            self.broken(3, f"{len(in_rack)} nodes of {node.rack} are out, {self.max_out_per_rack} allowed")

    def undrained(self, node: TwinNode) -> None:
        """Law 1: the only door back is a passed verify. Law 2: ours only."""
        self.undrains += 1
        self.note(f"{node.name} undrained, proven={node.proven}")
        if not node.drain_reason.startswith("fleetctl:"):
            self.broken(2, f"{node.name}: undrained though its reason is {node.drain_reason!r}")
        if not node.proven:
            self.broken(1, f"{node.name}: undrained without a verify since it was last changed")

    def resumed_by_admin(self, node: TwinNode) -> None:
        self.note(f"{node.name} resumed by an admin")

    def change_started(self, node: TwinNode, lease: Lease) -> None:
        self.changes += 1
        self.note(f"{node.name} change starts (controller {lease.controller}, epoch {lease.epoch})")
        self._may_be_touched(node, lease, "changed")
        if node.change_under_way:
            self.broken(5, f"{node.name}: a second change starts while the first runs")

    def change_ended(self, node: TwinNode) -> None:
        self.note(f"{node.name} change ends: installed {node.installed}, on disk {node.on_disk or 'nothing'}")

    def restarted(self, node: TwinNode, lease: Lease | None) -> None:
        self.restarts += 1
        self.note(f"{node.name} restarts")
        if lease is not None:
            self._may_be_touched(node, lease, "restarted")
            if not node.on_disk:
                self.broken(4, f"{node.name}: restarted without a module for the next boot")

    def verified(self, node: TwinNode, failures: list[str], passive: bool) -> None:
        """A full verify proves a changed node; a passive one only a node that nobody has touched."""
        self.verifies += 1
        self.note(f"{node.name} verified ({'passive' if passive else 'full'}): {failures or 'well'}")
        if not failures and (not passive or node.proven):
            node.proven = True

    def _may_be_touched(self, node: TwinNode, lease: Lease, how: str) -> None:
        if node.jobs:
            self.broken(4, f"{node.name}: {how} under job {', '.join(node.jobs)}")
        if not node.cordoned or not node.drain_reason.startswith(f"fleetctl:{lease.rollout}:"):
            self.broken(4, f"{node.name}: {how} though not drained by this rollout: {node.drain_reason!r}")
        if node.lease != lease:
            self.broken(7, f"{node.name}: {how} by {lease}, leased to {node.lease}")

    def at_end(self, quarantined: Mapping[str, str]) -> None:
        """Nothing is leaked: whoever still carries our mark is quarantined."""
        assert self.world is not None
        for node in self.world.nodes.values():
            if node.drain_reason.startswith("fleetctl:") and node.name not in quarantined:
                self.broken(2, f"{node.name}: still drained by us at the end, and nobody says why")
        self.judge()
