"""Node listings in JSON: `scontrol show node --json`, `sinfo --json` and slurmrestd, from 21.08 (v0.0.37) on.

The shape changes with every release: numbers bare or as {set, infinite, number}; the state a base word with its flags
beside it, one joined word, or a list; `sinfo` from 23.02 on nests groups of nodes. What is not understood makes the
whole listing unknown, and the reason names the release: a node left out silently would look as if it did not exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.parse.slurm_records import (
    Malformed,
    NodeListing,
    NodeRecord,
    count_gpus,
    is_gres_used,
    read_epoch,
)
from fleetctl.parse.slurm_states import read_states


def read_nodes_json(text: str) -> Reading[NodeListing]:
    """Nodes by name; unknown, with Slurm's release, if there is none or one of them is not understood."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return unknown(f"Slurm's node listing is not JSON: {text.strip()[:200]!r}")
    release = _name_release(document)
    nodes: dict[str, NodeRecord] = {}
    try:
        for node in _read_document(document):
            before = nodes.setdefault(node.name, node)
            if before.states != node.states:
                raise Malformed(f"node {node.name} is listed twice")
            # sinfo lists a node once for each of its partitions
            nodes[node.name] = _join(before, node)
    except Malformed as error:
        return unknown(f"node listing of {release}: {error}")
    return value_of(nodes) if nodes else unknown(f"node listing of {release}: no node in it")


def _name_release(document: object) -> str:
    meta = document.get("meta") if isinstance(document, dict) else None
    slurm = (meta.get("Slurm") or meta.get("slurm")) if isinstance(meta, dict) else None
    plugins = (meta.get("plugin") or meta.get("plugins")) if isinstance(meta, dict) else None
    release = slurm.get("release") if isinstance(slurm, dict) else None
    named = (
        [str(plugins[key]) for key in ("data_parser", "type") if plugins.get(key)] if isinstance(plugins, dict) else []
    )
    return f"Slurm {release or '(release not given)'}" + (f", {named[0]}" if named else "")


def _read_document(document: object) -> Iterator[NodeRecord]:
    if not isinstance(document, dict):
        raise Malformed("not an object")
    errors = document.get("errors")
    if errors:
        raise Malformed(f"Slurm reports {json.dumps(errors)[:200]}")
    if isinstance(document.get("nodes"), list):
        for node in document["nodes"]:
            yield _read_node(_as_mapping(node, "a node"))
    elif isinstance(document.get("sinfo"), list):
        for group in document["sinfo"]:
            yield from _read_group(_as_mapping(group, "a group of sinfo"))
    else:
        raise Malformed(f"neither nodes nor sinfo in it, but {sorted(map(str, document))}")


def _read_node(node: Mapping[str, Any]) -> NodeRecord:
    name = node.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed("a node without a name")
    partitions = node.get("partitions")
    return NodeRecord(
        name=name,
        states=_read_state(node, name),
        is_allocated=_read_number(node, "alloc_cpus", name) != 0
        or _read_number(node, "alloc_memory", name) != 0
        or _is_tres_used(node.get("tres_used"))
        or is_gres_used(_as_text(node.get("gres_used"))),
        reason=_as_text(node.get("reason")),
        # 24.11 names root where there is no reason at all
        reason_by=_as_text(node.get("reason_set_by_user")) if node.get("reason") else "",
        reason_at=read_epoch(_read_number(node, "reason_changed_at", name)) if "reason_changed_at" in node else None,
        partitions=frozenset(map(str, partitions)) if isinstance(partitions, list) else frozenset(),
        gpus_configured=count_gpus(_as_text(node.get("gres"))),
    )


def _read_state(node: Mapping[str, Any], name: str) -> frozenset[str]:
    state, flags = node.get("state"), node.get("state_flags", [])
    words = [state] if isinstance(state, str) else state
    if not isinstance(words, list) or not words or not isinstance(flags, list):
        raise Malformed(f"node {name} has the state {state!r}")
    if isinstance(state, str) and "+" not in state and "state_flags" not in node:
        raise Malformed(f"node {name} has a base state {state!r} without its flags")
    return read_states(map(str, [*words, *flags]))


def _read_number(node: Mapping[str, Any], key: str, name: str) -> int | None:
    """None for a number that Slurm holds as not set or infinite."""
    value = node.get(key)
    if isinstance(value, dict) and isinstance(value.get("set"), bool):
        value = value.get("number") if value["set"] and not value.get("infinite") else None
        if value is None:
            return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"node {name} has {key} {value!r}")
    return value


def _is_tres_used(tres: object) -> bool:
    # "cpu=4,mem=1000M,gres/gpu=2"; Slurm prints nothing for a node without allocation
    return tres is not None and tres != ""


def _read_group(group: Mapping[str, Any]) -> Iterator[NodeRecord]:
    """One entry of `sinfo --json`: nodes that share all of it, so an allocation in it may be on any of them."""
    listed = _as_mapping(group.get("nodes"), "nodes of sinfo").get("nodes")
    names = listed if isinstance(listed, list) else None
    if not names:
        raise Malformed(f"a group of sinfo names no node: {json.dumps(listed)[:100]}")
    cpus = _as_mapping(group.get("cpus"), "cpus of sinfo")
    memory = _as_mapping(group.get("memory"), "memory of sinfo")
    gres = _as_mapping(group.get("gres", {}), "gres of sinfo")
    reason = _as_mapping(group.get("reason", {}), "reason of sinfo")
    partition = _as_mapping(group.get("partition", {}), "partition of sinfo").get("name")
    for name in map(str, names):
        yield NodeRecord(
            name=name,
            states=_read_state(_as_mapping(group.get("node"), "node of sinfo"), name),
            is_allocated=_read_number(cpus, "allocated", name) != 0
            or _read_number(memory, "allocated", name) != 0
            or is_gres_used(_as_text(gres.get("used"))),
            reason=_as_text(reason.get("description")),
            reason_by=_as_text(reason.get("user")) if reason.get("description") else "",
            reason_at=read_epoch(_read_number(reason, "time", name)) if "time" in reason else None,
            partitions=frozenset({partition} if isinstance(partition, str) else ()),
            gpus_configured=count_gpus(_as_text(gres.get("total"))),
        )


def _join(one: NodeRecord, other: NodeRecord) -> NodeRecord:
    if one is other:
        return one
    return NodeRecord(
        name=one.name,
        states=one.states,
        is_allocated=one.is_allocated or other.is_allocated,
        reason=one.reason,
        reason_by=one.reason_by,
        reason_at=one.reason_at,
        partitions=one.partitions | other.partitions,
        gpus_configured=one.gpus_configured,
    )


def _as_mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{what} is {type(value).__name__}")
    return value


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""
