"""A node whose verify fails goes back to the very packages it had; where there is no way back, it never sets out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from fleetctl.lab.repository import open_repository, withdraw
from tests.lab.fleet import NEW, OLD, Fleet, fleet_up

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_up(tmp_path_factory.mktemp("back"), nodes=2) as fleet:
        fleet.declare(nvidia_driver_version=NEW)
        yield fleet


def test_a_node_whose_verify_fails_is_back_at_its_closure_verified_and_at_work(fleet: Fleet) -> None:
    before, boot = fleet.packages("gpu001"), fleet.lab.boot_id("gpu001")
    # From now on every boot loads the old driver, whatever lies on disk: only the new version can fail by that.
    fleet.lab.fault("gpu001", "wrong-module", OLD)

    done = fleet.expect(3, "rollout", "driver", "--yes", "--limit", "gpu001", "--max-failures", "1")

    assert NEW in fleet.lab.say("gpu001", "cat /var/log/dpkg.log"), "it was really changed"
    assert fleet.packages("gpu001") == before
    assert fleet.loaded("gpu001") == OLD
    assert fleet.lab.boot_id("gpu001") != boot
    assert fleet.lab.slurm_state("gpu001") == "IDLE"
    assert told_states(fleet, "gpu001") == ["DRAINED", "IDLE"], "not given back before it was back"
    assert re.search(r"rolled_back +1  gpu001", done.stdout)
    assert OLD in done.stdout, "the reason says which version was found"
    fleet.lab.fault("gpu001", "wrong-module", clear=True)
    fleet.declare(nvidia_driver_version=OLD)
    fleet.expect(0, "verify", "gpu001")
    fleet.declare(nvidia_driver_version=NEW)


def test_a_node_without_a_way_back_is_given_back_before_any_package_is_changed(fleet: Fleet) -> None:
    withdraw(open_repository(fleet.lab.plan.repository), OLD)
    before, boot = fleet.packages("gpu002"), fleet.lab.boot_id("gpu002")
    changes = fleet.lab.say("gpu002", "sha256sum /var/log/dpkg.log")

    done = fleet.expect(3, "rollout", "driver", "--yes", "--limit", "gpu002")

    assert fleet.packages("gpu002") == before
    assert fleet.lab.say("gpu002", "sha256sum /var/log/dpkg.log") == changes, "dpkg was never at work"
    assert fleet.lab.boot_id("gpu002") == boot
    assert fleet.lab.slurm_state("gpu002") == "IDLE"
    assert re.search(r"deferred +1  gpu002", done.stdout)
    assert re.search(rf"gpu002: .*way back.*{re.escape(OLD)}|gpu002: .*{re.escape(OLD)}.*way back", done.stdout)


def told_states(fleet: Fleet, node: str) -> list[str]:
    return re.findall(rf"update_node: node {node} state set to (\S+)", fleet.log())
