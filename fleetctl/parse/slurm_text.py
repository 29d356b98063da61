"""`scontrol -a -d show node` and `scontrol -o show reservation`: the form that every Slurm prints.

Node records are read in the multi-line form only: a free text (OS, Reason, Comment, Extra) owns the rest of its line,
and nothing else tells where it ends. Within a record the first value of a key counts; Slurm prints the state before
any text that a person wrote, and indents the later lines of a reason deeper than its keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.work import Reservation
from fleetctl.parse.slurm_hostlist import expand_hostlist
from fleetctl.parse.slurm_records import (
    Malformed,
    NodeListing,
    NodeRecord,
    count_gpus,
    is_gres_used,
    read_utc,
)
from fleetctl.parse.slurm_states import read_states

_FREE_TEXT = ("OS", "Reason", "Comment", "Extra")
_KEY = re.compile(r"([A-Z][A-Za-z_]*)=(\S*)(?:\s+|$)")
# node_info.c: sprint_node_table prints keys after three blanks, a reason's later lines after ten.
_KEY_LINE = re.compile(r" {3}(?=[A-Z][A-Za-z_]*=)")
_REASON = re.compile(r"(?P<text>.*) \[(?P<by>[^\[\]@]+)@(?P<at>[0-9T:-]+|Unknown)\]", re.DOTALL)


def read_nodes_text(text: str) -> Reading[NodeListing]:
    """Nodes by name; unknown if there is none or one of them is not understood."""
    nodes: dict[str, NodeRecord] = {}
    try:
        for lines in _split_records(text):
            node = _read_node(_read_fields(lines))
            if node.name in nodes:
                raise Malformed(f"node {node.name} is listed twice")
            nodes[node.name] = node
    except Malformed as error:
        return unknown(f"scontrol show node: {error}")
    return value_of(nodes) if nodes else unknown(f"scontrol show node lists no node: {text.strip()[:200]!r}")


def _split_records(text: str) -> list[list[str]]:
    records: list[list[str]] = []
    for line in text.split("\n"):
        if line.startswith("NodeName="):
            records.append([line])
        elif records:
            records[-1].append(line)
        elif line.strip():
            raise Malformed(f"unexpected {line[:100]!r}")
    return records


def _read_fields(lines: list[str]) -> Mapping[str, str]:
    fields: dict[str, str] = {}
    text_key = ""
    for line in lines:
        if not (line.startswith("NodeName=") or _KEY_LINE.match(line)):
            if text_key == "Reason" and line.strip():
                fields["Reason"] += "\n" + line.strip()
            continue
        rest, text_key = line.strip(), ""
        while rest:
            key, _, value = rest.partition("=")
            if key in _FREE_TEXT:
                if key not in fields:
                    fields[key], text_key = value.rstrip(), key
                break
            found = _KEY.match(rest)
            if found is None:
                break
            fields.setdefault(found[1], found[2])
            rest = rest[found.end() :]
    return fields


def _read_node(fields: Mapping[str, str]) -> NodeRecord:
    name = fields.get("NodeName", "")
    for key in ("NodeName", "State", "CPUAlloc", "AllocMem"):
        if not fields.get(key):
            raise Malformed(f"node {name or '?'} has no {key}")
    first_line, *more = fields.get("Reason", "").split("\n")
    found = _REASON.fullmatch(first_line)
    reason = "\n".join([found["text"] if found else first_line, *more])
    return NodeRecord(
        name=name,
        states=read_states([fields["State"]]),
        is_allocated=fields["CPUAlloc"] != "0"
        or fields["AllocMem"] != "0"
        or bool(fields.get("AllocTRES"))
        or is_gres_used(fields.get("GresUsed", "")),
        reason=reason,
        reason_by=found["by"] if found else "",
        reason_at=read_utc(found["at"]) if found else None,
        partitions=frozenset(part for part in fields.get("Partitions", "").split(",") if part),
        gpus_configured=count_gpus(fields.get("Gres", "")),
    )


def read_reservations(text: str) -> Reading[Mapping[str, tuple[Reservation, ...]]]:
    """Reservations by node, in the order listed; unknown if one of them is not understood."""
    by_node: dict[str, tuple[Reservation, ...]] = {}
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and not lines[0].startswith("ReservationName="):
        known = lines[0].strip() == "No reservations in the system"
        return value_of(by_node) if known else unknown(f"scontrol show reservation: unexpected {lines[0][:100]!r}")
    for line in lines:
        fields = dict(reversed(_KEY.findall(line)))  # the first of a key counts: free text comes last
        names, starts_at = fields.get("Nodes", ""), read_utc(fields.get("StartTime", ""))
        nodes = expand_hostlist("" if names == "(null)" else names)
        if not nodes.is_known or starts_at is None:
            return unknown(f"scontrol show reservation: {nodes.reason or 'no StartTime'} in {line[:100]!r}")
        reservation = Reservation(
            name=fields.get("ReservationName", ""),
            starts_at=starts_at,
            ends_at=read_utc(fields.get("EndTime", "")),
            users=",".join(value for key in ("Users", "Accounts") if (value := fields.get(key, "(null)")) != "(null)"),
            is_maintenance="MAINT" in fields.get("Flags", "").split(","),
        )
        for node in nodes.get():
            by_node[node] = (*by_node.get(node, ()), reservation)
    return value_of(by_node)
