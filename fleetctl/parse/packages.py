"""A package as its package manager has it; one form for dpkg and rpm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """`state`: installed, absent (only configuration left), or what is broken about it."""

    name: str
    version: str
    architecture: str
    state: str = "installed"
    is_held: bool = False

    @property
    def is_installed(self) -> bool:
        return self.state == "installed"
