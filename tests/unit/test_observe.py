"""Reading a fleet: what answers is judged, what does not is named, and nothing hides the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from fleetctl.components import registry
from fleetctl.errors import InventoryError
from fleetctl.flows.observe import Lookout, observe
from fleetctl.model.fleet import Connection, Node
from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.survey import Survey
from fleetctl.model.work import Work
from fleetctl.parse.node import read_node
from tests.unit.healthy_node import HOST_VARS, VERSION, facts
from tests.unit.surveyed import NOW, work

NEVER = object()


class Machines:
    """Nodes by name: what the probe answers, or NEVER."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def probe(self, node: Node) -> Reading[RawFacts]:
        self.asked.append(node.name)
        answer = self.answers[node.name]
        if answer is NEVER:
            await asyncio.sleep(3600)
        return answer if isinstance(answer, Reading) else value_of(answer)


class Book:
    """A scheduler that answers with one snapshot."""

    def __init__(self, answer: Reading[Mapping[str, Work]]) -> None:
        self.answer = answer

    async def snapshot(self) -> Reading[Mapping[str, Work]]:
        return self.answer


def node(name: str, **variables: Any) -> Node:
    return Node(name, Connection(name), f"slurm-{name}", {}, {**HOST_VARS, **variables})


def look(machines: Machines, *nodes: Node, book: Book | None = None, deadline_s: float = 5, **more: Any) -> Survey:
    components = tuple(registry.by_name(name) for name in ("driver", "fabric_manager"))
    lookout = Lookout(machines, components, read_node, more.pop("overrides", {}))  # type: ignore[arg-type]
    return asyncio.run(observe(lookout, nodes, book, nodes, now=NOW, deadline_s=deadline_s, **more))  # type: ignore[arg-type]


def test_a_healthy_node_is_current_in_every_truth() -> None:
    found = look(Machines({"gpu001": facts()}), node("gpu001")).observed["gpu001"].get()
    assert found.drifts == ()
    assert found.declared == {"driver": f"{VERSION} (open)", "fabric_manager": VERSION}
    assert found.found == {"driver": f"{VERSION} (open)", "fabric_manager": VERSION}
    assert found.facts.lease.kind == "not_applicable"
    assert set(found.closures) == {"driver", "fabric_manager"}


def test_an_override_stands_above_the_inventory() -> None:
    overrides = {"nvidia_driver_version": "590.44.01"}
    found = look(Machines({"gpu001": facts()}), node("gpu001"), overrides=overrides).observed["gpu001"].get()
    assert found.declared["driver"] == "590.44.01 (open)"
    assert {drift.component for drift in found.to_change} == {"driver", "fabric_manager"}


def test_a_node_that_does_not_answer_in_time_is_named_and_the_others_are_reported() -> None:
    machines = Machines({"gpu001": facts(), "gpu002": NEVER, "gpu003": unknown("ssh: refused: no route")})
    seen = look(machines, node("gpu001"), node("gpu002"), node("gpu003"), deadline_s=0.5).observed
    assert seen["gpu001"].is_known
    assert seen["gpu002"].reason == "not read within 0.5 s"
    assert seen["gpu003"].reason == "ssh: refused: no route"


def test_a_fault_of_ours_on_one_node_does_not_hide_the_others() -> None:
    machines = Machines({"gpu001": facts()})
    seen = look(machines, node("gpu001"), node("gpu002")).observed
    assert seen["gpu001"].is_known
    assert seen["gpu002"].reason == "unexpected KeyError: 'gpu002'"


def test_a_node_for_which_nothing_is_declared_is_not_asked() -> None:
    machines = Machines({"gpu001": facts()})
    seen = look(machines, node("gpu001", nvidia_driver_version=None)).observed
    assert seen["gpu001"].kind == "not_applicable"
    assert machines.asked == []


def test_a_declared_value_that_can_not_be_names_its_node_before_anything_is_asked() -> None:
    machines = Machines({"gpu001": facts()})
    with pytest.raises(InventoryError, match=r'^gpu002: nvidia_driver_version: "580" is not an exact'):
        look(machines, node("gpu001"), node("gpu002", nvidia_driver_version="580"))
    assert machines.asked == []


def test_a_wrong_override_is_no_nodes_fault() -> None:
    with pytest.raises(InventoryError, match=r"^--to: nvidia_driver_version"):
        look(Machines({}), node("gpu001"), overrides={"nvidia_driver_version": "580"})


def test_the_schedulers_names_become_the_inventorys() -> None:
    book = Book(value_of({"slurm-gpu001": work(), "somebody-elses": work()}))
    seen = look(Machines({"gpu001": facts(), "gpu002": facts()}), node("gpu001"), node("gpu002"), book=book)
    assert set(seen.work.get()) == {"gpu001"}


def test_a_scheduler_that_does_not_answer_is_unknown_never_empty() -> None:
    seen = look(Machines({"gpu001": facts()}), node("gpu001"), book=Book(unknown("slurmctld: timeout")))
    assert (seen.work.kind, seen.work.reason) == ("unknown", "slurmctld: timeout")


def test_progress_counts_every_node_once() -> None:
    steps: list[tuple[int, int]] = []
    nodes = [node(f"gpu00{number}") for number in (1, 2, 3)]
    look(Machines({one.name: facts() for one in nodes}), *nodes, progress=lambda *step: steps.append(step))
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]
