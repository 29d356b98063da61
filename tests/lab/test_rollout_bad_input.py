"""What can't be done is said in one line with exit code 2, and nothing is touched; what needs no change gets none."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from tests.lab.conftest import wait_until
from tests.lab.fleet import NEW, OLD, Fleet, fleet_up, one_line

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_up(tmp_path_factory.mktemp("bad"), nodes=2) as fleet:
        yield fleet


@pytest.fixture
def declared(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet with a new version declared, so that a rollout would have something to do; files are put back."""
    files = [fleet.inventory / "group_vars" / "gpu_nodes.yml", fleet.inventory / "fleet.yml"]
    before = [file.read_text() for file in files]
    fleet.declare(nvidia_driver_version=NEW)
    try:
        yield fleet
    finally:
        for file, text in zip(files, before, strict=True):
            file.write_text(text)


@contextmanager
def nothing_touched(fleet: Fleet) -> Iterator[None]:
    before = fleet.untouched()
    yield
    assert fleet.untouched() == before


def refused(fleet: Fleet, *words: str) -> str:
    """The one line that both the plan and the rollout say."""
    with nothing_touched(fleet):
        planned = one_line(fleet.expect(2, "plan", "driver", *words))
        begun = one_line(fleet.expect(2, "rollout", "driver", "--yes", *words))
    assert planned == begun
    return begun


@pytest.mark.parametrize("version", ["latest", "580", "580.95.05-1", "580.95.05; reboot"])
def test_a_version_that_is_none_is_refused(declared: Fleet, version: str) -> None:
    assert version in refused(declared, "--to", version)


def test_a_version_written_as_a_number_is_refused(declared: Fleet) -> None:
    declared.declare(nvidia_driver_version=580.95)
    line = refused(declared)
    assert "nvidia_driver_version" in line
    assert "gpu_nodes.yml" in line


def test_an_unknown_variable_is_refused_with_the_one_that_was_meant(declared: Fleet) -> None:
    declared.declare(nvidia_driver_verison=NEW)
    line = refused(declared)
    assert "nvidia_driver_verison" in line
    assert "did you mean nvidia_driver_version" in line


def test_a_limit_that_leaves_no_node_is_refused(declared: Fleet) -> None:
    assert "rack99*" in refused(declared, "--limit", "rack99*")


def test_excluding_every_node_is_refused(declared: Fleet) -> None:
    assert "--exclude" in refused(declared, "--exclude", "gpu*")


def test_a_budget_of_no_node_is_refused(declared: Fleet) -> None:
    assert "0 would let no node out" in refused(declared, "--max-unavailable", "0")


def test_a_missing_inventory_is_refused(fleet: Fleet) -> None:
    nowhere = str(fleet.inventory.parent / "nowhere")
    assert nowhere in refused(fleet, "--inventory", nowhere)


def test_a_scheduler_that_can_not_be_reached_is_refused(declared: Fleet) -> None:
    head = declared.lab.plan.head.address
    declared.set_policy(schedulers={"slurm": {"via": f"ssh://{head}:2222", "partitions": ["train"]}})
    line = refused(declared)
    assert "Slurm can't be reached" in line
    assert head in line


def test_a_slurmctld_that_does_not_answer_is_refused(declared: Fleet) -> None:
    with nothing_touched(declared):
        declared.head("sudo systemctl stop slurmctld")
        try:
            done = declared.expect(2, "rollout", "driver", "--yes")
        finally:
            declared.head("sudo systemctl start slurmctld")
            wait_until(lambda: declared.lab.slurm_state("gpu001") == "IDLE", "slurmctld is back")
            wait_until(lambda: declared.lab.slurm_state("gpu002") == "IDLE", "slurmctld is back")
    assert "Slurm can't be reached" in one_line(done)


def test_an_identity_that_can_not_see_all_jobs_is_refused(declared: Fleet) -> None:
    with seeing_only_own_jobs(declared):
        line = refused_rollout(declared)
    assert "does not see others' jobs (PrivateData)" in line
    assert "AdminLevel" in line, "the line says what would help"


def test_a_plan_needs_to_see_all_jobs_too(declared: Fleet) -> None:
    with seeing_only_own_jobs(declared), nothing_touched(declared):
        line = one_line(declared.expect(2, "plan", "driver"))
    assert "does not see others' jobs (PrivateData)" in line


def refused_rollout(fleet: Fleet) -> str:
    with nothing_touched(fleet):
        return one_line(fleet.expect(2, "rollout", "driver", "--yes"))


@contextmanager
def seeing_only_own_jobs(fleet: Fleet) -> Iterator[None]:
    """Slurm as many sites have it, and an automation user that is nobody special."""
    conf, set_level = "/etc/slurm/slurm.conf", "sudo sacctmgr --immediate modify user where name=fleet set AdminLevel="
    fleet.head(f"echo PrivateData=jobs | sudo tee -a {conf} && {set_level}None && sudo scontrol reconfigure")
    try:
        yield
    finally:
        fleet.head(f"sudo sed -i /^PrivateData/d {conf} && {set_level}Administrator && sudo scontrol reconfigure")


def test_a_question_without_an_answer_touches_nothing(declared: Fleet) -> None:
    with nothing_touched(declared):
        done = declared.expect(2, "rollout", "driver")
    assert "nobody answers the question: nothing was touched" in done.stderr


def test_a_fleet_that_is_as_declared_is_left_alone_in_seconds(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet.on_all(fleet.loaded) == dict.fromkeys(fleet.nodes, OLD)
    declared = yaml.safe_load((fleet.inventory / "group_vars" / "gpu_nodes.yml").read_text())
    assert declared["nvidia_driver_version"] == OLD
    with nothing_touched(fleet):
        began = time.monotonic()
        done = fleet.expect(0, "rollout", "driver", "--yes")
        seconds = time.monotonic() - began
    with capsys.disabled():
        sys.stdout.write(f"[a rollout on a fleet that is as declared: {seconds:.1f} s] ")
    assert seconds < 30
    assert "nothing to do" in done.stdout
    assert fleet.on_all(fleet.ansible_modules) == dict.fromkeys(fleet.nodes, 0)
