"""The ownership mark: how a drain of ours is told from everybody else's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_TOKEN = re.compile(r"(?P<rollout>[A-Za-z0-9._-]+):(?P<nonce>[A-Za-z0-9]+)")
# The rollout's name and the nonce hold no blank and no colon, so that the mark survives what schedulers append to it.
_MARK = re.compile(rf"^fleetctl:{_TOKEN.pattern}(?: +(?P<why>.*))?$", re.DOTALL)

# Slurm appends " : <message>" (node_mgr.c: set_node_reboot_reason in 22.05, set_node_reason since 23.02).
_APPENDED_BY_SLURM = re.compile(
    r" : (Not responding|reboot (issued|requested|complete|timed out)|Reboot ASAP|ResumeTimeout reached)\b.*$",
    re.DOTALL,
)
# What slurmctld and slurmd write themselves (node_mgr.c, agent.c, job_mgr.c, proc_req.c, gres.c, slurmd/req.c).
# Since 23.02 an invalid registration replaces whatever reason a drained node had; 22.05 keeps it.
_WRITTEN_BY_SLURM = re.compile(
    r"^(Not responding|NO NETWORK ADDRESS FOUND|Node unexpectedly rebooted|"
    r"reboot (issued|requested|complete|timed out)|Reboot ASAP|POWER_DOWN_ASAP|ResumeTimeout reached|"
    r"Low (RealMemory|CPUs|TmpDisk|socket)|gres/\S+ count (reported )?(lower|too low)|Invalid registration|"
    r"Kill task failed|Prolog error|Epilog error|Prolog/Epilog failure|Job env setup error|Duplicate jobid|"
    r"batch job complete failure|Bad core count|SlurmdSpoolDir is full)",
    re.IGNORECASE,
)

# slurmdbd keeps reasons as tinytext, 255 bytes; longer ones fail or are cut there (as_mysql_convert/archive tables).
_MAX_BYTES = 240


class Ownership(Enum):
    """Whose drain a reason speaks of."""

    NOBODY = "nobody"
    OURS = "ours"
    OTHER_ROLLOUT = "other_rollout"
    SYSTEM = "system"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Mark:
    """Drain reason `fleetctl:<rollout>:<nonce> <why>`; rollout and nonce make it ours, the text is for people.

    `str()` is what is written: one printable line that every scheduler keeps as it is. ValueError for a rollout or
    nonce that could not be read back.
    """

    rollout: str
    nonce: str
    why: str = ""

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(f"{self.rollout}:{self.nonce}"):
            raise ValueError(f"a mark can't carry rollout {self.rollout!r} and nonce {self.nonce!r}")

    def __str__(self) -> str:
        return _one_line(f"{self.token} {self.why}")

    @property
    def token(self) -> str:
        return f"fleetctl:{self.rollout}:{self.nonce}"


def read_mark(reason: str) -> Mark | None:
    """The mark in a drain reason, whatever the scheduler appended to it; None if it is not fleetctl's."""
    found = _MARK.match(_APPENDED_BY_SLURM.sub("", reason.strip()))
    return Mark(found["rollout"], found["nonce"], found["why"] or "") if found else None


def owner_of(reason: str, mark: Mark | None) -> Ownership:
    """Whose drain `reason` speaks of, seen from the rollout that holds `mark`; None: from no rollout."""
    text = reason.strip()
    if not text or text.lower() in ("none", "(null)"):
        return Ownership.NOBODY
    found = read_mark(text)
    if found is not None:
        is_ours = mark is not None and found.token == mark.token
        return Ownership.OURS if is_ours else Ownership.OTHER_ROLLOUT
    return Ownership.SYSTEM if _WRITTEN_BY_SLURM.match(text) else Ownership.FOREIGN


def _one_line(text: str) -> str:
    """One printable line of at most `_MAX_BYTES`; without the closing quotes that scontrol takes off."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    cut = line.encode("utf-8", "ignore")[:_MAX_BYTES].decode("utf-8", "ignore")
    return cut.rstrip(' "')
