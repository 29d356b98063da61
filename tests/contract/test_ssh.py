"""SSH, probe, lease and restart against real sshds (sshd_service.py), as an unprivileged user with sudo."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import sshd_service
from sshd_service import NOISY, Sshd, SshdService

from fleetctl.adapters.nodes import SshNodes
from fleetctl.adapters.ssh import Completed, Failure, Ssh
from fleetctl.model.node_facts import Lease

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(bool(sshd_service.missing()), reason=sshd_service.missing()),
]

T = TypeVar("T")
LEASE = Lease("r-20261130-a7", "head-1/4711", 1, "c0ffee")


@pytest.fixture(scope="module")
def service() -> Iterator[SshdService]:
    with sshd_service.running("n1", "bastion") as service:
        yield service


@pytest.fixture
def n1(service: SshdService) -> Sshd:
    return service.nodes["n1"]


def with_ssh(act: Callable[[Ssh], Awaitable[T]], **limits: float) -> T:
    async def run() -> T:
        ssh = Ssh(**({"connect_timeout_s": 2.0} | limits))  # type: ignore[arg-type]
        try:
            return await act(ssh)
        finally:
            await ssh.close()

    return asyncio.run(run())


def attempt(node: object, *argv: str, **options: object) -> Completed | Failure:
    return with_ssh(lambda ssh: ssh.attempt(node, argv, **options))  # type: ignore[arg-type]


def completed(outcome: Completed | Failure) -> Completed:
    assert isinstance(outcome, Completed), outcome
    return outcome


def failed(outcome: Completed | Failure) -> Failure:
    assert isinstance(outcome, Failure), outcome
    return outcome


def test_arguments_reach_the_command_as_they_are(n1: Sshd) -> None:
    words = ("a b", "$(id)", "`id`", "';id;'", '"', "*", "", "ü")
    printed = completed(attempt(n1.node(), "printf", "<%s>", *words)).stdout.decode()
    assert printed == "".join(f"<{word}>" for word in words)


def test_exit_code_both_outputs_and_input_come_through(n1: Sshd) -> None:
    outcome = completed(attempt(n1.node(), "sh", "-c", "cat; echo told >&2; exit 7", stdin=b"fed"))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (7, b"fed", b"told\n")
    assert outcome.last_words == "told"


@pytest.mark.parametrize("way", ["refused", "timeout", "host_key unknown", "host_key changed", "auth", "shell", "lost"])
def test_every_failure_has_its_class_and_one_line(service: SshdService, n1: Sshd, way: str) -> None:
    failure = failed(attempt(service.failing(n1)[way], "true"))
    assert failure.kind == way.split()[0]
    assert not failure.begun
    assert "\n" not in str(failure)
    assert str(failure).startswith(f"ssh: {failure.kind}: ")


def test_a_name_without_an_address_is_refused(n1: Sshd) -> None:
    assert failed(attempt(n1.node(host="no-such-host.invalid"), "true")).kind == "refused"


def test_a_key_that_cannot_be_read_is_an_auth_failure_that_names_it(n1: Sshd, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("not a key\n")
    failure = failed(attempt(n1.node(identity_file=str(broken)), "true"))
    assert failure.kind == "auth"
    assert str(broken) in failure.detail


def test_a_connection_that_breaks_in_the_middle_is_lost_and_known_to_have_begun(n1: Sshd) -> None:
    failure = failed(attempt(n1.node(), "sh", "-c", "kill -9 $PPID; sleep 5"))
    assert (failure.kind, failure.begun) == ("lost", True)


def test_a_command_past_its_deadline_is_a_timeout(n1: Sshd) -> None:
    started = time.monotonic()
    failure = failed(attempt(n1.node(), "sleep", "30", deadline_s=0.5))
    assert (failure.kind, failure.begun) == ("timeout", True)
    assert time.monotonic() - started < 5


def test_output_is_bounded(n1: Sshd) -> None:
    failure = failed(attempt(n1.node(), "yes", stdout_limit_bytes=100_000))
    assert (failure.kind, failure.begun) == ("shell", True)
    assert "100000 bytes" in failure.detail


def test_what_the_login_shell_says_is_not_the_commands_output(n1: Sshd) -> None:
    assert completed(attempt(n1.node(user=NOISY), "echo", "mine")).stdout == b"mine\n"


def test_user_known_hosts_and_jump_host_come_from_the_users_configuration(
    service: SshdService, n1: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bastion = service.nodes["bastion"]
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(
        f"Host gpu001\n  HostName {n1.address}\n  Port {n1.port}\n  User ops\n  ProxyJump hop\n"
        f"Host hop\n  HostName {bastion.address}\n  Port {bastion.port}\n  User ops\n"
        f"Host *\n  IdentityFile {service.identity}\n  UserKnownHostsFile {service.known_hosts}\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    bare = n1.node(host="gpu001", port=22, user=None, identity_file=None, known_hosts=None)
    passed_through = (bastion.directory / "sshd.log").read_text().count("Accepted publickey")
    assert completed(attempt(bare, "whoami")).stdout == b"ops\n"
    assert (bastion.directory / "sshd.log").read_text().count("Accepted publickey") == passed_through + 1


def test_a_configuration_that_waives_host_keys_is_not_obeyed(
    n1: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host *\n  UserKnownHostsFile none\n  StrictHostKeyChecking no\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert failed(attempt(n1.node(known_hosts=None), "true")).kind == "host_key"


def test_one_connection_to_a_jump_host_carries_all(
    service: SshdService, n1: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    bastion = service.nodes["bastion"]
    through = n1.node(proxy_jump=f"ops@{bastion.address}:{bastion.port}")
    log = bastion.directory / "sshd.log"
    before = log.read_text().count("Accepted publickey")

    async def ten(ssh: Ssh) -> list[Completed | Failure]:
        return await asyncio.gather(*(ssh.attempt(through, ["true"]) for _ in range(10)))

    # The jump host's own login takes its key from the agent or the user's configuration, as with ssh.
    with service.agent() as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        assert [completed(outcome).returncode for outcome in with_ssh(ten)] == [0] * 10
    assert log.read_text().count("Accepted publickey") == before + 1


def test_connections_at_once_are_limited(n1: Sshd) -> None:
    async def four(ssh: Ssh) -> float:
        started = time.monotonic()
        await asyncio.gather(*(ssh.attempt(n1.node(), ["sleep", "0.4"]) for _ in range(4)))
        return time.monotonic() - started

    assert with_ssh(four, connections_at_once=2) > 0.8


# --- nodes


def with_nodes(act: Callable[[SshNodes], Awaitable[T]], **options: object) -> T:
    return with_ssh(lambda ssh: act(SshNodes(ssh, **options)))  # type: ignore[arg-type]


def test_a_probe_brings_raw_facts_of_schema_1_read_as_root(n1: Sshd) -> None:
    facts = with_nodes(lambda nodes: nodes.probe(n1.node())).get()
    assert (facts["schema"], facts["uid"]) == (1, 0)


def test_a_probe_without_sudo_is_unknown_and_says_why(n1: Sshd) -> None:
    sudoers = n1.directory / "sudoers"
    lines = sudoers.read_text()
    sudoers.write_text(lines.replace("ops ALL", "nobody ALL"))
    try:
        reading = with_nodes(lambda nodes: nodes.probe(n1.node()))
    finally:
        sudoers.write_text(lines)
    assert reading.kind == "unknown"
    assert "password is required" in reading.reason


def test_a_probe_that_hangs_is_given_up(n1: Sshd) -> None:
    reading = with_nodes(lambda nodes: nodes.probe(n1.node()), probe_deadline_s=0.05)
    assert reading.kind == "unknown"
    assert "timeout" in reading.reason


def test_the_boot_id_is_the_kernels(n1: Sshd) -> None:
    told = with_nodes(lambda nodes: nodes.boot_id(n1.node())).get()
    assert told == (n1.directory / "boot_id").read_text().strip()


@pytest.mark.case("F06")
@pytest.mark.parametrize("text", ["", "sudo: a password is required\n", "kex_exchange_identification\n", "6c01ee30\n"])
def test_a_boot_id_that_is_no_uuid_is_unknown(n1: Sshd, text: str) -> None:
    """Failure text or an empty file must never count as a boot id, least of all as a new one."""
    boot_id = n1.directory / "boot_id"
    before = boot_id.read_text()
    boot_id.write_text(text)
    try:
        assert with_nodes(lambda nodes: nodes.boot_id(n1.node())).kind == "unknown"
    finally:
        boot_id.write_text(before)


@pytest.mark.case("F06")
def test_noise_of_a_login_shell_is_no_part_of_the_boot_id(n1: Sshd) -> None:
    told = with_nodes(lambda nodes: nodes.boot_id(n1.node(user=NOISY))).get()
    assert uuid.UUID(told)


def test_a_lease_is_taken_once_raised_by_its_own_rollout_and_refused_to_others(n1: Sshd) -> None:
    raised = Lease(LEASE.rollout, "head-2/99", 2, LEASE.nonce)
    other = Lease("r-other", "head-9/1", 7, "beef")

    async def act(nodes: SshNodes) -> None:
        node = n1.node()
        assert (await nodes.take_lease(node, LEASE)).kind == "ok"
        assert (await nodes.take_lease(node, LEASE)).kind == "ok"
        refused = await nodes.take_lease(node, other)
        assert refused.kind == "foreign"
        assert LEASE.rollout in refused.reason
        assert LEASE.controller in refused.reason
        assert (await nodes.take_lease(node, raised)).kind == "ok"
        assert (await nodes.take_lease(node, LEASE)).kind == "foreign"
        assert (await nodes.restart(node, LEASE)).kind == "foreign"
        assert (await nodes.release_lease(node, LEASE)).kind == "foreign"
        assert n1.orders == []
        assert (await nodes.release_lease(node, raised)).kind == "ok"
        assert (await nodes.release_lease(node, raised)).kind == "ok"
        assert (await nodes.take_lease(node, LEASE)).kind == "ok"
        assert (await nodes.release_lease(node, raised)).kind == "ok", "what its dead controller left"
        assert (await nodes.take_lease(node, other)).kind == "ok"

    with_nodes(act)


def test_an_unreachable_node_answers_unknown_to_everything(service: SshdService, n1: Sshd) -> None:
    dead = service.failing(n1)["refused"]

    async def act(nodes: SshNodes) -> None:
        assert (await nodes.probe(dead)).kind == "unknown"
        assert (await nodes.boot_id(dead)).kind == "unknown"
        assert (await nodes.take_lease(dead, LEASE)).kind == "unknown"
        assert (await nodes.release_lease(dead, LEASE)).kind == "unknown"
        assert (await nodes.restart(dead, LEASE)).kind == "unknown"

    with_nodes(act)


@pytest.mark.case("F05")
@pytest.mark.parametrize("delay_s", [0.0, 0.5])
def test_an_order_to_restart_is_ok_whether_or_not_the_connection_survives_it(
    service: SshdService, delay_s: float
) -> None:
    """Ok says only that the order was given; the boot id is what must change."""
    sshd = service.add(f"restarted{delay_s:g}".replace(".", ""), reboot_delay_s=delay_s)

    async def act(nodes: SshNodes) -> None:
        node = sshd.node()
        before = (await nodes.boot_id(node)).get()
        assert (await nodes.take_lease(node, LEASE)).kind == "ok"
        assert (await nodes.restart(node, LEASE)).kind == "ok"
        assert sshd.orders == ["reboot"]
        await asyncio.to_thread(sshd.await_down)
        assert (await nodes.boot_id(node)).kind == "unknown"
        sshd.start()
        assert (await nodes.boot_id(node)).get() != before

    with_nodes(act)


def test_without_a_lease_nothing_restarts(service: SshdService) -> None:
    sshd = service.add("unleased")
    answer = with_nodes(lambda nodes: nodes.restart(sshd.node(), LEASE))
    assert answer.kind == "unknown"  # the program that guards the order is not there at all
    assert sshd.orders == []


def test_a_power_cycle_runs_the_sites_command_for_the_node(n1: Sshd, tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo $FLEETCTL_NODE > {tmp_path}/cycled"]
    answer = with_nodes(lambda nodes: nodes.power_cycle(n1.node(), command))
    assert answer.kind == "ok"
    assert (tmp_path / "cycled").read_text() == "n1\n"
    failing = with_nodes(lambda nodes: nodes.power_cycle(n1.node(), ["sh", "-c", "echo no such chassis >&2; exit 3"]))
    assert failing.kind == "unknown"
    assert "no such chassis" in failing.reason
