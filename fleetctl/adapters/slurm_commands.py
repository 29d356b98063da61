"""Slurm's commands as this program calls them."""

from __future__ import annotations

import re

from fleetctl.parse.slurm import JOB_FORMAT

# What a user's profile may set to narrow or reshape what squeue and scontrol show (getenv() in src/squeue and
# src/scontrol, 22.05 to 24.11). SLURM_CONF stays: it says which cluster is ours.
_UNSET = (
    "SLURM_CLUSTERS", "SLURM_BITSTR_LEN", "SLURM_JSON", "SLURM_YAML",
    "SCONTROL_ALL", "SCONTROL_FEDERATION", "SCONTROL_FUTURE", "SCONTROL_LOCAL", "SCONTROL_SIB", "SCONTROL_SIBLING",
    "SQUEUE_ACCOUNT", "SQUEUE_ALL", "SQUEUE_ARRAY", "SQUEUE_ARRAY_UNIQUE", "SQUEUE_FEDERATION", "SQUEUE_FORMAT",
    "SQUEUE_FORMAT2", "SQUEUE_LICENSES", "SQUEUE_LOCAL", "SQUEUE_NAMES", "SQUEUE_PARTITION", "SQUEUE_PRIORITY",
    "SQUEUE_QOS", "SQUEUE_SIB", "SQUEUE_SIBLING", "SQUEUE_SORT", "SQUEUE_STATES", "SQUEUE_USERS",
)  # fmt: skip
ENVIRONMENT = (
    "env",
    *(word for name in _UNSET for word in ("-u", name)),
    "LC_ALL=C",
    "TZ=UTC",
    "SLURM_TIME_FORMAT=standard",
)

# -a: nodes and jobs of hidden partitions too; --local: this cluster, not its federation; -d: GRES in use.
_SCONTROL_SHOW = ("scontrol", "-a", "-d", "--local", "show")
SHOW_CONFIG = ("scontrol", "show", "config")
SHOW_RESERVATIONS = ("scontrol", "-a", "-o", "show", "reservation")

# scontrol takes ranges, node sets and ALL where it takes a name: one name must mean one node.
_ONE_NODE = re.compile(r"(?!all$)[A-Za-z0-9][A-Za-z0-9._-]*", re.IGNORECASE)


def is_node_name(name: str) -> bool:
    return _ONE_NODE.fullmatch(name) is not None


def show_nodes(name: str, *, json: bool) -> tuple[str, ...]:
    """One node, or all of them for an empty name."""
    return (*_SCONTROL_SHOW, "node", *([name] if name else ()), *(["--json"] if json else ()))


def list_jobs(name: str) -> tuple[str, ...]:
    """The jobs of one node, or all of them for an empty name."""
    return ("squeue", "-a", "--local", "-h", "-o", JOB_FORMAT, *(["-w", name] if name else ()))


def update_node(name: str, *, state: str = "", reason: str = "") -> tuple[str, ...]:
    """Slurm takes a state, a reason, or both; a reason alone leaves the state as it is."""
    changes = [f"State={state}"] if state else []
    if reason:
        changes.append(f"Reason={reason}")
    return ("scontrol", "update", f"NodeName={name}", *changes)
