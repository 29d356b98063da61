"""The driver's several truths: what each one that differs is called, what closing it costs, what forbids a restart."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleetctl.components import registry
from fleetctl.components.driver import Driver
from fleetctl.components.driver_packages import driver_set, fabric_manager_set, is_of_version, source_of
from fleetctl.components.gpu_generations import generation_of
from fleetctl.errors import InventoryError
from fleetctl.model.drift import Disturbance, Drift
from fleetctl.parse.packages import Package
from tests.unit.healthy_node import BUS_IDS, HOST_VARS, KERNEL, VERSION, facts, ran, unit

DRIVER = Driver()
ROLES = Path(__file__).parents[2] / "roles"
OLD, OTHER_KERNEL = "570.195.03", "6.8.0-71-generic"
Change = Callable[[dict[str, Any]], None]


def compare(raw: dict[str, Any], **variables: Any) -> tuple[Drift, ...]:
    return DRIVER.compare(DRIVER.declared({**HOST_VARS, **variables}), DRIVER.observed(raw))


def truths(drifts: tuple[Drift, ...]) -> dict[str, Drift]:
    return {drift.truth: drift for drift in drifts}


def blocks(raw: dict[str, Any], **variables: Any) -> str:
    return DRIVER.blocks_restart(DRIVER.declared({**HOST_VARS, **variables}), DRIVER.observed(raw))


def with_packages(*lines: str) -> dict[str, Any]:
    raw = facts()
    raw["commands"]["dpkg_list"] = ran("".join(f"{line}\n" for line in lines), lines=800)
    raw["commands"]["apt_holds"] = ran("")
    return raw


def with_module(version: str, license_text: str = "Dual MIT/GPL", kernel: str = KERNEL) -> dict[str, Any]:
    raw = facts()
    set_module(raw, version, license_text, kernel)
    return raw


def set_module(raw: dict[str, Any], version: str, license_text: str = "Dual MIT/GPL", kernel: str = KERNEL) -> None:
    raw["kernels"][kernel] = {
        "tree": True,
        "headers": True,
        "modules": {"nvidia": ran(f"version:        {version}\nlicense:        {license_text}\n")},
    }


def load_module(raw: dict[str, Any], version: str, flavour: str = "open") -> None:
    kind = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    raw["files"]["/proc/driver/nvidia/version"] = {"text": f"NVRM version: NVIDIA UNIX {kind}  {version}  Release\n"}
    raw["files"]["/sys/module/nvidia/version"] = {"text": f"{version}\n"}


def boot_next(raw: dict[str, Any], kernel: str) -> None:
    raw["boot"]["entries"].append({"name": f"vmlinuz-{kernel}", "size": 1, "mtime": 1.0})
    menu = f"menuentry 'Ubuntu' {{\n linux /boot/vmlinuz-{kernel}\n}}\n"
    raw["files"]["/boot/grub/grub.cfg"] = {"text": menu}


@pytest.mark.case("A01", "A02")
def test_after_the_install_only_a_reboot_is_pending() -> None:
    raw = facts()
    load_module(raw, OLD)
    raw["nvidia_smi"] = {
        "gpus": ran("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n", 18)
    }
    found = truths(compare(raw))
    assert set(found) == {"loaded", "nvml"}
    for drift in found.values():
        assert drift.disturbance is Disturbance.REBOOT
        assert drift.remedy == "reboot pending: drain and reboot"
    assert "reboot-pending-mismatch" in found["nvml"].observed
    assert blocks(raw) == ""


@pytest.mark.case("A01", "A02")
def test_a_userland_that_others_moved_is_not_what_a_reboot_brings_back() -> None:
    raw = facts()
    raw["nvidia_smi"] = {
        "gpus": ran("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126\n", 18)
    }
    drift = truths(compare(raw))["nvml"]
    assert "library 580.126, loaded module 580.95.05" in drift.observed
    assert drift.remedy == "drain, run the role, reboot"


def test_an_old_driver_differs_in_every_truth() -> None:
    raw = with_packages(f"hi \tnvidia-dkms-570-open\tamd64\t{OLD}-0ubuntu1", f"hi \tnvidia-utils-570\tamd64\t{OLD}-1")
    set_module(raw, OLD)
    load_module(raw, OLD)
    raw["commands"]["dkms_status"] = ran(f"nvidia/{OLD}, {KERNEL}, x86_64: installed\n")
    gpus = raw["nvidia_smi"]["gpus"]
    gpus["out"] = gpus["out"].replace(VERSION, OLD)
    found = truths(compare(raw))
    assert {"packaged", "on_disk", "loaded", "nvml"} <= set(found)
    assert found["packaged"].observed == f"{OLD} (2 packages)"
    assert all(found[truth].disturbance is Disturbance.REBOOT for truth in ("packaged", "on_disk", "loaded", "nvml"))


def test_libraries_of_the_old_branch_left_behind_are_drift() -> None:
    raw = facts()
    raw["commands"]["dpkg_list"]["out"] += f"hi \tlibnvidia-compute-570\tamd64\t{OLD}-0ubuntu1\n"
    assert truths(compare(raw))["packaged"].observed == f"{OLD} (1 package)"


def test_configuration_left_of_a_removed_package_is_none() -> None:
    raw = facts()
    raw["commands"]["dpkg_list"]["out"] += f"rc \tlibnvidia-compute-570\tamd64\t{OLD}-0ubuntu1\n"
    assert compare(raw) == ()


def test_a_missing_hold_alone_disturbs_nobody() -> None:
    raw = facts()
    raw["commands"]["dpkg_list"]["out"] = raw["commands"]["dpkg_list"]["out"].replace(
        "hi \tlibnvidia-compute-580", "ii \tlibnvidia-compute-580"
    )
    raw["commands"]["apt_holds"]["out"] = raw["commands"]["apt_holds"]["out"].replace("libnvidia-compute-580\n", "")
    (drift,) = compare(raw)
    assert (drift.truth, drift.disturbance, drift.severity) == ("held", Disturbance.NONE, "warning")
    assert drift.remedy == "hold missing: run the role"


@pytest.mark.case("C01")
def test_the_wrong_flavour_of_the_right_version_is_drift() -> None:
    raw = with_module(VERSION, "NVIDIA")
    load_module(raw, VERSION, "proprietary")
    found = truths(compare(raw))
    assert found["on_disk"].observed == f"{VERSION} (proprietary) for kernel {KERNEL}"
    assert found["loaded"].observed == f"{VERSION} (proprietary)"
    assert "proprietary" in blocks(raw)


@pytest.mark.case("E04")
def test_no_module_for_the_kernel_of_the_next_boot_forbids_the_restart() -> None:
    raw = facts()
    boot_next(raw, OTHER_KERNEL)
    raw["kernels"][OTHER_KERNEL] = {
        "tree": True,
        "headers": True,
        "modules": {"nvidia": ran("", 1, "modinfo: ERROR: Module nvidia not found.\n")},
    }
    raw["initramfs"][OTHER_KERNEL] = ran("", path=f"/boot/initrd.img-{OTHER_KERNEL}")
    assert truths(compare(raw))["on_disk"].observed == f"no module for kernel {OTHER_KERNEL}"
    assert OTHER_KERNEL in blocks(raw)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw.update(boot={"error": "EIO: x"}), "next boot's kernel is not known"),
        (lambda raw: raw["commands"].update(dpkg_list={"timed_out": True}), "packages can't be read"),
        (lambda raw: set_module(raw, OLD), OLD),
        (lambda raw: raw["kernels"].clear(), KERNEL),
        (lambda raw: raw["initramfs"].update({KERNEL: {"missing": True}}), "initramfs"),
        (lambda raw: raw.update(secure_boot={"efi": True, "hex": "0600000001"}), "not signed"),
    ],
)
def test_what_cannot_be_vouched_for_forbids_the_restart(change: Change, words: str) -> None:
    raw = facts()
    change(raw)
    assert words in blocks(raw)


def test_nothing_forbids_the_restart_of_a_healthy_node() -> None:
    assert blocks(facts()) == ""


@pytest.mark.case("D04")
def test_a_half_configured_package_is_drift_and_forbids_the_restart() -> None:
    raw = facts()
    raw["commands"]["dpkg_list"]["out"] = raw["commands"]["dpkg_list"]["out"].replace(
        "hi \tnvidia-dkms-580-open", "iF \tnvidia-dkms-580-open"
    )
    assert truths(compare(raw))["package_state"].observed == "nvidia-dkms-580-open half-configured"
    assert "half-configured" in blocks(raw)


@pytest.mark.parametrize(
    ("listing", "made_at", "is_right"),
    [
        ("-rw-r--r-- 1 root root 14000000 Nov 20 10:00 usr/lib/modules/K/updates/dkms/nvidia.ko.zst\n", 1.0, True),
        ("-rw-r--r-- 1 root root 13000000 Nov 20 10:00 usr/lib/modules/K/updates/dkms/nvidia.ko.zst\n", 1.0, False),
        ("-rw-r--r-- 1 root root 13000000 Nov 20 10:00 usr/lib/modules/K/updates/dkms/nvidia.ko\n", 2e9, True),
        ("-rw-r--r-- 1 root root 5 Nov 20 10:00 usr/lib/modules/K/kernel/nvidiafb.ko\n", 1.0, True),
    ],
)
def test_an_initramfs_with_another_module_is_drift(listing: str, made_at: float, is_right: bool) -> None:
    raw = facts()
    raw["initramfs"][KERNEL]["out"] = listing
    raw["boot"]["entries"].append({"name": f"initrd.img-{KERNEL}", "size": 1, "mtime": made_at})
    assert ("initramfs" not in truths(compare(raw))) is is_right
    assert (blocks(raw) == "") is is_right


@pytest.mark.case("E01")
def test_a_module_that_differs_from_what_dkms_built_is_drift() -> None:
    raw = facts()
    note = "installed (WARNING! Diff between built and installed module!)"
    raw["commands"]["dkms_status"] = ran(f"nvidia/{VERSION}, {KERNEL}, x86_64: {note}\n")
    (drift,) = compare(raw)
    assert (drift.truth, drift.disturbance) == ("dkms", Disturbance.REBOOT)


@pytest.mark.case("A16")
def test_one_gpu_of_eight_missing_in_nvml_is_hardware_and_named() -> None:
    raw = facts()
    rows = raw["nvidia_smi"]["gpus"]["out"].splitlines()
    raw["nvidia_smi"]["gpus"]["out"] = "\n".join(rows[:5] + rows[6:]) + "\n"
    (drift,) = compare(raw)
    assert drift.observed == f"7 in NVML, 8 on the PCI bus: {BUS_IDS[4]} not in NVML"
    assert (drift.truth, drift.cause, drift.disturbance) == ("gpu_count", "hardware", Disturbance.NONE)
    assert "siblings" in drift.remedy


@pytest.mark.case("A16")
def test_a_gpu_missing_on_the_bus_shows_only_against_the_declared_count() -> None:
    raw = facts()
    rows = raw["nvidia_smi"]["gpus"]["out"].splitlines()
    raw["nvidia_smi"]["gpus"]["out"] = "\n".join(rows[:5] + rows[6:]) + "\n"
    del raw["pci"]["devices"][4]
    (drift,) = compare(raw)
    assert (drift.declared, drift.observed, drift.cause) == ("8", "7 on the PCI bus", "hardware")
    assert compare(raw, nvidia_driver_gpu_count=None) == ()


@pytest.mark.case("A15")
def test_a_lost_gpu_leaves_the_count_open() -> None:
    raw = facts()
    text = f"Unable to determine the device handle for GPU {BUS_IDS[3]}: GPU is lost.  Reboot\n the system\n"
    raw["nvidia_smi"] = {"gpus": ran(text, 15)}
    found = truths(compare(raw))
    assert set(found) == {"gpu_state"}
    assert found["gpu_state"].cause == "hardware"
    assert BUS_IDS[3] in found["gpu_state"].observed


@pytest.mark.case("A07")
def test_a_gpu_that_asks_for_a_reset_is_named_with_index_and_bus_id() -> None:
    raw = facts()
    gpus = raw["nvidia_smi"]["gpus"]
    gpus["out"] = gpus["out"].replace("Success, None", "Success, Reset", 1)
    (drift,) = compare(raw)
    assert drift.observed == f"GPU 0 ({BUS_IDS[0]}): recovery action Reset"
    assert drift.cause == "hardware"


@pytest.mark.case("A12")
def test_a_driver_that_does_not_answer_asks_for_a_power_cycle() -> None:
    raw = facts()
    raw["nvidia_smi"] = {"gpus": {"timed_out": True, "pid": 7, "out": "", "err": ""}}
    (drift,) = compare(raw)
    assert "gpu-driver-unresponsive" in drift.observed
    assert "power-cycle" in drift.remedy
    assert drift.cause == "health"


@pytest.mark.case("C01")
def test_no_device_at_all_with_the_proprietary_module_on_blackwell() -> None:
    raw = with_module(VERSION, "NVIDIA")
    load_module(raw, VERSION, "proprietary")
    raw["nvidia_smi"] = {"gpus": ran("No devices were found\n", 6)}
    raw["commands"]["kernel_log"] = ran(
        f"NVRM: The NVIDIA GPU {BUS_IDS[0]} (PCI ID: 10de:2901)\nNVRM: installed in this system requires use of the "
        f"NVIDIA open kernel modules.\nNVRM: GPU {BUS_IDS[0]}: RmInitAdapter failed! (0x62:0x1a:2631)\n",
        lines=900,
    )
    found = truths(compare(raw, nvidia_driver_flavour="proprietary"))
    assert "nvidia_driver_flavour: open" in found["gpu_count"].remedy
    assert found["gpu_count"].cause == "health"
    assert "gpu_state" in found


@pytest.mark.parametrize(("number", "severity"), [(79, "error"), (31, "info"), (63, "warning")])
def test_xids_weigh_by_their_kind(number: int, severity: str) -> None:
    raw = facts()
    raw["commands"]["kernel_log"] = ran(f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=1, text\n" * 2, lines=900)
    (drift,) = compare(raw)
    assert (drift.truth, drift.severity) == ("xid", severity)
    assert drift.observed == f"Xid {number} on 0000:1b:00, 2 times since boot"


@pytest.mark.case("A01", "A05")
def test_automatic_upgrades_that_would_move_the_driver_are_named() -> None:
    raw = facts()
    raw["commands"]["units"]["out"] = raw["commands"]["units"]["out"].replace(
        unit("apt-daily-upgrade.timer", "inactive", "dead", "masked", "masked"), unit("apt-daily-upgrade.timer")
    )
    (drift,) = compare(raw)
    assert (drift.truth, drift.severity, drift.disturbance) == ("automatic_upgrades", "warning", Disturbance.NONE)
    blacklist = 'Unattended-Upgrade::Package-Blacklist:: "(lib)?(nvidia|cuda)";\n'
    raw["commands"]["apt_config"]["out"] += blacklist + 'Unattended-Upgrade::Package-Blacklist:: "lib(nv|cuda).*";\n'
    assert compare(raw) == ()


@pytest.mark.case("A05")
def test_a_driver_that_an_operator_owns_is_audited_and_not_installed() -> None:
    raw = with_packages("ii \tbash\tamd64\t5.2")
    del raw["kernels"][KERNEL]
    variables = {**HOST_VARS, "nvidia_driver_owner": "operator"}
    declared, observed = DRIVER.declared(variables), DRIVER.observed(raw)
    assert DRIVER.compare(declared, observed) == ()
    assert DRIVER.blocks_restart(declared, observed) == ""
    (refusal,) = DRIVER.refusals({"driver": declared}, {"driver": observed})
    assert "operator" in refusal.reason
    load_module(raw, OLD)
    assert "loaded" in truths(DRIVER.compare(declared, DRIVER.observed(raw)))
    (drift,) = DRIVER.compare(declared, DRIVER.observed(facts()))
    assert (drift.truth, drift.declared) == ("packaged", "none on the host")


@pytest.mark.case("A05")
def test_automatic_upgrades_are_told_where_an_operator_owns_the_driver_too() -> None:
    raw = with_packages("ii \tbash\tamd64\t5.2")
    timer = "apt-daily-upgrade.timer"
    masked = unit(timer, "inactive", "dead", "masked", "masked")
    raw["commands"]["units"]["out"] = raw["commands"]["units"]["out"].replace(masked, unit(timer))
    (drift,) = compare(raw, nvidia_driver_owner="operator")
    assert drift.truth == "automatic_upgrades"
    assert "nvidia-.*, libnvidia-.* and cuda-.*" in drift.remedy
    raw["commands"]["apt_config"]["out"] += "".join(
        f'Unattended-Upgrade::Package-Blacklist:: "{name}";\n' for name in ("nvidia-.*", "libnvidia-.*", "cuda-.*")
    )
    assert compare(raw, nvidia_driver_owner="operator") == ()


@pytest.mark.case("C01")
@pytest.mark.parametrize(
    ("device", "name", "variables", "words"),
    [
        ("0x2901", "NVIDIA B200", {"nvidia_driver_flavour": "proprietary"}, "does not drive Blackwell"),
        ("0x2941", "NVIDIA GB200", {"nvidia_driver_flavour": "proprietary"}, "does not drive Blackwell"),
        ("0x2342", "NVIDIA GH200 480GB", {"nvidia_driver_flavour": "proprietary"}, "does not drive Grace Hopper"),
        ("0x1db6", "Tesla V100-PCIE-32GB", {"nvidia_driver_flavour": "open"}, "does not drive Volta"),
        (
            "0x1db6",
            "Tesla V100-PCIE-32GB",
            {"nvidia_driver_flavour": "proprietary", "nvidia_driver_version": "590.48.01"},
            "branch 590 does not drive Volta",
        ),
        ("0x2330", "NVIDIA H100", {"nvidia_driver_flavour": "proprietary"}, ""),
        ("0x20b2", "NVIDIA A100", {"nvidia_driver_flavour": "open"}, ""),
        ("0x1eb8", "Tesla T4", {"nvidia_driver_flavour": "open"}, ""),
        (
            "0x2330",
            "NVIDIA H100",
            {"nvidia_driver_flavour": "proprietary", "nvidia_driver_version": "620.10.01"},
            "no proprietary kernel module",
        ),
    ],
)
def test_flavours_that_can_not_drive_the_gpus_are_refused(
    device: str, name: str, variables: dict[str, Any], words: str
) -> None:
    raw = facts()
    for entry in raw["pci"]["devices"][:8]:
        entry["device"] = device
    raw["nvidia_smi"]["gpus"]["out"] = raw["nvidia_smi"]["gpus"]["out"].replace("NVIDIA H100 80GB HBM3", name)
    declared = DRIVER.declared({**HOST_VARS, **variables})
    refusals = DRIVER.refusals({"driver": declared}, {"driver": DRIVER.observed(raw)})
    assert [words in refusal.reason for refusal in refusals] == ([True] if words else [])


def test_a_next_boot_kernel_without_headers_is_refused() -> None:
    raw = facts()
    raw["kernels"][KERNEL]["headers"] = False
    (refusal,) = DRIVER.refusals({"driver": DRIVER.declared(HOST_VARS)}, {"driver": DRIVER.observed(raw)})
    assert KERNEL in refusal.reason
    raw["commands"]["dpkg_list"]["out"] += f"hi \tlinux-modules-nvidia-580-open-{KERNEL}\tamd64\t6.8.0-60.63\n"
    assert DRIVER.refusals({"driver": DRIVER.declared(HOST_VARS)}, {"driver": DRIVER.observed(raw)}) == ()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"nvidia_driver_version": 580.95}, "quotes"),
        ({"nvidia_driver_version": "latest"}, "exact"),
        ({"nvidia_driver_version": "580"}, "exact"),
        ({"nvidia_driver_version": "580.95.05\n"}, "exact"),
        ({"nvidia_driver_flavour": "closed"}, "open, proprietary"),
        ({"nvidia_driver_owner": "me"}, "host, operator"),
        ({"nvidia_driver_gpu_count": 0}, "number of GPUs"),
        ({"nvidia_driver_gpu_count": True}, "number of GPUs"),
        ({"nvidia_driver_gpu_count": "8"}, "number of GPUs"),
    ],
)
def test_declared_values_that_can_not_be_are_named(variables: dict[str, Any], words: str) -> None:
    with pytest.raises(InventoryError, match=words):
        DRIVER.declared({**HOST_VARS, **variables})


@pytest.mark.parametrize("value", [None, ""])
def test_no_version_declared_means_not_declared(value: Any) -> None:
    assert DRIVER.declared({**HOST_VARS, "nvidia_driver_version": value}) is None
    assert DRIVER.declared({}) is None


def test_the_closure_holds_all_that_the_way_back_needs() -> None:
    closure = DRIVER.closure(DRIVER.observed(facts()))
    assert closure.packages["nvidia-dkms-580-open"] == f"{VERSION}-1"
    assert "nvidia-fabricmanager" not in closure.packages
    assert set(closure.held) == set(closure.packages)
    assert closure.variables == {
        "nvidia_driver_version": VERSION,
        "nvidia_driver_flavour": "open",
        "nvidia_driver_source": "nvidia",
    }
    assert DRIVER.declared({**HOST_VARS, **closure.variables}) == DRIVER.declared(HOST_VARS)


def test_a_package_of_two_architectures_is_kept_apart_in_the_closure() -> None:
    raw = facts()
    raw["commands"]["dpkg_list"]["out"] += f"hi \tlibnvidia-compute-580\ti386\t{VERSION}-2\n"
    packages = DRIVER.closure(DRIVER.observed(raw)).packages
    assert packages["libnvidia-compute-580:amd64"] == f"{VERSION}-1"
    assert packages["libnvidia-compute-580:i386"] == f"{VERSION}-2"


@pytest.mark.parametrize("line", ["iU \tnvidia-utils-580\tamd64\t1", "broken"])
def test_there_is_no_way_back_to_packages_that_are_not_whole(line: str) -> None:
    raw = facts()
    raw["commands"]["dpkg_list"]["out"] += line + "\n"
    assert not DRIVER.closure(DRIVER.observed(raw)).packages


NVIDIA_580 = "nvidia-open-580 nvidia-driver-580-open nvidia-dkms-580-open libnvidia-compute-580 nvidia-firmware-580"
NVIDIA_590 = "nvidia-open nvidia-driver-open nvidia-dkms-open libnvidia-compute nvidia-kernel-source-open"
CANONICAL = "nvidia-headless-580-server-open nvidia-utils-580-server linux-modules-nvidia-580-open-6.8.0-60-generic"
DEBIAN = "nvidia-kernel-open-dkms libcuda1 libnvidia-ml1 nvidia-smi nvidia-alternative firmware-nvidia-gsp"
PINNING = "nvidia-driver-pinning-580.95.05 nvidia-driver-pinning-580 cuda-drivers cuda-drivers-580"
RHEL = "nvidia-open nvidia-driver-cuda kmod-nvidia-open-dkms nvidia-kmod-common libnvidia-ml nvidia-driver-libs"
OTHERS = (
    "nvidia-container-toolkit libnvidia-container1 nvidia-fs-dkms nvidia-gds-13-1 cuda-toolkit-13-0 cuda-compat-13-0 "
    "nvidia-fabricmanager nvidia-fabricmanager-570 datacenter-gpu-manager-4-core nvidia-driver-assistant nvidia-docker2"
)


@pytest.mark.parametrize("names", [NVIDIA_580, NVIDIA_590, CANONICAL, DEBIAN, PINNING])
def test_names_of_all_repositories_belong_to_the_driver(names: str) -> None:
    assert all(driver_set("debian", "nvidia").match(name) for name in names.split())


def test_names_of_the_rhel_family_belong_to_the_driver() -> None:
    assert all(driver_set("rhel", "nvidia").match(name) for name in RHEL.split())


@pytest.mark.parametrize("family", ["debian", "rhel"])
def test_neighbours_do_not_belong_to_the_driver(family: str) -> None:
    matching = [name for name in OTHERS.split() if driver_set(family, "nvidia").match(name)]
    assert matching == []


def read_role(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROLES / path).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize(
    ("family", "file", "names"),
    [
        ("debian", "Debian.yml", f"{NVIDIA_580} {NVIDIA_590} {CANONICAL} {DEBIAN} {PINNING} {OTHERS}"),
        ("rhel", "RedHat.yml", f"{RHEL} {OTHERS}"),
    ],
)
def test_the_role_takes_the_same_packages_for_the_drivers(family: str, file: str, names: str) -> None:
    members = read_role(f"nvidia_driver/vars/{file}")["_nvidia_driver_member_names"]
    role = re.compile("|".join(members))
    differing = [
        name for name in names.split() if bool(role.fullmatch(name)) != bool(driver_set(family, "nvidia").match(name))
    ]
    assert differing == []


def test_the_role_takes_the_same_packages_for_fabric_managers() -> None:
    members = read_role("nvidia_fabric_manager/vars/main.yml")["_nvidia_fabric_manager_members"].strip()
    names = f"{OTHERS} nvidia-fabric-manager nvidia-fabricmanager-dev-580 nvlink5-580 libnvidia-nscq-580 nvidia-imex"
    differing = [
        name for name in names.split() if bool(re.fullmatch(members, name)) != bool(fabric_manager_set().match(name))
    ]
    assert differing == []


def test_what_is_not_declared_is_the_roles_default() -> None:
    defaults = read_role("nvidia_driver/defaults/main.yml")
    alone = DRIVER.declared({"nvidia_driver_version": VERSION})
    assert alone == DRIVER.declared({**defaults, "nvidia_driver_version": VERSION})


def test_packages_that_distributions_version_by_themselves_are_left_out_there() -> None:
    assert driver_set("debian", "nvidia").match("nvidia-modprobe")
    assert not driver_set("debian", "distribution").match("nvidia-modprobe")
    assert driver_set("debian", "distribution").match("nvidia-utils-580")


def test_fabric_managers_names() -> None:
    names = (
        "nvidia-fabricmanager nvidia-fabricmanager-580 nvidia-fabric-manager cuda-drivers-fabricmanager-570 nvlink5-580"
    )
    assert all(fabric_manager_set().match(name) for name in names.split())
    assert not fabric_manager_set().match("nvidia-container-toolkit")


@pytest.mark.parametrize(
    ("name", "version", "is_right"),
    [
        ("nvidia-utils-580", "580.95.05-0ubuntu0.24.04.1", True),
        ("nvidia-utils-580", "580.95.5-1", True),
        ("nvidia-utils-580", "580.95-1", False),
        ("nvidia-utils-580", "580.65.06-1", False),
        ("nvidia-driver-pinning-580", "580-2ubuntu1", True),
        ("nvidia-driver-pinning-580.95.05", "580.95.05-1", True),
        ("nvidia-driver-pinning-580.65.06", "580.65.06-1", False),
        ("linux-modules-nvidia-580-open-6.8.0-60-generic", "6.8.0-60.63", True),
        ("libnvidia-egl-wayland1", "1:1.1.20-1", True),
        ("nvidia-open", "3:580.95.05-1.el9", True),
    ],
)
def test_a_packages_build_is_told_by_its_upstream_version(name: str, version: str, is_right: bool) -> None:
    assert is_of_version(Package(name, version, "amd64"), VERSION) is is_right


@pytest.mark.parametrize(
    ("version", "source"),
    [
        ("580.95.05-1", "nvidia"),
        ("580.95.05-0ubuntu1", "nvidia"),
        ("595.71.05-1ubuntu1", "nvidia"),
        ("580.126.20-0ubuntu0.22.04.1", "distribution"),
        ("535.247.01-1~deb12u1", "distribution"),
    ],
)
def test_the_revision_tells_who_built_a_package(version: str, source: str) -> None:
    assert source_of([Package("nvidia-utils-580", version, "amd64")]) == source


@pytest.mark.parametrize(
    ("device_id", "generation"),
    [
        (0x102D, "Kepler or older"),  # K80
        (0x13F2, "Maxwell"),  # M60
        (0x15F8, "Pascal"),  # P100
        (0x17FD, "Maxwell"),  # M40
        (0x1B38, "Pascal"),  # P40
        (0x1DB1, "Volta"),  # V100 SXM2
        (0x1E30, "Turing"),  # RTX 6000
        (0x20B0, "Ampere"),  # A100
        (0x2182, "Turing"),  # GTX 1660 Ti
        (0x2235, "Ampere"),  # A40
        (0x2335, "Hopper"),  # H200
        (0x2342, "Grace Hopper"),
        (0x25B6, "Ampere"),  # A16
        (0x26B9, "Ada"),  # L40S
        (0x27B8, "Ada"),  # L4
        (0x2901, "Blackwell or newer"),  # B200
        (0x2BB1, "Blackwell or newer"),  # RTX PRO 6000
        (0x3182, "Blackwell or newer"),  # B300
    ],
)
def test_generations_by_device_id(device_id: int, generation: str) -> None:
    assert generation_of(device_id).name == generation


def test_the_summary_is_the_one_version_a_person_wants() -> None:
    assert DRIVER.summary(DRIVER.observed(facts())) == f"{VERSION} (open)"
    raw = facts()
    raw["files"]["/proc/driver/nvidia/version"] = {"absent": True}
    raw["files"]["/sys/module/nvidia/version"] = {"absent": True}
    assert DRIVER.summary(DRIVER.observed(raw)) == f"{VERSION} on disk, not loaded"
    raw["files"]["/proc/driver/nvidia/version"] = {"error": "EIO: x"}
    assert DRIVER.summary(DRIVER.observed(raw)) == "unknown"


def test_observing_changes_no_fact() -> None:
    raw = facts()
    before = copy.deepcopy(raw)
    for component in registry.load().values():
        component.observed(raw)
    assert raw == before


def with_peermem(state: dict[str, Any]) -> dict[str, Any]:
    raw = facts()
    raw["files"]["/sys/module/nvidia_peermem/initstate"] = state
    return raw


@pytest.mark.case("E06")
@pytest.mark.parametrize("state", [{"absent": True}, {"text": "coming\n"}, {"text": "going\n"}, {"text": ""}])
def test_a_declared_module_that_this_boot_could_not_load_is_drift(state: dict[str, Any]) -> None:
    drifts = truths(compare(with_peermem(state), nvidia_driver_load_modules=["nvidia-peermem"]))
    assert set(drifts) == {"modules"}
    assert drifts["modules"].declared == "nvidia-peermem loaded"
    assert drifts["modules"].disturbance is Disturbance.REBOOT


@pytest.mark.case("E06")
def test_modules_that_are_loaded_or_not_declared_are_no_drift() -> None:
    assert not compare(facts(), nvidia_driver_load_modules=["nvidia-peermem", "nvidia-uvm"])
    assert not compare(with_peermem({"absent": True}))


@pytest.mark.case("E06")
def test_a_module_whose_state_could_not_be_read_is_not_vouched_for() -> None:
    (drift,) = compare(with_peermem({"error": "EIO"}), nvidia_driver_load_modules=["nvidia-peermem"])
    assert (drift.truth, drift.is_unknown, drift.disturbance) == ("modules", True, Disturbance.NONE)


@pytest.mark.case("E06")
@pytest.mark.parametrize("value", ["nvidia-peermem", ["nvidia_peermem"], ["ib_core; reboot"], [None]])
def test_a_module_that_the_role_does_not_answer_for_is_refused(value: Any) -> None:
    with pytest.raises(InventoryError, match="nvidia_driver_load_modules"):
        DRIVER.declared({**HOST_VARS, "nvidia_driver_load_modules": value})
