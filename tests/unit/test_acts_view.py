"""What is declared for a node depends on its course, and then for all components alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetctl.components import registry
from fleetctl.flows.acts.view import Rollout
from fleetctl.model.fleet import Connection, Node
from fleetctl.model.record import NodeRecord
from fleetctl.model.rollout import Closure, Course

OLD, NEW = "570.195.03", "580.95.05"
DECLARED = {"nvidia_driver_version": "560.35.05", "nvidia_driver_gpu_count": 8}
CLOSURES = {
    "driver": Closure({"a": "1"}, variables={"nvidia_driver_version": OLD}),
    "fabric_manager": Closure({"b": "1"}, variables={"nvidia_fabric_manager_version": OLD}),
}


def variables(course: Course) -> dict[str, Any]:
    components = tuple(registry.by_name(name) for name in registry.with_followers(("driver",)))
    terms = SimpleNamespace(components=components, overrides={"nvidia_driver_version": NEW})
    node = Node("gpu001", Connection("gpu001"), scheduler_name="gpu001", variables=DECLARED)
    rollout = Rollout(cast(Any, None), cast(Any, terms))
    return rollout.variables(node, NodeRecord("gpu001", course=course, closures=CLOSURES))


def test_on_its_way_forward_a_node_is_to_have_the_new_version() -> None:
    assert variables(Course.FORWARD) == {**DECLARED, "nvidia_driver_version": NEW}


@pytest.mark.parametrize("course", [Course.BACK, Course.UNCHANGED])
def test_on_its_way_back_or_home_a_node_is_to_have_what_was_recorded_of_every_component(course: Course) -> None:
    assert variables(course) == {
        **DECLARED,
        "nvidia_driver_version": OLD,
        "nvidia_fabric_manager_version": OLD,
    }
