"""The same lab on the newer Debian, with the newer Slurm."""

from __future__ import annotations

import pytest

from tests.lab.conftest import lab_up, wait_until

pytestmark = pytest.mark.lab


def test_nodes_of_debian_13_boot_reboot_and_report_to_slurm_24_11(tmp_path_factory: pytest.TempPathFactory) -> None:
    with lab_up(tmp_path_factory.mktemp("trixie"), nodes=2, racks=1, release="trixie") as running:
        assert " 24.11." in running.say("head-1", "scontrol --version")
        assert running.say("gpu001", "cat /sys/module/nvidia/version") == "570.195.03"
        running.drain("gpu001", "fleetctl:r-1:0a1b driver")
        running.fault("gpu001", "reboot-slow", "20")
        running.reboot("gpu001")
        wait_until(lambda: "NOT_RESPONDING" not in running.slurm_state("gpu001"), "slurmd registers")
        assert running.slurm_state("gpu001") == "DOWN+DRAIN"
        assert running.reason("gpu001") == "fleetctl:r-1:0a1b driver : Not responding", (
            "Slurm itself appends to a reason"
        )
        running.fault("gpu001", "reboot-slow", clear=True)
        running.resume("gpu001")
        submit = "cd /home/researcher && sudo -u researcher srun --nodelist=gpu001 --gpus-per-node=8 hostname"
        assert running.say("head-1", submit) == "gpu001"
