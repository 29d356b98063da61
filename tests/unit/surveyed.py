"""Small fleets as a survey finds them, for the tests of plan, forecast and reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fleetctl.model.drift import Disturbance, Drift
from fleetctl.model.fleet import Connection, Fleet, Node
from fleetctl.model.node_facts import NodeFacts
from fleetctl.model.reading import Reading, not_applicable, value_of
from fleetctl.model.rollout import Closure
from fleetctl.model.survey import Observation, Survey
from fleetctl.model.work import Job, Work

NOW = datetime(2026, 11, 30, 2, 13, tzinfo=UTC)
OLD, NEW = "570.195.03", "580.95.05"
CALM = NodeFacts(broken_packages=value_of(()), lease=not_applicable("no lease"))


def fleet(count: int = 8, per_rack: int = 4, **variables: Any) -> Fleet:
    """gpu001 and on, in racks r01 and on."""
    nodes = {}
    for number in range(1, count + 1):
        name = f"gpu{number:03}"
        domains = {"rack": f"r{(number - 1) // per_rack + 1:02}"}
        nodes[name] = Node(name, Connection(name), name, domains, variables)
    return Fleet("train-a", nodes)


def work(*jobs: Job, **more: Any) -> Work:
    """A node in use, or idle without jobs."""
    fields: dict[str, Any] = {
        "states": frozenset({"ALLOCATED" if jobs else "IDLE"}),
        "cordoned": False,
        "empty": not jobs,
        "registered": True,
        "down": False,
        "jobs": jobs,
        "gpus_configured": 8,
    }
    return Work(**{**fields, **more})


def job(id_: str, ends_in_h: float | None, node_count: int = 1) -> Job:
    return Job(id_, "ada", None if ends_in_h is None else NOW + timedelta(hours=ends_in_h), node_count)


def held(reason: str, by: str = "root", hours_ago: float = 72) -> Work:
    at = NOW - timedelta(hours=hours_ago)
    states = frozenset({"IDLE", "DRAIN"})
    return work(states=states, cordoned=True, reason=reason, reason_by=by, reason_at=at)


def down(reason: str = "Not responding", hours_ago: float = 5) -> Work:
    at = NOW - timedelta(hours=hours_ago)
    states = frozenset({"DOWN", "NOT_RESPONDING"})
    return work(states=states, down=True, registered=False, reason=reason, reason_at=at)


def drift(truth: str = "loaded", component: str = "driver", **more: Any) -> Drift:
    fields: dict[str, Any] = {
        "declared": f"{NEW} (open)",
        "observed": f"{OLD} (open)",
        "disturbance": Disturbance.REBOOT,
        "remedy": "drain, run the role, reboot",
    }
    return Drift(component, truth, **{**fields, **more})


def observation(*drifts: Drift, **more: Any) -> Observation:
    """What components would make of these drifts; a node without drifts is current."""
    known = [one for one in drifts if not one.is_unknown and one.severity == "error"]
    to_change = tuple(one for one in known if one.cause == "version")
    found = dict.fromkeys((one.component for one in to_change), OLD)
    if "driver" in found:
        found["driver"] = f"{OLD} (open)"
    fields: dict[str, Any] = {
        "facts": CALM,
        "declared": {"driver": f"{NEW} (open)", "fabric_manager": NEW},
        "found": {"driver": f"{NEW} (open)", "fabric_manager": NEW, **found},
        "drifts": drifts,
        "to_change": to_change,
        "troubles": tuple(one for one in known if one.cause != "version"),
        "unread": tuple(one for one in drifts if one.is_unknown),
        "closures": {"driver": Closure({f"package-{number}": OLD for number in range(14)})},
        "disturbance": max((one.disturbance for one in to_change), default=Disturbance.NONE),
    }
    return Observation(**{**fields, **more})


def behind(**more: Any) -> Observation:
    """A node at the old version."""
    return observation(drift("packaged", declared=NEW, observed=f"{OLD} (14 packages)"), drift(), **more)


def survey(
    observed: Mapping[str, Observation | Reading[Observation]], seen: Mapping[str, Work] | None = None
) -> Survey:
    """The scheduler shows every node of `fleet()` and every observed one idle, unless `seen` says otherwise."""
    found = {name: one if isinstance(one, Reading) else value_of(one) for name, one in observed.items()}
    shown = {**{name: work() for name in (*fleet().nodes, *found)}, **(seen or {})}
    return Survey(NOW, ("driver", "fabric_manager"), found, value_of(shown))
