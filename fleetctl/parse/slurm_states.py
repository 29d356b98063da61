"""Slurm's node states in one normal form: a set of upper-case tokens, one of them the base state."""

from __future__ import annotations

import re
from collections.abc import Iterable

BASES = frozenset({"IDLE", "ALLOCATED", "MIXED", "DOWN", "ERROR", "FUTURE", "UNKNOWN"})

# slurm_protocol_defs.c, node_state_flags[] of 22.05 to 26.05, without those that keep a node from being used.
_HARMLESS = frozenset(
    "BLOCKED CLOUD COMPLETING DRAIN DYNAMIC_NORM EXTERNAL FAIL MAINTENANCE PLANNED RESERVED".split()  # noqa: SIM905
)
_READY_BASES = BASES - {"FUTURE", "UNKNOWN"}

# sinfo(1), NODE STATE CODES: what is appended to a word.
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
    "+": "COMPLETING",
}

# Words that stand for others: renamed flags, and sinfo's long and compact words.
_WORDS = {
    "ALLOC": "ALLOCATED",
    "MIX": "MIXED",
    "FUTR": "FUTURE",
    "UNK": "UNKNOWN",
    "ERR": "ERROR",
    "COMP": "COMPLETING",
    "NO_RESPOND": "NOT_RESPONDING",
    "INVAL": "INVALID_REG",
    "MAINT": "MAINTENANCE",
    "RESV": "RESERVED",
    "PLND": "PLANNED",
    "DRAINED": "DRAIN",
    "DRNG": "DRAIN",
    "DRAINING": "DRAIN",
    "FAILG": "FAIL",
    "FAILING": "FAIL",
    "REBOOT": "REBOOT_REQUESTED",
    "BOOT": "REBOOT_ISSUED",
    "POW_DN": "POWERING_DOWN",
    "POW_UP": "POWERING_UP",
    "POWER_SAVING": "POWERED_DOWN",
}
# sinfo folds base and flags into one word; what that word alone says of the base (node_state_string()).
_IMPLIED_BASES = {
    **dict.fromkeys(("MAINT", "MAINTENANCE", "RESV", "RESERVED", "PLND", "PLANNED", "DRAINED"), "IDLE"),
    **dict.fromkeys(("DRNG", "DRAINING", "FAILG", "FAILING", "COMP", "COMPLETING"), "ALLOCATED"),
}
_WORD = re.compile(r"([A-Z_]+?)([*~#!%$@^+-]*)", re.ASCII)


def read_states(words: Iterable[str]) -> frozenset[str]:
    """The tokens of one or more state words: `IDLE+DRAIN`, `DOWN*+CLOUD`, `drng@`. Unknown words stay as they are."""
    tokens: set[str] = set()
    implied: set[str] = set()
    for word in words:
        # ALLOCATED+ (completing) ends in the same sign that joins words
        for part in re.split(r"\+(?=.)", word.strip().upper()):
            found = _WORD.fullmatch(part)
            if found is None:
                tokens.add(part or "?")
                continue
            tokens.add(_WORDS.get(found[1], found[1]))
            tokens.update(_SUFFIXES[sign] for sign in found[2])
            implied.update({_IMPLIED_BASES[found[1]]} if found[1] in _IMPLIED_BASES else ())
    return frozenset(tokens if tokens & BASES else tokens | implied)


def is_registered(states: frozenset[str]) -> bool:
    """True if slurmd is up and complete; False too for a token that is not known here."""
    return bool(states & _READY_BASES) and states <= _READY_BASES | _HARMLESS


def is_quiet(states: frozenset[str]) -> bool:
    """True if the states alone say that nothing is on the node: base IDLE or DOWN, not completing."""
    bases = states & BASES
    return bool(bases) and bases <= {"IDLE", "DOWN"} and "COMPLETING" not in states
