"""A restart is proven by a boot id that differs from the one before, and by nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleetctl.flows.acts import change
from fleetctl.flows.acts.view import Rollout
from fleetctl.model.fleet import Connection, Node
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.model.record import NodeRecord, Owed
from fleetctl.model.rollout import Act, Intent, Outcome, Result
from fleetctl.twin.virtual_time import VirtualLoop

OLD, NEW = "6c01ee30-8a0b-4d4b-9a5c-5f4b1d3ad000", "902d1c57-8a0b-4d4b-9a5c-5f4b1d3ad111"
GONE = unknown("ssh: timeout")


class Machine:
    """Tells its boot id as given, the last one for ever; anything else that is asked of it fails the test."""

    def __init__(self, *told: Reading[str]) -> None:
        self._told: Iterator[Reading[str]] = iter(told)
        self._last: Reading[str] = GONE
        self.asked = 0

    async def boot_id(self, _node: Node) -> Reading[str]:
        self.asked += 1
        self._last = next(self._told, self._last)
        return self._last


def owed(boot_id: str) -> Owed:
    return Owed(Intent(1, "gpu001", Act.RESTART, boot_id=boot_id), NodeRecord("gpu001", marked=True))


def rollout(machine: Machine) -> Rollout:
    fleet = {"gpu001": Node("gpu001", Connection("gpu001"), "gpu001", {}, {})}
    return Rollout(cast(Any, SimpleNamespace(nodes=machine)), cast(Any, SimpleNamespace(fleet=fleet)))


def await_boot(machine: Machine) -> tuple[Outcome, float]:
    """What the act says after the order was given, and how long it took to say so."""
    loop = VirtualLoop()
    return loop.run_until_complete(change._await_boot(rollout(machine), owed(OLD), OLD, "")), loop.time()


@pytest.mark.case("F06")
def test_without_a_boot_id_from_before_nothing_is_asked_or_ordered() -> None:
    machine = Machine(value_of(NEW))
    told = VirtualLoop().run_until_complete(change.restart(rollout(machine), owed("")))
    assert (told.result, machine.asked) == (Result.FAILED, 0)
    assert "no boot id was read before" in told.reason


@pytest.mark.case("F05")
def test_a_node_that_answers_from_its_old_boot_has_not_restarted() -> None:
    told, after_s = await_boot(Machine(*[value_of(OLD)] * 20, *[GONE] * 100, value_of(NEW)))
    assert (told.result, told.learnt.boot_id) == (Result.OK, NEW)
    assert after_s == 121 * change.BOOT_POLL_S


@pytest.mark.case("F05")
def test_an_order_that_changed_nothing_is_not_taken_for_a_restart() -> None:
    told, after_s = await_boot(Machine(value_of(OLD)))
    assert (told.result, told.reason) == (Result.UNKNOWN, "still runs the boot it had before the order")
    assert after_s == change.ORDER_AGAIN_AFTER_S


@pytest.mark.case("F05", "F06")
def test_what_is_no_boot_id_is_looked_at_again() -> None:
    told, _ = await_boot(Machine(unknown("sudo: a password is required"), GONE, value_of(NEW)))
    assert (told.result, told.learnt.boot_id) == (Result.OK, NEW)
