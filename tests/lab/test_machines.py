"""The lab's nodes behave as real ones do: what fleetctl proves on them holds elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl import lab
from fleetctl.errors import BadInput
from fleetctl.store.policy_file import read_policy
from tests.lab.conftest import RunningLab, wait_until

pytestmark = pytest.mark.lab

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_a_new_lab_is_a_healthy_fleet(running_lab: RunningLab) -> None:
    for node in ("gpu001", "gpu004"):
        assert running_lab.slurm_state(node) == "IDLE"
        assert running_lab.say(node, "cat /sys/module/nvidia/version") == "570.195.03"
        assert running_lab.say(node, "nvidia-smi -L | wc -l") == "8"
        assert running_lab.say(node, "systemctl is-active nvidia-fabricmanager nvidia-persistenced").split() == [
            "active",
            "active",
        ]
        assert running_lab.say(node, "systemctl is-system-running") == "running"
        packages = running_lab.say(node, "dpkg-query --show '*nvidia*' | awk '$2 {print $1, $2}'").splitlines()
        assert len(packages) > 10
        assert {line.split()[1].rpartition("-")[0] for line in packages} == {"570.195.03"}, packages
        held = running_lab.say(node, "apt-mark showhold").split()
        assert {line.split()[0].partition(":")[0] for line in packages} <= set(held)
        running_lab.say(node, "sudo apt-get update --error-on=any")
    assert running_lab.say("head-1", "systemctl is-system-running") == "running"


def test_bringing_up_a_lab_that_is_up_changes_nothing(running_lab: RunningLab) -> None:
    declared = running_lab.plan.inventory / "group_vars" / "gpu_nodes.yml"
    edited = declared.read_text().replace("570.195.03", "580.95.05")
    before = declared.read_text()
    boot_id = running_lab.boot_id("gpu001")
    declared.write_text(edited)
    try:
        lab.up(4, 2, "bookworm", running_lab.directory, running_lab.plan.name)
        assert declared.read_text() == edited
    finally:
        declared.write_text(before)
    assert running_lab.boot_id("gpu001") == boot_id


def test_another_lab_in_the_same_place_is_refused(running_lab: RunningLab) -> None:
    with pytest.raises(BadInput, match=r"has gpu\[001-004\] on bookworm"):
        lab.up(3, 1, "bookworm", running_lab.directory, running_lab.plan.name)


def test_a_drained_node_comes_back_from_its_reboot_down_and_drained(running_lab: RunningLab) -> None:
    identity = "cat /etc/machine-id; sudo cat /sys/class/dmi/id/product_uuid /sys/class/dmi/id/product_serial"
    running_lab.drain("gpu002", "fleetctl:r-1:0a1b driver")
    machine = running_lab.say("gpu002", identity)
    running_lab.say("gpu002", "sudo touch /etc/kept /run/gone")
    before = running_lab.boot_id("gpu002")

    running_lab.reboot("gpu002")

    after = running_lab.boot_id("gpu002")
    assert UUID.fullmatch(before)
    assert UUID.fullmatch(after)
    assert running_lab.say("gpu002", "ls /etc/kept /run/gone 2> /dev/null || true") == "/etc/kept"
    assert running_lab.say("gpu002", identity) == machine
    wait_until(lambda: "NOT_RESPONDING" not in running_lab.slurm_state("gpu002"), "slurmd registers")
    assert running_lab.slurm_state("gpu002") == "DOWN+DRAIN"
    assert running_lab.reason("gpu002") == "fleetctl:r-1:0a1b driver"
    events = running_lab.say("head-1", "sacctmgr --parsable2 --noheader show event nodes=gpu002 format=state,reason")
    assert "fleetctl:r-1:0a1b driver" in events
    running_lab.resume("gpu002")


def test_machines_are_told_apart_by_their_dmi(running_lab: RunningLab) -> None:
    read = "sudo cat /sys/class/dmi/id/product_uuid"
    seen = {running_lab.say(node, read) for node in ("head-1", "gpu001", "gpu002", "gpu003")}
    assert len(seen) == 4
    assert running_lab.ssh("gpu001", "cat /sys/class/dmi/id/product_uuid").returncode != 0, "only root may read it"


def test_a_job_of_an_ordinary_user_holds_a_node(running_lab: RunningLab) -> None:
    submit = "sudo -u researcher sbatch --parsable --chdir=/home/researcher --nodelist=gpu003 --gpus-per-node=8"
    job = running_lab.say("head-1", f"{submit} --wrap 'until [ -e go ]; do sleep 0.2; done; echo done > end-marker'")
    wait_until(lambda: running_lab.slurm_state("gpu003") in ("MIXED", "ALLOCATED"), "the job runs")

    running_lab.drain("gpu003", "fleetctl:r-2:0a1b driver")
    assert running_lab.slurm_state("gpu003") == "MIXED+DRAIN"
    (running_lab.plan.home / "go").touch()
    wait_until(lambda: running_lab.slurm_state("gpu003") == "IDLE+DRAIN", "the job has ended and the node is empty")

    assert running_lab.say("gpu003", "cat /home/researcher/end-marker") == "done"
    query = f"sacct --noheader --parsable2 --allocations --jobs={job} --format=User,State"
    wait_until(lambda: running_lab.say("head-1", query) == "researcher|COMPLETED", "slurmdbd has the job")
    running_lab.resume("gpu003")


def test_a_wrong_host_key_is_refused(running_lab: RunningLab) -> None:
    known = running_lab.plan.known_hosts
    right = known.read_text()
    lines = dict(line.split(" ", 1) for line in right.splitlines())
    ours, other = (next(names for names in lines if names.startswith(node)) for node in ("gpu001", "gpu002"))
    try:
        known.write_text(f"{ours} {lines[other]}\n")
        refused = running_lab.ssh("gpu001", "true")
        assert refused.returncode == 255
        assert "Host key verification failed" in refused.stderr
        known.write_text("")
        unknown = running_lab.ssh("gpu001", "true")
        assert unknown.returncode == 255
        assert "Host key verification failed" in unknown.stderr
    finally:
        known.write_text(right)
    running_lab.say("gpu001", "true")


def test_the_automation_user_is_not_root_and_has_sudo(running_lab: RunningLab) -> None:
    assert running_lab.say("gpu001", "id -un") == "fleet"
    assert running_lab.say("gpu001", "sudo -n id -un") == "root"
    assert (running_lab.plan.ssh_key.stat().st_mode & 0o777) == 0o600


def test_ansible_reaches_every_machine_by_the_labs_own_inventory(running_lab: RunningLab) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"}
    environment["ANSIBLE_CONFIG"] = str(running_lab.directory / "ansible.cfg")
    assert shutil.which("ansible", path=environment["PATH"])

    def ansible(*argv: str) -> str:
        done = subprocess.run(
            argv, env=environment, cwd=running_lab.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    listed = json.loads(ansible("ansible-inventory", "--list"))
    assert set(listed) == {"_meta", "all", "gpu_nodes", "slurm_head"}, "fleet.yml made no group"
    assert listed["gpu_nodes"]["hosts"] == ["gpu001", "gpu002", "gpu003", "gpu004"]
    racks = [listed["_meta"]["hostvars"][node]["rack"] for node in listed["gpu_nodes"]["hosts"]]
    assert racks == ["r01", "r01", "r02", "r02"]
    assert ansible("ansible", "all", "-m", "ansible.builtin.ping", "-o").count("SUCCESS") == 5
    assert "CHANGED" in ansible("ansible", "gpu001", "-m", "ansible.builtin.reboot")


def test_the_labs_policy_is_one_that_fleetctl_accepts(running_lab: RunningLab) -> None:
    site = read_policy(running_lab.plan.inventory, environ={})
    assert site.slurm is not None
    assert site.slurm.partitions == ("train", "debug")
    assert site.policy.power_cycle == (str(running_lab.directory / "bin" / "power-cycle"),)
