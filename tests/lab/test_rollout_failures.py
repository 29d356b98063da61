"""Nodes that fail end as the lifecycle says, with a reason a person understands; the breaker stops the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.lab.conftest import wait_until
from tests.lab.fleet import NEW, OLD, Fleet, fleet_up

pytestmark = pytest.mark.lab

JOB = "until [ -e go ]; do sleep 0.5; done; touch $SLURM_JOB_ID.ended"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Four nodes that may go at once. Nobody can power-cycle here, and a reboot may take a minute."""
    with fleet_up(tmp_path_factory.mktemp("failures"), nodes=4, limits_min={"restarting": 1}) as fleet:
        fleet.set_policy(power_cycle=None)
        fleet.declare(nvidia_driver_version=NEW)
        yield fleet


def test_the_first_failure_stops_a_rollout_that_allows_none(fleet: Fleet) -> None:
    before = fleet.on_all(fleet.packages)
    boots = fleet.on_all(fleet.lab.boot_id)
    fleet.lab.fault("gpu001", "dkms-fails", NEW)
    # Idle nodes go first, then those whose jobs have the nearest limit: three at once leave one untouched.
    jobs = {node: fleet.submit(node, JOB, minutes) for node, minutes in zip(fleet.nodes[1:], (10, 20, 30), strict=True)}

    done = fleet.expect(4, "rollout", "driver", "--yes", "--max-failures", "0", "--max-unavailable", "3")

    assert fleet.on_all(fleet.packages) == before, "the one that failed is back at its closure, the others as they were"
    assert fleet.on_all(fleet.loaded) == dict.fromkeys(fleet.nodes, OLD)
    for node in ("gpu002", "gpu003"):
        assert fleet.drains(node) == 1
        assert fleet.lab.settled_state(node) == "MIXED", f"given back, its job still there\n{done.stdout}"
    assert fleet.drains("gpu004") == 0
    assert fleet.lab.settled_state("gpu004") == "MIXED"
    assert {node: fleet.lab.boot_id(node) for node in jobs} == {node: boots[node] for node in jobs}
    assert re.search(r"pending +1  gpu004  \(not touched\)", done.stdout)
    assert "deferred          2  gpu[002-003]" in done.stdout
    assert "1 failures, 0 allowed" in done.stdout
    assert re.search(r"gpu001: .*(DKMS|module)", done.stdout)

    (fleet.lab.plan.home / "go").touch()
    for node, job in jobs.items():
        wait_until(lambda job=job: fleet.job_state(job) == "COMPLETED", f"job {job} on {node} ends by itself")  # type: ignore[misc]
        assert (fleet.lab.plan.home / f"{job}.ended").exists()
    wait_until(lambda: all(fleet.lab.slurm_state(node) == "IDLE" for node in fleet.nodes), "all nodes idle")
    fleet.lab.fault("gpu001", "dkms-fails", clear=True)


def test_three_nodes_fail_each_in_its_way_and_the_other_is_done(fleet: Fleet) -> None:
    before = fleet.packages("gpu001")
    fleet.lab.fault("gpu001", "dkms-fails", NEW)
    fleet.lab.fault("gpu002", "reboot-never-returns", "for-good")
    fleet.lab.fault("gpu003", "gpu-missing")

    done = fleet.expect(3, "rollout", "driver", "--yes", "--max-failures", "3")

    assert fleet.loaded("gpu004") == NEW
    assert fleet.gpus("gpu004") == "8"
    assert fleet.lab.settled_state("gpu004") == "IDLE"
    # The module does not build: nothing was restarted into, and the node works on as it did before.
    assert fleet.packages("gpu001") == before
    assert fleet.loaded("gpu001") == OLD
    assert fleet.lab.settled_state("gpu001") == "IDLE"
    assert re.search(r"gpu001: .*(DKMS|module)", done.stdout)
    # It never came back: still drained by us, and the reason says so where admins look.
    assert fleet.lab.boot_id("gpu002") == ""
    assert "DRAIN" in fleet.lab.slurm_state("gpu002")
    assert re.match(r"fleetctl:r-\S+ quarantined: restarting for more than", fleet.lab.reason("gpu002"))
    # A GPU is gone: no other driver brings it back, so it stays on the new one, drained.
    assert fleet.loaded("gpu003") == NEW
    assert fleet.gpus("gpu003") == "7"
    assert "DRAIN" in fleet.lab.slurm_state("gpu003")
    assert re.match(
        r"fleetctl:r-\S+ quarantined: .*7.*8|fleetctl:r-\S+ quarantined: .*8.*7", fleet.lab.reason("gpu003")
    )
