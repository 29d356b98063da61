"""Slurm's listings joined: one `Work` per node, empty only if every listing says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.work import Job, Reservation, Work
from fleetctl.parse.slurm_hostlist import expand_hostlist
from fleetctl.parse.slurm_records import JobRecord, NodeListing, NodeRecord, read_utc
from fleetctl.parse.slurm_states import is_quiet, is_registered

JOB_FORMAT = "%i|%T|%u|%e|%D|%N"
"""squeue's fields; none of them holds text that a user chose, so the bar is safe."""

_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)  # squeue shortens large ones: 1.5K
# States in which squeue may name nodes that the job does not hold (yet).
_HOLDS_NOTHING = frozenset({"PENDING"})


def read_jobs(text: str) -> Reading[tuple[JobRecord, ...]]:
    """The jobs of `squeue -h -o JOB_FORMAT` that hold nodes, whatever their state; unknown if a line is not understood.

    squeue itself leaves out what is over: it lists what is pending, running, suspended, staging out or completing.
    """
    jobs: list[JobRecord] = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 6 or not fields[0] or not fields[1]:
            return unknown(f"squeue printed {line[:200]!r}")
        id_, state, user, ends, count, folded = fields
        if state in _HOLDS_NOTHING or not folded:
            continue
        nodes = expand_hostlist(folded)
        if not nodes.is_known:
            return unknown(f"squeue, job {id_}: {nodes.reason}")
        names = nodes.get()
        job = Job(id_, user, read_utc(ends), int(count) if _COUNT.fullmatch(count) else len(names))
        jobs.append(JobRecord(job, names))
    return value_of(tuple(jobs))


def join_listings(
    nodes: NodeListing, jobs: Iterable[JobRecord], reservations: Mapping[str, tuple[Reservation, ...]]
) -> Mapping[str, Work]:
    """Each node of the node listing with what is on it."""
    on_node: dict[str, list[Job]] = {}
    for record in jobs:
        for name in record.nodes:
            on_node.setdefault(name, []).append(record.job)
    return {
        name: _join_node(node, tuple(on_node.get(name, ())), reservations.get(name, ())) for name, node in nodes.items()
    }


def _join_node(node: NodeRecord, jobs: tuple[Job, ...], reservations: tuple[Reservation, ...]) -> Work:
    return Work(
        states=node.states,
        cordoned="DRAIN" in node.states,
        empty=is_quiet(node.states) and not node.is_allocated and not jobs,
        registered=is_registered(node.states),
        down=is_down(node),
        jobs=jobs,
        reason=node.reason,
        reason_by=node.reason_by,
        reason_at=node.reason_at,
        partitions=node.partitions,
        gpus_configured=node.gpus_configured,
        reservations=reservations,
    )


def is_down(node: NodeRecord) -> bool:
    return bool(node.states & {"DOWN", "ERROR", "FAIL"})
