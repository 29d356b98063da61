"""The ownership mark: how a drain of ours is told from everybody else's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# The rollout's name and the nonce hold no blank and no colon, so that the mark survives what schedulers append to it.
_MARK = re.compile(r"^fleetctl:(?P<rollout>[A-Za-z0-9._-]+):(?P<nonce>[A-Za-z0-9]+)(?: (?P<why>.*))?$", re.DOTALL)

# slurmctld appends to a reason after " : " (node_mgr.c, "Not responding"), and replaces it when a node registers
# with less than it is configured for.
_APPENDED_BY_SLURM = re.compile(r" : (Not responding|reboot issued|reboot requested|Reboot ASAP)\b.*$", re.DOTALL)
_WRITTEN_BY_SLURM = re.compile(
    r"^(Not responding|NO NETWORK ADDRESS FOUND|Node unexpectedly rebooted|reboot timed out|Low \w+|"
    r"gres/\S+ count (reported )?(lower|too low)|Invalid registration|batch job complete failure|"
    r"Prolog error|Epilog error|Kill task failed)",
    re.IGNORECASE,
)


class Ownership(Enum):
    """Whose drain a reason speaks of."""

    NOBODY = "nobody"
    OURS = "ours"
    OTHER_ROLLOUT = "other_rollout"
    SYSTEM = "system"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Mark:
    """Drain reason `fleetctl:<rollout>:<nonce> <why>`; rollout and nonce make it ours, the text is for people."""

    rollout: str
    nonce: str
    why: str = ""

    def __str__(self) -> str:
        return f"fleetctl:{self.rollout}:{self.nonce} {self.why}".rstrip()

    @property
    def token(self) -> str:
        return f"fleetctl:{self.rollout}:{self.nonce}"


def read_mark(reason: str) -> Mark | None:
    """The mark in a drain reason, whatever the scheduler appended to it; None if it is not fleetctl's."""
    found = _MARK.match(_APPENDED_BY_SLURM.sub("", reason.strip()))
    return Mark(found["rollout"], found["nonce"], found["why"] or "") if found else None


def owner_of(reason: str, mark: Mark) -> Ownership:
    """Whose drain `reason` speaks of, seen from the rollout that holds `mark`."""
    text = reason.strip()
    if not text or text.lower() == "none":
        return Ownership.NOBODY
    found = read_mark(text)
    if found is not None:
        return Ownership.OURS if found.token == mark.token else Ownership.OTHER_ROLLOUT
    return Ownership.SYSTEM if _WRITTEN_BY_SLURM.match(text) else Ownership.FOREIGN
