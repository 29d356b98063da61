"""Each law is broken on purpose once: a judge that never says guilty proves nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetctl.decide import budget, guard
from fleetctl.flows.acts import change, prepare, prove
from fleetctl.flows.acts.view import outcome
from fleetctl.model.fleet import Node
from fleetctl.model.node_facts import Lease
from fleetctl.model.policy import Limit
from fleetctl.model.rollout import Result
from fleetctl.ports import Answer, Applied, Change
from fleetctl.twin import ports
from fleetctl.twin.component import TwinDriver
from fleetctl.twin.controller import TwinController, TwinJournal
from fleetctl.twin.laws import LawBroken
from fleetctl.twin.world import World
from tests.unit.test_twin_rollout import NEW, POLICY, finish, make_world, roll

Patch = pytest.MonkeyPatch


def nothing_in_the_way(monkeypatch: Patch, name: str) -> None:
    """Blind one guard in every act that asks it."""
    for module in (change, prepare, prove):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda *_args: guard.CLEAR)


def test_law_1_undrain_without_verify(monkeypatch: Patch) -> None:
    async def pass_unseen(_rollout: object, owed: object, **_more: object) -> object:
        return outcome(owed, Result.OK)  # type: ignore[arg-type]

    monkeypatch.setattr(prove, "_prove", pass_unseen)
    with pytest.raises(LawBroken, match="law 1"):
        roll(make_world())


def test_law_2_a_drain_of_others_overwritten(monkeypatch: Patch) -> None:
    monkeypatch.setattr(prepare, "may_be_taken", lambda *_args: guard.CLEAR)
    world = make_world()
    world.admin_drains("gpu001", "ECC errors")

    class Everybodys:
        token = "fleetctl:r-twin:abc123"

    monkeypatch.setattr(ports, "read_mark", lambda _reason: Everybodys)
    with pytest.raises(LawBroken, match="law 2"):
        roll(world)


def test_law_3_more_out_than_allowed(monkeypatch: Patch) -> None:
    monkeypatch.setattr(budget.Budget, "obstacle", lambda *_args: None)
    monkeypatch.setattr(budget.Budget, "overfull", lambda *_args: None)
    with pytest.raises(LawBroken, match="law 3"):
        roll(make_world(), replace(POLICY, canary=6, max_unavailable=Limit(2)))


def test_law_4_a_node_changed_under_its_job(monkeypatch: Patch) -> None:
    real = ports.TwinScheduler._work
    monkeypatch.setattr(ports.TwinScheduler, "_work", lambda self, node: replace(real(self, node), empty=True))
    nothing_in_the_way(monkeypatch, "is_free")
    world = make_world()
    world.start_job([world.nodes["gpu001"]], runs_s=3600)
    with pytest.raises(LawBroken, match="law 4"):
        roll(world)


def test_law_4_a_node_restarted_without_its_module(monkeypatch: Patch) -> None:
    monkeypatch.setattr(TwinDriver, "blocks_restart", lambda *_args: "")
    with pytest.raises(LawBroken, match="law 4"):
        roll(make_world(faults={"gpu001": "module_missing"}))


def killed_in_the_middle_of_a_change() -> tuple[World, TwinJournal]:
    world, journal = make_world(2), TwinJournal()
    TwinController(world, journal, POLICY, NEW, kill_at_s=60).run()
    assert any(node.change_under_way for node in world.nodes.values())
    return world, journal


def test_law_5_a_second_change_while_the_first_still_runs(monkeypatch: Patch) -> None:
    nothing_in_the_way(monkeypatch, "is_quiet")
    world, journal = killed_in_the_middle_of_a_change()
    with pytest.raises(LawBroken, match="law 5"):
        finish(world, journal)


def test_law_7_a_change_without_the_lease(monkeypatch: Patch) -> None:
    async def granted(*_args: object) -> Answer:
        return Answer("ok")

    monkeypatch.setattr(ports.TwinNodes, "take_lease", granted)
    real = ports.TwinChanger.apply

    async def unasked(self: ports.TwinChanger, node: Node, what: Change, lease: Lease) -> Applied:
        # The twin's changer asks for the lease as lease.py on a node does; this one does not.
        self._world.start_change(self._world.nodes[node.name], NEW, lease)
        return await real(self, node, what, lease)

    monkeypatch.setattr(ports.TwinChanger, "apply", unasked)
    with pytest.raises(LawBroken, match="law 7"):
        roll(make_world())
