"""Every case of tests/cases: what a tool printed, and what is read in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from fleetctl.model.reading import Reading
from fleetctl.parse import (
    boot,
    dkms,
    dpkg,
    fabric_manager,
    kernel_log,
    modinfo,
    node,
    nvidia_smi,
    proc_version,
    repositories,
    rpm,
    signing_keys,
    systemd,
)
from tests.unit.case_files import CASES, params, read_cases

KERNEL = "6.8.0-60-generic"
FOLDERS = ("boot", "dkms", "dpkg", "fabric_manager", "kernel_log", "modinfo", "node", "nvidia_smi", "proc_version")
FOLDERS += ("repositories", "rpm", "signing_keys", "systemd")

Given = Mapping[str, Any]


def _dpkg(given: Given) -> dict[str, Any]:
    return {
        "commands": {
            "dpkg_list": given["list"],
            "apt_holds": given.get("holds", {"rc": 0, "out": "", "err": ""}),
            "dpkg_audit": given.get("audit", {"rc": 0, "out": "", "err": ""}),
        }
    }


def _rpm(given: Given) -> dict[str, Any]:
    return {
        "commands": {"rpm_list": given["list"]},
        "files": {
            "/etc/dnf/plugins/versionlock.list": given.get("locks", {"absent": True}),
            "/etc/dnf/versionlock.toml": given.get("toml", {"absent": True}),
        },
    }


def _keys(given: Given) -> Any:
    """`mok`, `db`: what mokutil prints; `keys`: /proc/keys; `modinfo`: of the module; Secure Boot is on."""
    raw = {
        "secure_boot": {"efi": True, "hex": given.get("secure_boot", "0600000001")},
        "commands": {"enrolled_keys": given.get("mok"), "firmware_keys": given.get("db")},
        "files": {"/proc/keys": given.get("keys")},
    }
    return signing_keys.read_signature(raw, modinfo.read_module(given["modinfo"], "nvidia", KERNEL))


def _unit(given: Given) -> Any:
    ran = {"rc": given.get("rc", 0), "out": given["out"], "err": given.get("err", "")}
    return systemd.read_unit({"commands": {"units": ran}}, given["unit"])


READERS: dict[str, Callable[[Given], Any]] = {
    "banner": lambda given: proc_version.read_banner(given["text"]),
    "loaded": proc_version.read_loaded,
    "module": lambda given: modinfo.read_module(given, "nvidia", KERNEL),
    "dkms": lambda given: dkms.read_dkms({"commands": {"dkms_status": given}}),
    "dpkg_packages": lambda given: dpkg.read_packages(_dpkg(given)),
    "dpkg_broken": lambda given: dpkg.read_broken(_dpkg(given)),
    "rpm_packages": lambda given: rpm.read_packages(_rpm(given)),
    "certificates": lambda given: signing_keys.read_certificates({"commands": {"mok": given}}, "mok", "mokutil"),
    "signature": _keys,
    "unit": _unit,
    "smi": lambda given: nvidia_smi.read_smi({"nvidia_smi": given}),
    "apps": lambda given: nvidia_smi.read_apps({"nvidia_smi": {"apps": given}}),
    "number": lambda given: nvidia_smi.read_number(given["text"]),
    "fabric_version": lambda given: fabric_manager.read_version({"commands": {"fabric_manager_version": given}}),
    "fabric_log": lambda given: fabric_manager.read_log_text(given["text"]),
    "kernel_log": lambda given: kernel_log.read_log_text(given["text"]),
    "kernel_log_of": kernel_log.read_kernel_log,
    "next_boot": boot.read_next_boot,
    "boot_id": node.read_boot_id,
    "identity": node.read_identity,
    "work": node.read_work_processes,
    "package_work": node.read_package_processes,
    "lease": node.read_lease,
    "kept": lambda given: repositories.read_kept(given).map(
        lambda roles: {role: sorted(packages) for role, packages in roles.items()}
    ),
}


def plain(found: Any) -> Any:
    """As the case files write it: a reading is its value, "not applicable", or {"unknown": why}."""
    if isinstance(found, Reading):
        if found.kind == "unknown":
            return {"unknown": found.reason}
        return "not applicable" if found.kind == "not_applicable" else plain(found.value)
    if is_dataclass(found) and not isinstance(found, type):
        names = [field.name for field in fields(found)]
        names += [name for name in dir(type(found)) if name.startswith("is_")]
        return {name: plain(getattr(found, name)) for name in names}
    if isinstance(found, (tuple, list)):
        return [plain(each) for each in found]
    return found


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            yield f"{where}: expected {expected!r}, found {found!r}"
            return
        for key, value in expected.items():
            if key == "unknown" and "unknown" in found:
                if value not in found["unknown"]:
                    yield f"{where}: {value!r} is not in {found['unknown']!r}"
            elif key not in found:
                yield f"{where}: no {key!r} in {found!r}"
            else:
                yield from differences(value, found[key], f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for position, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{where}[{position}]")
    elif expected != found or type(expected) is not type(found):
        yield f"{where}: expected {expected!r}, found {found!r}"


def cases() -> Iterator[Any]:
    for folder in FOLDERS:
        for path in sorted((CASES / folder).glob("*.yaml")):
            yield from params(read_cases(f"{folder}/{path.name}"), lambda case: case["case"], f"{folder}:")


@pytest.mark.parametrize("case", list(cases()))
def test_case_is_read_as_expected(case: dict[str, Any]) -> None:
    assert set(case) <= {"id", "case", "reads", "given", "expect"}, "a misspelt key would never be checked"
    assert not list(differences(case["expect"], plain(READERS[case["reads"]](case["given"]))))


def test_every_folder_of_cases_has_cases() -> None:
    for folder in FOLDERS:
        assert list((CASES / folder).glob("*.yaml")), folder


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"unknown": "why"}, "580.95.05"),
        ("not applicable", {"unknown": "x"}),
        ([], [1]),
        ({"a": 1}, {}),
        ("580", {"unknown": "580"}),
        (True, 1),
    ],
)
def test_the_comparison_itself_can_fail(expected: Any, found: Any) -> None:
    assert list(differences(expected, found))
