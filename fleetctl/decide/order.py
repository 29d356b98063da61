"""Who goes next: idle nodes first, then by when the work on each must have ended, never by name alone."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from datetime import datetime

from fleetctl.decide.budget import Domain
from fleetctl.model.work import Work

_NEVER = float("inf")

Cost = tuple[float, str]


def last_end(work: Work) -> datetime | None:
    """When the last job must have ended by its limit; None: not bounded. Only for a node that has jobs."""
    ends = [job.ends_by for job in work.jobs]
    return max(end for end in ends if end is not None) if ends and all(ends) else None


def cost(node: str, work: Work | None) -> Cost:
    """What draining the node now costs in waiting: seconds since the epoch at which its work must have ended."""
    if work is None:
        return (_NEVER, node)
    if work.empty:
        return (0.0, node)
    end = last_end(work)
    return (end.timestamp() if end else _NEVER, node)


class Queue:
    """Pending nodes, cheapest first, grouped by their domains so that a full domain is passed over in one step."""

    def __init__(self, domains_of: Callable[[str], tuple[Domain, ...]]) -> None:
        self._domains_of = domains_of
        self._heaps: dict[tuple[Domain, ...], list[Cost]] = {}
        self._cost: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._cost)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cost)

    def __contains__(self, node: str) -> bool:
        return node in self._cost

    def put(self, node: str, work: Work | None) -> None:
        """Add a node, or move it as its work changed."""
        entry = cost(node, work)
        if self._cost.get(node) == entry[0]:
            return
        self._cost[node] = entry[0]
        heapq.heappush(self._heaps.setdefault(self._domains_of(node), []), entry)

    def remove(self, node: str) -> None:
        self._cost.pop(node, None)

    def cheapest(self, is_admissible: Callable[[str], bool]) -> str | None:
        """The cheapest node that may go, one candidate asked per group; it stays in the queue."""
        best: Cost | None = None
        for heap in self._heaps.values():
            self._trim(heap)
            if heap and (best is None or heap[0] < best) and is_admissible(heap[0][1]):
                best = heap[0]
        return best[1] if best else None

    def _trim(self, heap: list[Cost]) -> None:
        while heap and self._cost.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
