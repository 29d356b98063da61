"""A module that Secure Boot would reject: drift, told as a person's work, and no restart into it."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.components.driver import Driver
from fleetctl.model.drift import Drift
from fleetctl.parse.signing_keys import read_certificates
from fleetctl.probe import probe
from tests.unit.case_files import read_cases
from tests.unit.healthy_node import HOST_VARS, KERNEL, certificate, ran, secured, sign_module

DRIVER = Driver()
OTHER_SERIAL = "7E:25:9F:B8:63:EE:06:85:07:42:4F:A3:54:5C:AA:31:C1:64:C3:C0"

pytestmark = pytest.mark.case("E07")


def judge(raw: dict[str, Any], **variables: str) -> tuple[tuple[Drift, ...], str]:
    declared, observed = DRIVER.declared({**HOST_VARS, **variables}), DRIVER.observed(raw)
    assert declared is not None
    return DRIVER.compare(declared, observed), DRIVER.blocks_restart(declared, observed)


def test_a_module_signed_by_an_enrolled_key_is_as_declared() -> None:
    assert judge(secured()) == ((), "")


def test_a_module_signed_by_a_key_that_is_not_enrolled_is_told_and_left_to_a_person() -> None:
    raw = secured()
    sign_module(raw, "DKMS module signing key", OTHER_SERIAL)
    (drift,), why_not = judge(raw)
    assert (drift.truth, drift.severity, drift.is_unknown) == ("secure_boot", "error", False)
    assert OTHER_SERIAL in drift.observed
    assert "not enrolled" in drift.observed
    assert "enrol the key" in drift.remedy
    assert "console" in drift.remedy
    assert "by hand" in drift.remedy
    # No run of the role would cure it.
    assert drift.cause == "health"
    assert KERNEL in why_not
    assert "not enrolled" in why_not


def test_an_unsigned_module_is_told() -> None:
    raw = secured()
    module = raw["kernels"][KERNEL]["modules"]["nvidia"]
    module["out"] = module["out"].partition("sig_id:")[0]
    (drift,), why_not = judge(raw)
    assert drift.observed == "not signed, Secure Boot on"
    assert why_not.endswith("not signed")


@pytest.mark.parametrize(
    "enrolled", [ran("", 255), {"missing": True}, {"timed_out": True, "pid": 7}, ran("", 0, "Corrupted signature list")]
)
def test_keys_that_can_not_be_read_are_unknown_and_forbid_the_restart(enrolled: dict[str, Any]) -> None:
    raw = secured()
    raw["commands"]["enrolled_keys"] = enrolled
    (drift,), why_not = judge(raw)
    assert drift.is_unknown
    assert drift.truth == "secure_boot"
    assert "mokutil" in why_not


def test_a_key_of_the_same_name_in_another_certificate_does_not_vouch_for_it() -> None:
    raw = secured()
    raw["commands"]["enrolled_keys"] = ran(certificate(1, OTHER_SERIAL.lower(), "30:24:4C:64:9A:B0"))
    raw["files"]["/proc/keys"]["text"] = raw["files"]["/proc/keys"]["text"].replace(
        "30244c649ab032bbe67beb2fb150bf6786797587", "30244c649ab0"
    )
    (drift,), _ = judge(raw)
    assert "not enrolled" in drift.observed


def test_an_operators_driver_is_not_judged() -> None:
    raw = secured()
    sign_module(raw, "DKMS module signing key", OTHER_SERIAL)
    drifts, why_not = judge(raw, nvidia_driver_owner="operator")
    assert "secure_boot" not in [drift.truth for drift in drifts]
    assert why_not == ""


def test_what_the_probe_keeps_of_certificates_is_what_is_read_in_them() -> None:
    given = read_cases("signing_keys/signing_keys.yaml")[0]["given"]
    kept = probe.Output(probe.CERTIFICATE_LINES, False)
    kept.feed(given["out"].encode())
    text = kept.text()
    assert len(text) < len(given["out"]) / 3
    whole, part = ({"commands": {"keys": ran(out)}} for out in (given["out"], text))
    assert len(read_certificates(whole, "keys", "mokutil").get()) == 2
    assert read_certificates(part, "keys", "mokutil") == read_certificates(whole, "keys", "mokutil")
