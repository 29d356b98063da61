"""A node whose verify fails goes back to the very packages it had; one without a way back never sets out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from fleetctl.lab.repository import open_repository, withdraw
from tests.lab.fleet import NEW, OLD, Fleet, fleet_up

pytestmark = pytest.mark.lab

DPKG_LOG = "sha256sum /var/log/dpkg.log"
APT_STATE = (
    "sudo find /var/lib/apt /var/cache/fleetctl /etc/apt -printf '%p %T@\\n' | sort; ls -d /tmp/fleetctl-* || true"
)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_up(tmp_path_factory.mktemp("back"), nodes=3) as fleet:
        fleet.declare(nvidia_driver_version=NEW)
        yield fleet


def test_a_node_whose_verify_fails_is_back_at_its_closure_verified_and_at_work(fleet: Fleet) -> None:
    before, boot = fleet.packages("gpu001"), fleet.lab.boot_id("gpu001")
    # From now on every boot loads the old driver, whatever lies on disk: only the new version can fail by that.
    fleet.lab.fault("gpu001", "wrong-module", OLD)

    done = fleet.expect(3, "rollout", "driver", "--yes", "--limit", "gpu001", "--max-failures", "1")

    assert NEW in fleet.lab.say("gpu001", "cat /var/log/dpkg.log"), f"it was really changed: {done.stdout}"
    assert fleet.packages("gpu001") == before
    assert fleet.loaded("gpu001") == OLD
    assert fleet.lab.boot_id("gpu001") != boot
    assert fleet.lab.settled_state("gpu001") == "IDLE"
    assert told_states(fleet, "gpu001") == ["DRAINED", "IDLE"], "not given back before it was back"
    assert re.search(r"rolled_back +1  gpu001", done.stdout)
    assert OLD in done.stdout, "the reason says which version was found"
    fleet.lab.fault("gpu001", "wrong-module", clear=True)
    fleet.declare(nvidia_driver_version=OLD)
    fleet.expect(0, "verify", "gpu001")
    fleet.declare(nvidia_driver_version=NEW)


def test_a_way_back_that_is_lost_during_the_drain_is_missed_before_any_package_is_changed(fleet: Fleet) -> None:
    before, boot = fleet.packages("gpu003"), fleet.lab.boot_id("gpu003")
    changes = fleet.lab.say("gpu003", DPKG_LOG)
    job = fleet.submit("gpu003", "sleep 900")
    rollout = fleet.start("rollout", "driver", "--yes", "--limit", "gpu003")
    rollout.wait_for(r"gpu003 +draining")
    withdraw(open_repository(fleet.lab.plan.repository), OLD)
    fleet.head(f"sudo scancel {job}")

    assert rollout.end() == 3, rollout.said
    assert fleet.packages("gpu003") == before
    assert fleet.lab.say("gpu003", DPKG_LOG) == changes, "dpkg was never at work"
    assert fleet.lab.boot_id("gpu003") == boot
    assert fleet.lab.settled_state("gpu003") == "IDLE"
    assert fleet.drains("gpu003") == 1
    assert re.search(r"deferred +1  gpu003", rollout.said)
    assert re.search(rf"gpu003: .*no way back: \S+={re.escape(OLD)}\S* and \d+ more are", rollout.said)


def test_a_way_back_that_is_lost_is_told_by_the_plan_and_no_node_is_drained_for_it(fleet: Fleet) -> None:
    before, boot = fleet.packages("gpu002"), fleet.lab.boot_id("gpu002")
    index = fleet.lab.say("gpu002", APT_STATE)

    planned = json.loads(fleet.expect(0, "plan", "driver", "--json").stdout)
    done = fleet.expect(3, "rollout", "driver", "--yes", "--limit", "gpu002")

    assert set(planned["not_planned"]) == {"gpu002", "gpu003"}
    found = planned["not_planned"]["gpu002"]
    assert found["why"] == "no_way_back"
    told = rf"no way back: \S+={re.escape(OLD)}\S* and \d+ more are in no repository"
    assert re.fullmatch(told, found["reason"])
    assert list(planned["to_change"]) == ["gpu001"], "it was there and back: it keeps a file of every package"
    assert planned["notes"] == []
    assert re.search(rf"gpu002 +no way back +\S+={re.escape(OLD)}", done.stdout)
    assert "nothing to do" in done.stdout
    assert fleet.drains("gpu002") == 0
    assert fleet.packages("gpu002") == before
    assert fleet.lab.boot_id("gpu002") == boot
    assert fleet.lab.say("gpu002", APT_STATE) == index, "looking changed nothing"


def test_a_policy_that_quarantines_needs_no_way_back(fleet: Fleet) -> None:
    planned = json.loads(fleet.expect(0, "plan", "driver", "--json", "--on-failed-verify", "quarantine").stdout)
    assert planned["not_planned"] == {}
    fleet.expect(0, "rollout", "driver", "--yes", "--limit", "gpu002", "--on-failed-verify", "quarantine")
    assert fleet.loaded("gpu002") == NEW
    assert fleet.lab.settled_state("gpu002") == "IDLE"


def told_states(fleet: Fleet, node: str) -> list[str]:
    return re.findall(rf"update_node: node {node} state set to (\S+)", fleet.log())
