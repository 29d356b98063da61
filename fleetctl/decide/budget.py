"""How many nodes may be out at once, over the fleet and in every failure domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fleetctl.model.policy import Limit

Domain = tuple[str, str]
"""Kind and value of a failure domain: ("rack", "r01"). The whole fleet is ("fleet", "")."""

FLEET: Domain = ("fleet", "")


@dataclass(frozen=True, slots=True)
class Full:
    """A domain that can lose no further node."""

    domain: Domain
    out: int
    allowed: int

    def __str__(self) -> str:
        kind, value = self.domain
        return f"{kind}{' ' + value if value else ''}: {self.out} of {self.allowed} allowed are out"


class Budget:
    """Counts who is out, whoever took them out. Cost per change: the number of domains of one node."""

    def __init__(self, domains_of: Mapping[str, Iterable[Domain]], whole: Limit, per_kind: Mapping[str, Limit]) -> None:
        self._domains_of = {
            node: (FLEET, *(domain for domain in domains if domain[0] in per_kind))
            for node, domains in domains_of.items()
        }
        size = Counter(domain for domains in self._domains_of.values() for domain in domains)
        self._allowed = {
            domain: (whole if domain == FLEET else per_kind[domain[0]]).of(total) for domain, total in size.items()
        }
        self._out: Counter[Domain] = Counter()
        self._nodes_out: set[str] = set()

    def count(self, node: str, *, out: bool) -> None:
        """Record that a node is out, or no longer."""
        if out == (node in self._nodes_out):
            return
        step = 1 if out else -1
        for domain in self._domains_of.get(node, ()):
            self._out[domain] += step
        (self._nodes_out.add if out else self._nodes_out.discard)(node)

    def obstacle(self, node: str) -> Full | None:
        """The first domain that taking this node out would overfill; a node already out adds nothing to the count."""
        added = 0 if node in self._nodes_out else 1
        for domain in self._domains_of.get(node, ()):
            if self._out[domain] + added > self._allowed[domain]:
                return Full(domain, self._out[domain], self._allowed[domain])
        return None

    def overfull(self, node: str) -> Full | None:
        """The first domain of this node in which more are out than allowed, the node itself counted as it stands."""
        for domain in self._domains_of.get(node, ()):
            if self._out[domain] > self._allowed[domain]:
                return Full(domain, self._out[domain], self._allowed[domain])
        return None

    def domains(self, node: str) -> tuple[Domain, ...]:
        return self._domains_of.get(node, ())

    @property
    def nodes_out(self) -> frozenset[str]:
        return frozenset(self._nodes_out)

    def allowed(self, domain: Domain = FLEET) -> int:
        return self._allowed.get(domain, 0)

    def out(self, domain: Domain = FLEET) -> int:
        return self._out[domain]
