"""Proof that fabric manager is of the driver's build and that every GPU has joined the fabric. Read-only."""

import re
import time

import pytest

SMI_LIMIT_S = 60
# How long fabric manager may take to train the links of an eight-GPU baseboard after a boot.
FABRIC_LIMIT_S = 180
PAUSE_S = 3


@pytest.fixture(scope="module")
def is_wanted(ask, declared):
    """Whether this node is to have fabric manager; with "auto" the node itself shows whether it has NVLink switches."""
    enabled = str(declared["nvidia_fabric_manager_enabled"]).lower()
    if declared.get("nvidia_driver_owner", "host") != "host" or enabled == "false":
        return False
    if enabled == "true":
        return True
    answer = ask(["sh", "-c", "grep -H . /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/class"])
    assert answer.code == 0, f"pci: the bus can't be read: {answer.words}"
    vendors, classes = (dict(re.findall(rf"devices/([^/]+)/{name}:(\S+)", answer.out)) for name in ("vendor", "class"))
    if any(value.startswith("0x0680") and vendors.get(address) == "0x10de" for address, value in classes.items()):
        return True
    # HGX B200 and later: the switches are behind ports whose vital product data say SW_MNG.
    ports = ask(["sh", "-c", "cat /sys/class/infiniband/*/device/vpd 2>/dev/null | grep -ac SW_MNG"])
    assert ports.out.strip().isdigit(), f"nvlink ports: they can't be counted: {ports.words}"
    return int(ports.out) > 0


def test_fabric_manager_is_of_the_drivers_build(ask, declared, is_wanted):
    if not is_wanted:
        return
    # The binary, not the package: an empty transitional package of the old branch may pull in another build.
    answer = ask(["nv-fabricmanager", "--version"])
    assert answer.code == 0, f"fabric manager: {answer.words}"
    found = re.search(r"\d{3}\.\d+(?:\.\d+)?", answer.words)
    assert found, f"fabric manager: it says no version: {answer.words}"
    version = declared["nvidia_driver_version"]
    assert found.group() == version, f"fabric manager: {found.group()} is installed, the driver is to be {version}"


def test_fabric_manager_is_held(ask, is_wanted):
    if not is_wanted:
        return
    form = "${Package}|${db:Status-Status}|${db:Status-Want}\\n"
    answer = ask(["dpkg-query", "--show", "--showformat", form])
    if answer.code == 127:
        locks = ask(["cat", "/etc/dnf/plugins/versionlock.list"]).out
        assert re.search(r"^nvidia-fabric-?manager-", locks, re.M), "fabric manager: not held"
        return
    rows = [line.split("|") for line in answer.out.splitlines()]
    assert any(row[0] == "dpkg" for row in rows), f"packages: dpkg-query did not list them: {answer.words}"
    found = [row for row in rows if re.fullmatch(r"nvidia-fabricmanager(-\d+)?", row[0]) and row[1] == "installed"]
    assert found, "fabric manager: no package of it is installed"
    loose = [row[0] for row in found if row[2] != "hold"]
    assert not loose, f"fabric manager: not held: {', '.join(loose)}"


def test_fabric_manager_runs(ask, is_wanted):
    if not is_wanted:
        return
    state = ask(["systemctl", "is-active", "nvidia-fabricmanager"]).out.strip()
    assert state == "active", f"fabric manager: its service is {state or 'not known to systemd'}"
    enabled = ask(["systemctl", "is-enabled", "nvidia-fabricmanager"]).out.strip()
    assert enabled == "enabled", f"fabric manager: its service is {enabled or 'not known to systemd'} at boot"


def test_every_gpu_has_joined_the_fabric(ask, is_wanted):
    """A running service is not enough: the state must be Completed and the status Success, on every GPU."""
    if not is_wanted:
        return
    query = ["nvidia-smi", "--query-gpu=pci.bus_id,fabric.state,fabric.status", "--format=csv,noheader"]
    deadline = time.monotonic() + FABRIC_LIMIT_S
    while True:
        answer = ask(query, limit_s=SMI_LIMIT_S)
        assert not answer.has_timed_out, f"nvidia-smi: gpu-driver-unresponsive, no answer within {SMI_LIMIT_S} s"
        assert answer.code == 0, f"nvidia-smi: {answer.words}"
        rows = [[cell.strip() for cell in line.split(",")] for line in answer.out.splitlines() if line.strip()]
        assert rows, "fabric: NVML shows no GPU"
        waiting = [f"{bus_id} is {state}, {status}" for bus_id, state, status in rows if (state, status) != ("Completed", "Success")]
        if not waiting:
            return
        # Only what is under way may be waited for.
        under_way = all(state in ("In Progress", "Not Started") for _, state, _ in rows if state != "Completed")
        if not under_way or time.monotonic() > deadline:
            pytest.fail(f"fabric: {'; '.join(sorted(waiting))}", pytrace=False)
        if ask(["systemctl", "is-active", "nvidia-fabricmanager"]).out.strip() not in ("active", "activating"):
            pytest.fail(f"fabric: fabric manager does not run, and {'; '.join(sorted(waiting))}", pytrace=False)
        time.sleep(PAUSE_S)
