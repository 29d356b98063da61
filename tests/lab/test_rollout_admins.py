"""What admins and users do beside a rollout is theirs: no drain of theirs is undone, no reason lost, no job killed.

One rollout over four nodes meets all of it; afterwards each node is asked how it fared.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetctl import lab
from tests.lab.conftest import wait_until
from tests.lab.fleet import NEW, OLD, Fleet, fleet_up

pytestmark = pytest.mark.lab

BEFORE, DURING = "ECC errors; RMA is open", "bad fan = replace"
HOLDS = "until [ -e go ]; do sleep 0.5; done; touch $SLURM_JOB_ID.ended"
SHORT = "sleep 20; touch $SLURM_JOB_ID.ended"

# fleetctl has looked at the node, and found it idle; before it drains it, a user's job begins there.
BETWEEN_POLLS = """#!/bin/sh
[ "$FLEETCTL_NODE" = gpu004 ] || exit 0
exec >> {directory}/hook.out 2>&1
{submit}
until [ "$({state})" = R ]; do sleep 0.2; done
"""


@dataclass(frozen=True)
class Afterwards:
    """The fleet after the rollout, and what was read before it."""

    fleet: Fleet
    packages: Mapping[str, str]
    boots: Mapping[str, str]
    jobs: Mapping[str, str]
    plan: str
    code: int
    said: str

    def log_of(self, node: str) -> list[str]:
        """What slurmctld was told to do with a node, in order."""
        return re.findall(rf"update_node: node {node} state set to (\S+)", self.fleet.log())

    def reasons_of(self, node: str) -> list[str]:
        """The reasons that slurmctld was told to set, in order."""
        return re.findall(rf"update_node: node {node} reason set to: (.*)", self.fleet.log())


@pytest.fixture(scope="module")
def afterwards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Afterwards]:
    with fleet_up(tmp_path_factory.mktemp("admins"), nodes=4, max_failures=4) as fleet:
        yield live_through(fleet)


def live_through(fleet: Fleet) -> Afterwards:
    fleet.declare(nvidia_driver_version=NEW)
    fleet.set_policy(hooks={"before_drain": [str(write_hook(fleet))]})
    fleet.lab.drain("gpu001", BEFORE)
    job = fleet.submit("gpu002", HOLDS)
    packages, boots = fleet.on_all(fleet.packages), fleet.on_all(fleet.lab.boot_id)
    plan = fleet.expect(0, "plan", "driver").stdout

    rollout = fleet.start("rollout", "driver", "--yes")
    wait_until(lambda: fleet.lab.slurm_state("gpu002") == "MIXED+DRAIN", "gpu002 is drained, its job runs", 120)
    fleet.lab.drain("gpu002", DURING)
    rollout.wait_for(r"gpu003 +applying")
    wait_until(
        lambda: re.search(r"dpkg .*--(unpack|configure|remove)", fleet.lab.say("gpu003", "ps -e -o args=")) is not None,
        "gpu003 is being changed",
        200,
    )
    fleet.head("sudo scontrol update NodeName=gpu003 State=RESUME")
    rollout.wait_for(r"gpu002 +held")
    (fleet.lab.plan.home / "go").touch()
    code = rollout.end()

    between = (fleet.lab.plan.directory / "hook.out").read_text().split()[0]
    return Afterwards(fleet, packages, boots, {"gpu002": job, "gpu004": between}, plan, code, rollout.said)


def write_hook(fleet: Fleet) -> Path:
    def on_head(command: str) -> str:
        return shlex.join(lab.ssh_argv("head-1", command, directory=fleet.lab.directory))

    submit = "sudo -u researcher sbatch --parsable --chdir=/home/researcher --output=/dev/null --gpus-per-node=8"
    script = BETWEEN_POLLS.format(
        directory=fleet.lab.plan.directory,
        submit=on_head(f"{submit} --nodelist=gpu004 --time=10 --wrap '{SHORT}'"),
        state=on_head("squeue --noheader --nodelist=gpu004 --format=%t"),
    )
    path = fleet.lab.plan.directory / "before-drain"
    path.write_text(script)
    path.chmod(0o755)
    return path


def test_the_rollout_says_that_not_all_nodes_are_as_declared(afterwards: Afterwards) -> None:
    assert afterwards.code == 3


def test_a_node_that_an_admin_drained_before_is_not_planned_and_not_touched(afterwards: Afterwards) -> None:
    fleet = afterwards.fleet
    assert BEFORE in afterwards.plan
    assert re.search(r"gpu001.*held", afterwards.plan)
    assert fleet.packages("gpu001") == afterwards.packages["gpu001"]
    assert fleet.lab.boot_id("gpu001") == afterwards.boots["gpu001"]
    assert fleet.lab.settled_state("gpu001") == "IDLE+DRAIN"
    assert fleet.lab.reason("gpu001") == BEFORE
    assert afterwards.log_of("gpu001") == ["DRAINED"], "the admin's, and nothing after it"


def test_a_node_that_an_admin_drains_during_our_drain_is_held_unchanged(afterwards: Afterwards) -> None:
    fleet = afterwards.fleet
    assert fleet.packages("gpu002") == afterwards.packages["gpu002"]
    assert fleet.lab.boot_id("gpu002") == afterwards.boots["gpu002"]
    assert fleet.lab.settled_state("gpu002") == "IDLE+DRAIN"
    # Not by who is said to have set it: a slurmctld that misses the node for a moment puts itself there.
    assert fleet.lab.reason("gpu002") == DURING
    assert afterwards.reasons_of("gpu002")[-1] == DURING, "nobody wrote after the admin"
    assert afterwards.log_of("gpu002") == ["DRAINING", "DRAINING"], "our drain, the admin's"
    assert fleet.job_state(afterwards.jobs["gpu002"]) == "COMPLETED"
    assert f'drained by others by root: "{DURING}"' in afterwards.said


def test_a_node_that_an_admin_resumes_during_the_change_is_let_go_and_not_restarted(afterwards: Afterwards) -> None:
    fleet = afterwards.fleet
    assert fleet.lab.boot_id("gpu003") == afterwards.boots["gpu003"]
    assert fleet.loaded("gpu003") == OLD
    assert "DRAIN" not in fleet.lab.slurm_state("gpu003")
    assert afterwards.log_of("gpu003")[-1] == "IDLE", "the admin's word is the last"
    assert len(afterwards.log_of("gpu003")) == 2, "our drain, the admin's resume"
    assert re.search(r"gpu003.*given back by others", afterwards.said)
    assert "lease.json" not in fleet.lab.say("gpu003", "sudo ls /var/lib/fleetctl"), "the next controller may come"


@pytest.mark.case("G14")
def test_a_job_that_starts_between_two_polls_ends_by_itself_before_the_change(afterwards: Afterwards) -> None:
    fleet = afterwards.fleet
    job = afterwards.jobs["gpu004"]
    assert fleet.job_state(job) == "COMPLETED"
    assert (fleet.lab.plan.home / f"{job}.ended").exists()
    assert fleet.loaded("gpu004") == NEW
    assert fleet.lab.settled_state("gpu004") == "IDLE"
    assert afterwards.log_of("gpu004") == ["DRAINING", "IDLE"], "it was draining: the job was there"
    began, ended = fleet.head(f"sacct --allusers -n -P -X -j {job} --format=Start,End").split("|")
    changes = fleet.lab.say("gpu004", r"sed -E 's/^(\S+) (\S+) .*/\1T\2/' /var/log/dpkg.log").splitlines()
    assert not [at for at in changes if began <= at <= ended]
    assert [at for at in changes if at > ended]
