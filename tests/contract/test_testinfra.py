"""Verify through real testinfra runs on real sshds: nodes share a start, and each gets the verdict it has earned."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import sshd_service
from sshd_service import Sshd, SshdService

from fleetctl.adapters.ssh import Ssh
from fleetctl.adapters.testinfra import TestinfraVerifier
from fleetctl.model.fleet import Json, Node
from fleetctl.ports import Verdict

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(bool(sshd_service.missing()), reason=sshd_service.missing()),
]

CHECKS = """
import os, time
import pytest

def test_runs_as_root(host):
    assert host.run("id -u").stdout.strip() == "0"

def test_version(host, declared):
    found = host.file("/var/lib/demo").content_string.strip()
    assert found == declared["demo_version"], f"{found} is installed, {declared['demo_version']} is declared"

@pytest.mark.active
def test_disturbs(host):
    assert host.run("touch /var/lib/disturbed").rc == 0
"""
ROLES = {"driver": "demo"}
PASSED = Verdict(passed=3)


@pytest.fixture(scope="module")
def service() -> Iterator[SshdService]:
    with sshd_service.running("n1", "n2", "n3") as service:
        yield service


@pytest.fixture
def installed(service: SshdService) -> SshdService:
    for sshd in service.nodes.values():
        sshd.inside("sh", "-c", "rm -f /var/lib/disturbed; echo 580.95.05 > /var/lib/demo")
    return service


def node_of(sshd: Sshd, variables: Mapping[str, Json] | None = None) -> Node:
    return sshd.node({"demo_version": "580.95.05", **(variables or {})})


def write_checks(roles_path: Path, checks: str) -> None:
    directory = roles_path / "demo" / "verify"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "test_demo.py").write_text(checks)


def verify(
    directory: Path,
    *nodes: Node,
    checks: str = CHECKS,
    overrides: Mapping[str, Json] | None = None,
    passive: bool = False,
    deadline_s: float = 60,
) -> list[Verdict]:
    write_checks(directory, checks)

    async def run() -> list[Verdict]:
        ssh = Ssh(connect_timeout_s=2)
        verifier = TestinfraVerifier(ssh, [directory], ROLES, deadline_s)
        return await asyncio.gather(*(verifier.verify(node, ["driver"], overrides or {}, passive) for node in nodes))

    return asyncio.run(run())


def test_nodes_share_a_run_and_each_gets_its_own_verdict(installed: SshdService, tmp_path: Path) -> None:
    n1, n2, n3 = installed.nodes.values()
    n2.inside("sh", "-c", "echo 570.195.03 > /var/lib/demo")
    dead = replace(installed.failing(n1)["refused"], name="dead")
    verdicts = verify(tmp_path, node_of(n1), node_of(n2), node_of(n3, {"demo_version": "590.48.01"}), dead)
    assert verdicts[0] == PASSED
    assert verdicts[0].is_pass
    assert verdicts[1].passed == 2
    (failure,) = verdicts[1].failures
    assert failure.startswith("demo.test_version: ")
    assert "570.195.03 is installed, 580.95.05 is declared" in failure
    assert "590.48.01 is declared" in verdicts[2].failures[0]
    assert not verdicts[1].is_pass
    assert verdicts[3].passed == 0
    assert verdicts[3].unknown.startswith("unreachable: ssh: refused")
    assert verdicts[3].failures == ()


def test_overrides_outrank_what_is_declared(installed: SshdService, tmp_path: Path) -> None:
    n1 = installed.nodes["n1"]
    n1.inside("sh", "-c", "echo 590.48.01 > /var/lib/demo")
    assert verify(tmp_path, node_of(n1), overrides={"demo_version": "590.48.01"}) == [PASSED]


def test_a_passive_verify_runs_no_active_check(installed: SshdService, tmp_path: Path) -> None:
    n1 = installed.nodes["n1"]
    assert verify(tmp_path, node_of(n1), passive=True) == [Verdict(passed=2)]
    assert n1.inside("sh", "-c", "ls /var/lib").split().count("disturbed") == 0
    assert verify(tmp_path, node_of(n1)) == [PASSED]
    assert n1.inside("sh", "-c", "ls /var/lib").split().count("disturbed") == 1


@pytest.mark.case("M10")
@pytest.mark.parametrize("way", ["timeout", "host_key unknown", "host_key changed", "auth", "shell", "lost"])
def test_a_node_that_ssh_does_not_reach_is_unknown_and_no_check_is_run(
    installed: SshdService, tmp_path: Path, way: str
) -> None:
    """Never a failed check, least of all "package not installed"."""
    (verdict,) = verify(tmp_path, installed.failing(installed.nodes["n1"])[way])
    assert verdict.unknown.startswith(f"unreachable: ssh: {way.split()[0]}")
    assert (verdict.passed, verdict.failures, verdict.is_pass) == (0, (), False)


@pytest.mark.parametrize(
    ("checks", "unknown"),
    [
        ("", "no check was collected"),
        ("import pytest\n@pytest.mark.active\ndef test_a(host): pass\n", "no check was collected"),
        ("import no_such_module\n", "no_such_module"),
        ("def test_a(host:\n", "SyntaxError"),
        ("def test_a(host): pass\ndef test_b(host): import os; os._exit(3)\n", "demo.test_b"),
    ],
)
def test_what_was_not_checked_is_not_passed(installed: SshdService, tmp_path: Path, checks: str, unknown: str) -> None:
    (verdict,) = verify(tmp_path, node_of(installed.nodes["n1"]), checks=checks, passive=True)
    assert unknown in verdict.unknown
    assert not verdict.is_pass


def test_a_skipped_check_is_named_and_is_not_a_pass(installed: SshdService, tmp_path: Path) -> None:
    checks = CHECKS + "\ndef test_fabric(host):\n    pytest.skip('no nv-fabricmanager here')\n"
    (verdict,) = verify(tmp_path, node_of(installed.nodes["n1"]), checks=checks)
    assert verdict.passed == 3
    (skipped,) = verdict.skipped
    assert skipped.startswith("demo.test_fabric: ")
    assert "no nv-fabricmanager here" in skipped
    assert not verdict.is_pass


def test_an_error_in_a_fixture_is_a_failure(installed: SshdService, tmp_path: Path) -> None:
    checks = (
        CHECKS + "\n@pytest.fixture\ndef broken(): raise ValueError('no such thing')\ndef test_x(host, broken): pass\n"
    )
    (verdict,) = verify(tmp_path, node_of(installed.nodes["n1"]), checks=checks)
    assert "no such thing" in verdict.failures[0]


def test_a_component_without_checks_never_passes(installed: SshdService, tmp_path: Path) -> None:
    async def run() -> Verdict:
        return await TestinfraVerifier(Ssh(), [tmp_path], ROLES).verify(
            node_of(installed.nodes["n1"]), ["driver"], {}, passive=False
        )

    assert asyncio.run(run()).unknown == "there is no check for driver"


HANGING = CHECKS + "\ndef test_hangs(host, declared):\n    assert host.run('sleep %s', declared['sleep_s']).rc == 0\n"


def test_a_check_that_hangs_holds_up_no_other_node_and_ends_at_the_deadline(
    installed: SshdService, tmp_path: Path
) -> None:
    n1, n2, _ = installed.nodes.values()
    started = time.monotonic()
    write_checks(tmp_path, HANGING)

    async def run() -> tuple[Verdict, Verdict]:
        verifier = TestinfraVerifier(Ssh(), [tmp_path], ROLES, deadline_s=6)
        hanging = asyncio.create_task(verifier.verify(node_of(n1, {"sleep_s": "60"}), ["driver"], {}, passive=False))
        quick = await verifier.verify(node_of(n2, {"sleep_s": "0"}), ["driver"], {}, passive=False)
        assert not hanging.done()
        return quick, await hanging

    quick, hung = asyncio.run(run())
    assert quick == Verdict(passed=4)
    assert hung.passed == 3
    assert "did not end within 6 s" in hung.unknown
    assert "demo.test_hangs" in hung.unknown
    assert time.monotonic() - started < 14


def test_cancelling_one_node_ends_its_checks_alone(installed: SshdService, tmp_path: Path) -> None:
    n1, n2, _ = installed.nodes.values()
    write_checks(tmp_path, HANGING + "    assert host.run('touch /var/lib/disturbed').rc == 0\n")

    async def run() -> Verdict:
        verifier = TestinfraVerifier(Ssh(), [tmp_path], ROLES, deadline_s=30)
        first = asyncio.create_task(verifier.verify(node_of(n1, {"sleep_s": "600"}), ["driver"], {}, passive=True))
        second = asyncio.create_task(verifier.verify(node_of(n2, {"sleep_s": "3"}), ["driver"], {}, passive=True))
        await asyncio.sleep(2)
        first.cancel()
        return await second

    assert asyncio.run(run()) == Verdict(passed=3)


def test_a_node_lost_in_the_middle_of_its_checks_is_unknown(
    service: SshdService, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sshd = service.add("fading")
    service.nodes.pop("fading")
    request.addfinalizer(sshd.stop)
    checks = "def test_a(host): pass\ndef test_b(host): host.run('systemctl reboot; sleep 5')\n"
    (verdict,) = verify(tmp_path, node_of(sshd), checks=checks)
    assert verdict.unknown.startswith("unreachable: ssh: ")
    assert not verdict.is_pass


def test_a_failure_of_hardware_keeps_its_tag_in_front(installed: SshdService, tmp_path: Path) -> None:
    checks = "def test_count(host): assert False, 'hardware: 7 of 8 GPUs'\n"
    (verdict,) = verify(tmp_path, node_of(installed.nodes["n1"]), checks=checks)
    assert verdict.failures == ("hardware: demo.test_count: 7 of 8 GPUs",)


def test_exit_code_255_of_a_command_is_a_failed_check_not_a_lost_node(installed: SshdService, tmp_path: Path) -> None:
    """nvidia-smi ends with 255 for "other error"; so does ssh for its own."""
    (verdict,) = verify(tmp_path, node_of(installed.nodes["n1"]), checks="def test_a(host): host.run('exit 255')\n")
    assert verdict.unknown == ""
    assert len(verdict.failures) == 1


def test_checks_learn_no_secret(installed: SshdService, tmp_path: Path) -> None:
    canary = "canary-4711-bird"
    checks = (
        "import os\ndef test_a(host):\n    text = open(os.environ['FLEETCTL_DECLARED']).read()\n"
        f"    assert '{canary}' not in text\n    assert 'demo_version' in text\n"
        f"def test_b(host):\n    assert False, 'login with {canary} failed'\n"
    )
    secret = {"ansible_become_password": canary, "bmc_password": canary}
    (verdict,) = verify(tmp_path, node_of(installed.nodes["n1"], secret), checks=checks)
    assert verdict.passed == 1
    assert "login with ******** failed" in verdict.failures[0]
    assert canary not in json.dumps(verdict.failures)


def test_the_settings_of_a_project_around_it_do_not_count(
    installed: SshdService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -k nothing_at_all\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('a stranger')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    assert verify(tmp_path, node_of(installed.nodes["n1"])) == [PASSED]
