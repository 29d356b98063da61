"""What a verify proved, equal nodes together, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fleetctl.model.fleet import Json
from fleetctl.model.proof import Proof
from fleetctl.report.tables import Column, table
from fleetctl.report.words import count, folded


def verify_text(proofs: Sequence[Proof]) -> str:
    """At most 100 columns wide."""
    together: dict[tuple[int, str, str], list[str]] = {}
    for proof in proofs:
        for row in _rows(proof):
            together.setdefault(row, []).append(proof.node)
    rows = [(folded(nodes), verdict, what) for (_, verdict, what), nodes in sorted(together.items(), key=_worst_first)]
    lines = table([Column("NODES", 28), Column("VERDICT", 8), Column("")], rows)
    passed = sum(1 for proof in proofs if proof.is_pass)
    return "\n".join([*lines, "", f"{passed} of {count(len(proofs), 'node')} passed"])


def _worst_first(item: tuple[tuple[int, str, str], list[str]]) -> tuple[int, int]:
    (rank, _, _), nodes = item
    return rank, -len(nodes)


def _rows(proof: Proof) -> Iterable[tuple[int, str, str]]:
    passive = f"; passive only: {proof.passive_because}" if proof.passive_because else ""
    if proof.is_pass:
        yield 2, "passed", f"{count(proof.passed_checks, 'check')}, nothing differs{passive}"
        return
    for failure in proof.failures:
        yield 0, "FAILED", failure
    if proof.unknown:
        yield 1, "unknown", proof.unknown
    elif not proof.failures:
        yield 1, "unknown", "no check ran"


def verify_json(proofs: Sequence[Proof]) -> Mapping[str, Json]:
    """Keys are stable."""
    return {
        "passed": all(proof.is_pass for proof in proofs),
        "nodes": {
            proof.node: {
                "passed": proof.is_pass,
                "checks": proof.passed_checks,
                "passive_because": proof.passive_because,
                "failures": list(proof.failures),
                "unknown": proof.unknown,
            }
            for proof in proofs
        },
    }
