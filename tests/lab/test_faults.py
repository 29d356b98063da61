"""Each fault of the lab is seen to work, and to be gone when it is cleared."""

from __future__ import annotations

import subprocess
import time

import pytest

from fleetctl import lab
from fleetctl.errors import BadInput
from tests.lab.conftest import RunningLab, wait_until

pytestmark = pytest.mark.lab


def power_cycle(running_lab: RunningLab, node: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([running_lab.directory / "bin" / "power-cycle", node], capture_output=True, text=True)


def test_a_node_whose_sshd_refuses_runs_on(running_lab: RunningLab) -> None:
    running_lab.fault("gpu001", "sshd-refuses")
    refused = running_lab.ssh("gpu001", "true")
    assert refused.returncode == 255
    assert "Connection refused" in refused.stderr
    assert running_lab.slurm_state("gpu001") == "IDLE"
    running_lab.fault("gpu001", "sshd-refuses", clear=True)
    running_lab.say("gpu001", "true")


def test_a_lost_node_goes_down_in_slurm_and_returns(running_lab: RunningLab) -> None:
    running_lab.fault("gpu001", "node-lost")
    assert running_lab.boot_id("gpu001") == ""
    wait_until(lambda: running_lab.slurm_state("gpu001").startswith("DOWN"), "slurmctld misses it")
    assert power_cycle(running_lab, "gpu001").returncode == 1, "a lost node has no BMC"
    running_lab.fault("gpu001", "node-lost", clear=True)
    wait_until(lambda: running_lab.boot_id("gpu001") != "", "it answers again")
    running_lab.resume("gpu001")


def test_a_reboot_that_never_returns_is_cured_by_a_power_cycle(running_lab: RunningLab) -> None:
    before = running_lab.boot_id("gpu002")
    running_lab.fault("gpu002", "reboot-never-returns")
    assert running_lab.boot_id("gpu002") == before, "nothing happens before the reboot"
    running_lab.ssh("gpu002", "sudo systemctl reboot")
    wait_until(lambda: running_lab.boot_id("gpu002") == "", "it goes")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert running_lab.boot_id("gpu002") == ""
    assert power_cycle(running_lab, "gpu002").returncode == 0
    wait_until(lambda: running_lab.boot_id("gpu002") not in ("", before), "it is back")
    running_lab.resume("gpu002")


def test_a_node_that_is_broken_for_good_outlives_a_power_cycle(running_lab: RunningLab) -> None:
    running_lab.fault("gpu002", "reboot-never-returns", "for-good")
    assert power_cycle(running_lab, "gpu002").returncode == 0
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        assert running_lab.boot_id("gpu002") == ""
    running_lab.fault("gpu002", "reboot-never-returns", clear=True)
    assert power_cycle(running_lab, "gpu002").returncode == 0
    wait_until(lambda: running_lab.boot_id("gpu002") != "", "it is back")
    running_lab.resume("gpu002")


def test_a_slow_reboot_takes_as_long_as_asked(running_lab: RunningLab) -> None:
    running_lab.drain("gpu003", "slow")
    running_lab.fault("gpu003", "reboot-slow", "20")
    began = time.monotonic()
    running_lab.reboot("gpu003")
    assert time.monotonic() - began > 20
    running_lab.fault("gpu003", "reboot-slow", clear=True)
    began = time.monotonic()
    running_lab.reboot("gpu003")
    assert time.monotonic() - began < 18
    running_lab.resume("gpu003")


def test_slurm_counts_one_gpu_fewer_when_one_is_missing_after_boot(running_lab: RunningLab) -> None:
    running_lab.fault("gpu004", "gpu-missing")
    assert running_lab.say("gpu004", "nvidia-smi -L | wc -l") == "8", "nothing happens before the reboot"
    running_lab.reboot("gpu004")
    assert running_lab.say("gpu004", "nvidia-smi -L | wc -l") == "7"
    wait_until(lambda: "gres/gpu count" in running_lab.reason("gpu004"), "slurmctld says what is missing")
    assert "DRAIN" in running_lab.slurm_state("gpu004")
    running_lab.fault("gpu004", "gpu-missing", clear=True)
    running_lab.reboot("gpu004")
    assert running_lab.say("gpu004", "nvidia-smi -L | wc -l") == "8"
    running_lab.resume("gpu004")


def test_a_hanging_nvidia_smi_hangs_until_cleared(running_lab: RunningLab) -> None:
    running_lab.fault("gpu001", "nvidia-smi-hangs")
    assert running_lab.say("gpu001", "timeout -s KILL 3 nvidia-smi; echo $?").endswith("137")
    running_lab.fault("gpu001", "nvidia-smi-hangs", clear=True)
    running_lab.say("gpu001", "timeout -s KILL 10 nvidia-smi")


@pytest.mark.parametrize(
    ("node", "kind", "argument", "message"),
    [
        ("gpu001", "explodes", None, "there is no fault 'explodes': known are dkms-fails"),
        ("gpu001", "reboot-slow", None, "reboot-slow needs the seconds"),
        ("gpu001", "reboot-slow", "long", "reboot-slow needs the seconds"),
        ("gpu001", "../x", None, "there is no fault"),
        ("gpu001", "dkms-fails", "$(reboot)", "can't be the argument of a fault"),
        ("gpu9", "dkms-fails", None, r"has no 'gpu9': it has head-1 and gpu\[001-004\]"),
        ("head-1", "dkms-fails", None, "head-1 is the head"),
    ],
)
def test_a_fault_that_can_not_be_is_refused(
    running_lab: RunningLab, node: str, kind: str, argument: str | None, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        running_lab.fault(node, kind, argument)
    for state in lab.status(running_lab.directory):
        assert not state.faults
