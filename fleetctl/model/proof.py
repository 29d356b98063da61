"""What a verify proved of one node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proof:
    """Passed only if checks ran, each of them passed, and a fresh probe afterwards found everything as declared.

    `passive_because`: why only checks ran that disturb no work; empty: all of them ran.
    `failures` are what was proven wrong; `unknown` is why nothing can be said.
    """

    node: str
    passed_checks: int = 0
    passive_because: str = ""
    failures: tuple[str, ...] = ()
    unknown: str = ""

    @property
    def is_pass(self) -> bool:
        return self.passed_checks > 0 and not self.failures and not self.unknown
