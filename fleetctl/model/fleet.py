"""Nodes as the inventory declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any
"""Plain data: None, bool, int, float, str, and lists and string-keyed mappings of these."""

HostVars = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Connection:
    """How a node is reached over SSH; one home for asyncssh, fabric, Ansible and testinfra."""

    host: str
    port: int = 22
    user: str | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    proxy_jump: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the fleet.

    `domains` maps each kind of failure domain of the policy to this node's value: {"rack": "r01"}.
    `variables` are the host's rendered Ansible variables.
    """

    name: str
    connection: Connection
    scheduler_name: str
    domains: Mapping[str, str] = field(default_factory=dict)
    variables: HostVars = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every node that the inventory declares for one site."""

    site: str
    nodes: Mapping[str, Node]
