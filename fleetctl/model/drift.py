"""The difference between what is declared and what is observed, and what closing it costs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal


class Disturbance(IntEnum):
    """What a change takes from running work, mildest first."""

    NONE = 0
    SERVICE = 1
    DRAIN = 2
    REBOOT = 3
    COLD = 4
    AUX_CYCLE = 5


Severity = Literal["info", "warning", "error"]

Cause = Literal["version", "health", "hardware"]
"""What is behind a drift: versions, which applying the role brings back; the node's health, which it does not;
hardware, which no other version would cure."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One fact of one component that is not as declared.

    `truth` names which of the component's several truths it is: "packaged", "on_disk", "loaded", "nvml", "held", ...
    `disturbance` is what closing this one drift costs.
    """

    component: str
    truth: str
    declared: str
    observed: str
    disturbance: Disturbance
    severity: Severity = "error"
    remedy: str = ""
    is_unknown: bool = False
    """The truth could not be read: neither equal nor different; `observed` says why."""
    cause: Cause = "version"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A combination that must not be installed; found before a node is touched."""

    component: str
    reason: str
    next_step: str
