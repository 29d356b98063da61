"""No reader raises, whatever it is given, and none makes a value out of a fact that could not be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.components import registry
from fleetctl.parse import (
    boot,
    dkms,
    dpkg,
    fabric_manager,
    host,
    kernel_log,
    kernels,
    node,
    nvidia_smi,
    pci,
    proc_version,
    rpm,
    systemd,
)
from fleetctl.parse.nvidia_smi_xml import read_xml
from tests.unit.healthy_node import HOST_VARS, facts, secured

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)

READERS: tuple[Callable[[Any], Any], ...] = (
    boot.read_next_boot,
    dkms.read_dkms,
    dpkg.read_audit,
    dpkg.read_broken,
    dpkg.read_holds,
    dpkg.read_packages,
    fabric_manager.read_log,
    fabric_manager.read_version,
    host.read_family,
    host.read_secure_boot,
    lambda raw: host.read_automatic_upgrades(raw, ("nvidia-driver",)),
    kernel_log.read_kernel_log,
    lambda raw: kernels.read_kernel(raw, "6.8.0-60-generic"),
    lambda raw: kernels.kernel_to_boot(raw, boot.read_next_boot(raw)),
    node.read_node,
    nvidia_smi.read_smi,
    pci.read_pci,
    pci.read_has_nvlink_fabric,
    proc_version.read_loaded,
    rpm.read_locks,
    rpm.read_packages,
    systemd.read_units,
)


def paths_of(found: Any, where: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [where] if where else []
    children = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in children:
        paths += paths_of(value, (*where, key))
    return paths


PATHS = paths_of(secured())


def replaced(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    raw = secured()
    where: Any = raw
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    return raw


def read_everything(raw: Any) -> None:
    for read in READERS:
        read(raw)
    for component in registry.load().values():
        declared, observed = component.declared(HOST_VARS), component.observed(raw)
        component.compare(declared, observed)
        component.refusals({component.name: declared}, {component.name: observed})
        component.closure(observed)
        component.blocks_restart(declared, observed)
        component.summary(observed)


@given(json_values)
def test_no_reader_raises_on_any_json(raw: Any) -> None:
    read_everything(raw)


@settings(max_examples=400)
@given(st.sampled_from(PATHS), json_values)
def test_no_reader_raises_where_one_fact_has_another_shape(path: tuple[Any, ...], value: Any) -> None:
    read_everything(replaced(path, value))


@settings(max_examples=200)
@given(
    st.sampled_from(PATHS), st.sampled_from(["", "\0", "N/A", "\n", "nan", "9" * 5000, "'\"{}>\\", "\ud800", "[", "-"])
)
def test_no_reader_raises_on_strange_text(path: tuple[Any, ...], text: str) -> None:
    read_everything(replaced(path, text))


@pytest.mark.parametrize(
    "read",
    [
        proc_version.read_banner,
        dkms.read_dkms_text,
        kernel_log.read_log_text,
        fabric_manager.read_log_text,
        nvidia_smi.read_csv,
        nvidia_smi.read_failure,
        nvidia_smi.read_field,
        nvidia_smi.read_number,
        nvidia_smi.short_bus_id,
        systemd.read_units_text,
        read_xml,
        node.boot_id_of,
    ],
)
@given(text=st.text())
def test_no_text_reader_raises_on_any_text(read: Callable[[str], Any], text: str) -> None:
    read(text)


# Each fact of which the driver's or fabric manager's truth depends: lost, it must show as unknown, not as fine.
LOST: dict[str, tuple[Any, ...]] = {
    "packages": ("commands", "dpkg_list"),
    "module on disk": ("kernels", "6.8.0-60-generic"),
    "loaded module": ("files", "/proc/driver/nvidia/version"),
    "next boot": ("boot",),
    "initramfs": ("initramfs", "6.8.0-60-generic"),
    "dkms": ("commands", "dkms_status"),
    "nvidia-smi": ("nvidia_smi",),
    "PCI bus": ("pci",),
    "kernel log": ("commands", "kernel_log"),
    "units": ("commands", "units"),
    "Secure Boot": ("secure_boot",),
    "enrolled keys": ("commands", "enrolled_keys"),
    "fabric manager's binary": ("commands", "fabric_manager_version"),
}


@pytest.mark.parametrize("lost", [{"timed_out": True}, {"error": "EIO: Input/output error"}, None, []])
@pytest.mark.parametrize("name", LOST)
def test_a_fact_that_was_not_read_never_passes_for_equal(name: str, lost: Any) -> None:
    raw = replaced(LOST[name], lost)
    if name == "kernel log":
        raw["commands"]["dmesg"] = lost
    found = [
        drift
        for component in registry.load().values()
        for drift in component.compare(component.declared(HOST_VARS), component.observed(raw))
    ]
    unread = [drift for drift in found if drift.is_unknown or drift.truth == "response"]
    assert unread, [f"{drift.truth}: {drift.observed}" for drift in found]
    assert all(drift.severity == "error" for drift in unread)


@pytest.mark.parametrize("healthy", [facts, secured])
def test_the_healthy_node_has_no_drift_at_all(healthy: Callable[[], dict[str, Any]]) -> None:
    raw = json.loads(json.dumps(healthy()))
    for component in registry.load().values():
        assert component.compare(component.declared(HOST_VARS), component.observed(raw)) == ()
