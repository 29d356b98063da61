"""Slurm's commands on a head node: a real sshd, an unprivileged user with sudo, one connection (sshd_service.py)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import slurm_service
import sshd_service
from slurm_service import SlurmService
from sshd_service import NOISY, USER, Sshd, SshdService

from fleetctl.adapters.command import LocalCommand, SshCommand
from fleetctl.adapters.slurm import Slurm
from fleetctl.adapters.ssh import Completed, Ssh
from fleetctl.errors import SchedulerError
from fleetctl.model.mark import Mark
from fleetctl.model.reading import Reading
from fleetctl.ports import Answer

WHY_NOT = (
    slurm_service.missing()
    or sshd_service.missing()
    or ("needs Slurm on this machine: the sshd of this test runs here" if slurm_service.VIA else "")
)
pytestmark = [pytest.mark.contract, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

T = TypeVar("T")
ODD = Mark("r-20261130-a7", "9f3c", 'it\'s $(id) `id` ; "x" > /dev/null & key=value\nnext')


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmService]:
    with slurm_service.running(12) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def service() -> Iterator[SshdService]:
    with sshd_service.running("head") as service:
        yield service


@pytest.fixture
def head(service: SshdService) -> Sshd:
    return service.nodes["head"]


def with_head(head: Sshd, act: Callable[[SshCommand], Awaitable[T]], user: str = USER) -> T:
    async def run() -> T:
        command = SshCommand(head.node(user=user).connection, Ssh(connect_timeout_s=2))
        try:
            return await act(command)
        finally:
            await command.close()

    return asyncio.run(run())


def slurm_on(command: SshCommand, cluster: SlurmService) -> Slurm:
    return Slurm(command, privilege=("sudo", "-n", "env", f"SLURM_CONF={cluster.conf}"), deadline_s=10)


def refused(head: Sshd) -> int:
    return (head.directory / "sshd.log").read_text().count("no more sessions")


def logins(head: Sshd) -> int:
    return (head.directory / "sshd.log").read_text().count("Accepted publickey")


def test_a_node_is_drained_and_given_back_with_its_reason_intact(head: Sshd, cluster: SlurmService) -> None:
    async def act(command: SshCommand) -> tuple[Answer, str, Answer]:
        slurm, node = slurm_on(command, cluster), cluster.names[0]
        await slurm.check_access()
        drained = await slurm.drain(node, ODD)
        return drained, (await slurm.work(node)).get().reason, await slurm.undrain(node, ODD)

    assert with_head(head, act) == (Answer("ok"), str(ODD), Answer("ok"))


def test_one_login_serves_all_commands_even_many_at_once(head: Sshd, cluster: SlurmService) -> None:
    before = logins(head)

    async def act(command: SshCommand) -> list[Answer]:
        slurm = slurm_on(command, cluster)
        return await asyncio.gather(*(slurm.drain(node, ODD) for node in cluster.names))

    assert with_head(head, act) == [Answer("ok")] * len(cluster.names)
    assert logins(head) == before + 1
    cluster.clear(*cluster.names)


def test_more_commands_than_sshd_allows_sessions_all_end(head: Sshd) -> None:
    async def act() -> list[Reading[Completed]]:
        command = SshCommand(head.node().connection, Ssh(connect_timeout_s=2), at_once=60)
        try:
            return list(await asyncio.gather(*(command.run(["true"]) for _ in range(60))))
        finally:
            await command.close()

    refused_before = refused(head)
    assert all(done.is_known for done in asyncio.run(act()))
    assert refused(head) > refused_before, "sshd did refuse some"


def test_a_broken_connection_is_unknown_once_and_then_made_again(head: Sshd) -> None:
    async def act(command: SshCommand) -> tuple[str, str, str]:
        kinds = [(await command.run(["true"])).kind]
        asyncio.get_running_loop().call_later(0.3, head.stop)
        kinds.append((await command.run(["sleep", "5"])).kind)
        head.start()
        kinds.append((await command.run(["true"])).kind)
        return kinds[0], kinds[1], kinds[2]

    assert with_head(head, act) == ("value", "unknown", "value")


def test_a_command_past_its_deadline_is_unknown_here_and_there(head: Sshd, tmp_path: Path) -> None:
    assert "did not end" in with_head(head, lambda command: command.run(["sleep", "5"], 0.3)).reason
    # here it is ended, with its children
    script = f"sleep 987.5 & echo $! > {tmp_path}/child; wait"
    assert "did not end" in asyncio.run(LocalCommand().run(["sh", "-c", script], 0.5)).reason
    child = subprocess.run(["cat", f"{tmp_path}/child"], capture_output=True, text=True, check=True).stdout.strip()
    state = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True, check=False).stdout
    assert state.strip() in ("", "Z"), "the child is gone"


def test_what_the_login_shell_says_is_not_taken_for_slurms_answer(head: Sshd, cluster: SlurmService) -> None:
    async def act(command: SshCommand) -> int:
        return len((await slurm_on(command, cluster).snapshot()).get())

    assert with_head(head, act, user=NOISY) == len(cluster.names)


@pytest.mark.parametrize(
    "kind", ["refused", "timeout", "host_key unknown", "host_key changed", "auth", "shell", "lost"]
)
def test_a_head_node_that_cannot_be_reached_is_one_clear_error(service: SshdService, head: Sshd, kind: str) -> None:
    target = service.failing(head)[kind]

    async def act() -> str:
        command = SshCommand(target.connection, Ssh(connect_timeout_s=1))
        try:
            assert (await Slurm(command).snapshot()).kind == "unknown"
            with pytest.raises(SchedulerError) as refused:
                await Slurm(command).check_access()
            return str(refused.value)
        finally:
            await command.close()

    message = asyncio.run(act())
    assert f"ssh: {kind.split()[0]}" in message
    assert target.connection.host in message
