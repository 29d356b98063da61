"""Fabric manager: of the driver's build, running, every GPU in the fabric; and nothing of it without NVSwitches."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.components.driver import Driver
from fleetctl.components.fabric_manager import FabricManager
from fleetctl.errors import InventoryError
from fleetctl.model.drift import Disturbance, Drift
from tests.unit.healthy_node import BUS_IDS, HOST_VARS, VERSION, facts, ran, unit

FABRIC = FabricManager()
SERVICE = "nvidia-fabricmanager.service"


def compare(raw: dict[str, Any], **variables: Any) -> tuple[Drift, ...]:
    return FABRIC.compare(FABRIC.declared({**HOST_VARS, **variables}), FABRIC.observed(raw))


def without_switches() -> dict[str, Any]:
    raw = facts()
    raw["pci"]["devices"] = raw["pci"]["devices"][:8]
    gpus = raw["nvidia_smi"]["gpus"]
    gpus["out"] = gpus["out"].replace("Completed, Success", "N/A, N/A")
    return raw


def set_unit(raw: dict[str, Any], active: str, sub: str) -> None:
    units = raw["commands"]["units"]
    units["out"] = units["out"].replace(unit(SERVICE), unit(SERVICE, active, sub))


@pytest.mark.case("B01")
def test_fabric_manager_of_another_build_than_the_driver_is_refused() -> None:
    variables = {**HOST_VARS, "nvidia_fabric_manager_version": "580.65.06"}
    declared = {"driver": Driver().declared(variables), "fabric_manager": FABRIC.declared(variables)}
    (refusal,) = FABRIC.refusals(declared, {})
    assert "580.65.06" in refusal.reason
    assert VERSION in refusal.reason
    same = {"driver": Driver().declared(HOST_VARS), "fabric_manager": FABRIC.declared(HOST_VARS)}
    assert FABRIC.refusals(same, {}) == ()


def test_its_version_defaults_to_the_drivers() -> None:
    declared = FABRIC.declared(HOST_VARS)
    assert declared is not None
    assert declared.version == VERSION


@pytest.mark.parametrize(
    "variables",
    [
        {"nvidia_fabric_manager_enabled": False},
        {"nvidia_fabric_manager_enabled": "false"},
        {"nvidia_driver_version": None},
        {"nvidia_driver_owner": "operator"},
    ],
)
def test_it_is_not_declared_where_it_is_not_wanted(variables: dict[str, Any]) -> None:
    assert FABRIC.declared({**HOST_VARS, **variables}) is None


def test_a_misspelt_choice_is_named() -> None:
    with pytest.raises(InventoryError, match="auto, true, false"):
        FABRIC.declared({**HOST_VARS, "nvidia_fabric_manager_enabled": "maybe"})


@pytest.mark.case("B03")
def test_nothing_is_asked_of_a_node_without_switches() -> None:
    raw = without_switches()
    raw["commands"]["fabric_manager_version"] = {"missing": True}
    raw["commands"]["dpkg_list"]["out"] = ""
    assert compare(raw) == ()


@pytest.mark.case("B03")
def test_a_failing_service_without_switches_is_only_a_warning() -> None:
    raw = without_switches()
    set_unit(raw, "failed", "failed")
    (drift,) = compare(raw)
    assert (drift.severity, drift.disturbance) == ("warning", Disturbance.NONE)


def test_it_is_wanted_where_ports_manage_nvlink5_switches() -> None:
    raw = without_switches()
    raw["nvlink5"]["ports"] = ["mlx5_4"]
    set_unit(raw, "inactive", "dead")
    assert {drift.truth for drift in compare(raw)} == {"service", "fabric"}


def test_a_package_that_says_one_version_while_the_binary_is_another() -> None:
    raw = facts()
    raw["commands"]["fabric_manager_version"] = ran("Fabric Manager version is : 580.173.02\n")
    (drift,) = compare(raw)
    assert (drift.truth, drift.observed, drift.disturbance) == ("binary", "580.173.02", Disturbance.DRAIN)


@pytest.mark.case("B01")
def test_the_service_that_refuses_the_loaded_driver_is_told_by_both_versions() -> None:
    raw = facts()
    set_unit(raw, "failed", "failed")
    raw["commands"]["fabric_manager_log"] = ran(
        "fabric manager NVIDIA GPU driver interface version 580.95.05 don't match with driver version 570.195.03.\n"
    )
    drift = next(drift for drift in compare(raw) if drift.truth == "service")
    assert drift.observed == "refuses driver 570.195.03: it is 580.95.05"
    assert drift.disturbance is Disturbance.REBOOT


@pytest.mark.case("B04")
def test_a_running_service_is_not_enough() -> None:
    raw = facts()
    gpus = raw["nvidia_smi"]["gpus"]
    gpus["out"] = gpus["out"].replace("Completed, Success", "In Progress, N/A", 1)
    (drift,) = compare(raw)
    assert drift.truth == "fabric"
    assert drift.cause == "health"
    assert f"GPU 0 ({BUS_IDS[0]}): state In Progress" in drift.observed


@pytest.mark.case("B04")
def test_a_fabric_that_completed_without_success_is_drift() -> None:
    raw = facts()
    gpus = raw["nvidia_smi"]["gpus"]
    gpus["out"] = gpus["out"].replace("Completed, Success", "Completed, Insufficient Resources", 1)
    assert [drift.truth for drift in compare(raw)] == ["fabric"]


def test_a_fabric_whose_manager_runs_elsewhere_must_complete_too() -> None:
    raw = without_switches()
    gpus = raw["nvidia_smi"]["gpus"]
    gpus["out"] = gpus["out"].replace("N/A, N/A", "In Progress, N/A", 1)
    assert [drift.truth for drift in compare(raw)] == ["fabric"]


def test_a_gpu_of_a_switched_node_outside_the_fabric_is_drift() -> None:
    raw = facts()
    gpus = raw["nvidia_smi"]["gpus"]
    gpus["out"] = gpus["out"].replace("Completed, Success", "N/A, N/A", 1)
    assert [drift.truth for drift in compare(raw)] == ["fabric"]


@pytest.mark.parametrize("lost", [{"timed_out": True}, {"error": "EIO: x"}])
def test_unreadable_hardware_is_unknown_and_not_absent(lost: dict[str, Any]) -> None:
    raw = facts()
    raw["pci"] = lost
    (drift,) = compare(raw)
    assert drift.is_unknown


def test_its_closure_is_its_own() -> None:
    closure = FABRIC.closure(FABRIC.observed(facts()))
    assert closure.packages == {"nvidia-fabricmanager": f"{VERSION}-1"}
    assert closure.variables == {"nvidia_fabric_manager_version": VERSION}
