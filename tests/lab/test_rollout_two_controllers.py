"""Two controllers never act on one node: with one journal or with two, and after one was stopped and woken."""

from __future__ import annotations

import re
import shutil
import signal
import time
from collections.abc import Iterator

import pytest

from tests.lab.conftest import wait_until
from tests.lab.fleet import NEW, OLD, Controller, Fleet, fleet_up

pytestmark = pytest.mark.lab

HOLDS = "until [ -e go ]; do sleep 0.5; done; touch $SLURM_JOB_ID.ended"
STILL_S = 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_up(tmp_path_factory.mktemp("two"), nodes=2) as fleet:
        fleet.declare(nvidia_driver_version=NEW)
        yield fleet


@pytest.fixture
def draining(fleet: Fleet) -> Iterator[Controller]:
    """A rollout that waits for a job on gpu001, and goes on when the file `go` is there."""
    (fleet.lab.plan.home / "go").unlink(missing_ok=True)
    fleet.submit("gpu001", HOLDS)
    controller = fleet.start("rollout", "driver", "--yes", "--limit", "gpu001")
    try:
        wait_until(lambda: fleet.lab.slurm_state("gpu001") == "MIXED+DRAIN", "gpu001 drains", 120)
        yield controller
    finally:
        (fleet.lab.plan.home / "go").touch()
        if controller.process.poll() is None:
            controller.kill()


def test_a_second_controller_is_refused_by_name_and_a_woken_one_does_nothing(
    fleet: Fleet, draining: Controller
) -> None:
    mine = re.search(r"fleetctl:(r-\S+?):", fleet.lab.reason("gpu001"))
    assert mine
    with_one_journal = fleet.expect(2, "rollout", "driver", "--yes", "--limit", "gpu002")
    assert f"rollout {mine[1]} is run by " in with_one_journal.stderr
    assert f"pid {draining.process.pid}" in with_one_journal.stderr
    assert fleet.drains("gpu002") == 0

    elsewhere = with_journal_of_its_own(fleet)
    with_two = elsewhere.expect(3, "rollout", "driver", "--yes", "--limit", "gpu001")
    assert mine[1] in with_two.stdout
    assert "nothing to do" in with_two.stdout
    assert fleet.drains("gpu001") == 1

    draining.process.send_signal(signal.SIGSTOP)
    stopped = fleet.expect(2, "rollout", "driver", "--yes", "--limit", "gpu002")
    assert "is stopped (SIGSTOP)" in stopped.stderr

    (fleet.lab.plan.home / "go").touch()
    wait_until(lambda: fleet.lab.slurm_state("gpu001") == "IDLE+DRAIN", "the job has ended")
    fleet.expect(0, "take-over", "gpu001", "--yes", "--force")
    assert fleet.loaded("gpu001") == NEW
    wait_until(lambda: fleet.lab.slurm_state("gpu001") == "IDLE", "gpu001 is at work")

    before = fleet.untouched()
    draining.process.send_signal(signal.SIGCONT)
    assert draining.end(60) not in (0, 3), "it knows that it is not done"
    assert re.search(r"fleetctl: .*taken over", draining.said)
    time.sleep(STILL_S)
    assert fleet.untouched() == before


def test_of_two_controllers_with_two_journals_that_start_together_one_changes_the_node(fleet: Fleet) -> None:
    assert fleet.loaded("gpu002") == OLD
    elsewhere = with_journal_of_its_own(fleet)
    words = ("rollout", "driver", "--yes", "--limit", "gpu002")
    pair = fleet.start(*words), elsewhere.start(*words)
    codes = [controller.end() for controller in pair]
    assert sorted(codes) == [0, 3], [controller.said for controller in pair]
    assert fleet.loaded("gpu002") == NEW
    wait_until(lambda: fleet.lab.slurm_state("gpu002") == "IDLE", "gpu002 is at work")
    told = re.findall(r"update_node: node gpu002 state set to (\S+)", fleet.log())
    assert told == ["DRAINED", "IDLE"], "drained once, given back once"
    marks = {event.reason.split()[0] for event in fleet.events() if event.node == "gpu002"}
    assert len(marks) == 1, "one controller's drain only"


def with_journal_of_its_own(fleet: Fleet) -> Fleet:
    """The same fleet as a colleague has it checked out, who knows nothing of our journal."""
    checkout = fleet.lab.directory / "elsewhere" / fleet.inventory.name
    if not checkout.exists():
        shutil.copytree(fleet.inventory, checkout)
        (checkout.parent / "state").mkdir(mode=0o700)
    other = Fleet(fleet.lab, checkout)
    other.set_policy(state_url=f"sqlite:///{checkout.parent}/state/journal.db")
    return other
