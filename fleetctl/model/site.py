"""One site: its inventory directory and what its fleet.yml says; every form was checked at the file's edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleetctl.model.fleet import Connection
from fleetctl.model.policy import RolloutPolicy


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Where Slurm's commands are, and which partitions are ours to look at; no partitions means all of them."""

    head: Connection | None = None
    """The host to reach over SSH; None: the commands are on this machine."""
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """What one inventory directory stands for."""

    name: str
    directory: Path
    slurm: SlurmSettings | None = None
    failure_domains: Mapping[str, str] = field(default_factory=dict)
    """Kind of failure domain to the inventory variable that holds a node's value: {"power": "pdu"}."""
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)
    nodes: str = "all"
    """Host pattern of the machines that are nodes of the fleet (an inventory may hold others, such as head nodes)."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Other system ("slurm", "bmc") to the inventory variable that holds a node's name there."""
    roles_path: tuple[Path, ...] = ()
    """The site's own roles; they come before those of the package."""
    state_url: str | None = None
    state_group: str | None = None
    inventory_max_age_s: float = 60
    """How old the cached answer of a dynamic inventory may be."""
