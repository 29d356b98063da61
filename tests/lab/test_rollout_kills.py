"""kill -9 loses nothing: `rollout resume` takes up where the controller died, whatever was under way."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from tests.lab.conftest import wait_until
from tests.lab.deaths import (
    events_written,
    kill_on_log_line,
    kill_when,
    live_runs,
    open_act,
    watching_runs,
)
from tests.lab.fleet import NEW, OLD, Fleet, fleet_up

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FOREIGN = "RMA is open"
FOREIGN_NODE = "gpu003"
CHANGED = ("gpu001", "gpu002")
KILLS, KILLS_WITH_CHILDREN = 25, 8


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Three nodes, of which an admin has one."""
    with fleet_up(tmp_path_factory.mktemp("kills"), nodes=3) as fleet:
        fleet.lab.drain(FOREIGN_NODE, FOREIGN)
        yield fleet


def test_a_controller_killed_in_dpkg_after_the_reboot_order_and_at_the_undrain_loses_nothing(fleet: Fleet) -> None:
    fleet.declare(nvidia_driver_version=NEW)
    boot = fleet.lab.boot_id("gpu001")
    with watching_runs(fleet) as overlaps:
        first = fleet.start("rollout", "driver", "--yes")
        kill_when(first, lambda: is_changing_packages(fleet, "gpu001"), "dpkg works on gpu001")
        assert open_act(fleet, "gpu001") == "apply"
        assert live_runs(fleet), "its Ansible outlived it"

        second = fleet.start("rollout", "resume")
        kill_when(second, lambda: fleet.lab.boot_id("gpu001") != boot, "gpu001 is on its way to another boot")
        assert "waiting for a run of the earlier controller" in second.said
        assert open_act(fleet, "gpu001") == "restart"

        third = fleet.start("rollout", "resume")
        kill_on_log_line(fleet, third, "update_node: node gpu001 state set to IDLE")
        assert open_act(fleet, "gpu001") == "undrain", "given back, but not read back"

        last = fleet.start("rollout", "resume")
        assert last.end() == 0, last.said
    assert overlaps.looks > 100
    assert overlaps.runs, "the watcher has seen Ansible at work"
    assert overlaps.seen == []
    assert_all_changed(fleet, NEW)
    assert_verified_before_each_undrain(fleet)
    fleet.expect(0, "rollout", "verify-journal")


def test_after_all_that_a_second_rollout_has_nothing_to_do_and_runs_no_ansible(fleet: Fleet) -> None:
    ran = fleet.on_all(fleet.ansible_modules, CHANGED)
    assert all(ran.values()), "Ansible leaves its traces in the nodes' syslog"
    done = fleet.expect(3, "rollout", "driver", "--yes")
    assert "nothing to do" in done.stdout
    assert fleet.on_all(fleet.ansible_modules, CHANGED) == ran


@pytest.mark.slow
def test_a_controller_killed_at_any_moment_loses_nothing(fleet: Fleet) -> None:
    """Several rollouts, there and back, until enough controllers have died; the moments are drawn, with a seed."""
    draw = random.Random(580)
    kills = with_children = 0
    version = OLD
    with watching_runs(fleet) as overlaps:
        while kills < KILLS or with_children < KILLS_WITH_CHILDREN:
            words: tuple[str, ...] = ("rollout", "driver", "--yes", "--to", version)
            seen = len(events_written(fleet))
            while True:
                controller = fleet.start(*words)
                wait_until(lambda: len(events_written(fleet)) != seen or controller.process.poll() is not None, "begun")  # noqa: B023
                goal = len(events_written(fleet)) + draw.randint(0, 4)
                wait_until(
                    lambda: len(events_written(fleet)) >= goal or controller.process.poll() is not None,  # noqa: B023
                    f"event {goal}",
                    240,
                )
                if controller.process.poll() is None:
                    controller.kill()
                    kills += 1
                    with_children += bool(live_runs(fleet))
                elif controller.process.returncode == 0:
                    break
                seen = len(events_written(fleet))
                words = ("rollout", "resume")
            assert_all_changed(fleet, version)
            assert_verified_before_each_undrain(fleet)
            version = NEW if version == OLD else OLD
    assert overlaps.seen == []


def is_changing_packages(fleet: Fleet, node: str) -> bool:
    processes = fleet.lab.ssh(node, "ps -e -o args=", timeout_s=15).stdout
    return bool(re.search(r"^\S*dpkg .*--(unpack|configure|remove)", processes, re.MULTILINE))


def assert_all_changed(fleet: Fleet, version: str) -> None:
    assert fleet.on_all(fleet.loaded, CHANGED) == dict.fromkeys(CHANGED, version)
    for node in CHANGED:
        wait_until(lambda node=node: fleet.lab.slurm_state(node) == "IDLE", f"{node} is at work")  # type: ignore[misc]
        assert fleet.lab.say(node, "dpkg --audit") == ""
        assert "lease.json" not in fleet.lab.say(node, "sudo ls /var/lib/fleetctl")
    assert fleet.lab.slurm_state(FOREIGN_NODE) == "IDLE+DRAIN"
    assert fleet.lab.reason(FOREIGN_NODE) == FOREIGN
    assert fleet.loaded(FOREIGN_NODE) == OLD


def assert_verified_before_each_undrain(fleet: Fleet) -> None:
    """Between the last boot and the last undrain, the node's sudo log has the check that copies on every GPU."""
    undrains = re.findall(r"\[(\S+)\.\d+\] update_node: node (\S+) state set to (?:IDLE|UNDRAIN)", fleet.log())
    last = {node: at for at, node in undrains}
    for node in CHANGED:
        verified = fleet.lab.say(
            node,
            "sudo journalctl --quiet --no-pager --boot=all --output=short-iso --identifier=sudo"
            " | grep cuInit | cut -c1-19 || true",
        ).splitlines()
        booted = fleet.lab.say(node, "date -u -d @$(stat -c %Y /proc/1) +%Y-%m-%dT%H:%M:%S")
        assert [at for at in verified if booted <= at <= last[node]], (node, booted, verified, last[node])
