"""Changes through real ansible-runner runs on real sshds: sharing, judging each node, the lease, lost controllers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import pytest
import sshd_service
from sshd_service import ROOT, Sshd, SshdService

from fleetctl.adapters.ansible_changer import AnsibleChanger
from fleetctl.adapters.ansible_log import log_path
from fleetctl.adapters.ansible_run import AnsibleSettings
from fleetctl.adapters.nodes import SshNodes
from fleetctl.adapters.quiet import end_orphan, orphans, processes_of
from fleetctl.adapters.ssh import Ssh
from fleetctl.model.fleet import Json, Node
from fleetctl.model.node_facts import Lease
from fleetctl.model.rollout import Closure, Course
from fleetctl.ports import Applied, Change

pytestmark = [
    pytest.mark.contract,
    pytest.mark.skipif(bool(sshd_service.missing()), reason=sshd_service.missing()),
]

T = TypeVar("T")
CONTENT = Path(__file__).with_name("ansible_content")
LEASE = Lease("r-20261130-a7", "head-1/4711", 1, "c0ffee")
RAISED = Lease(LEASE.rollout, "head-2/99", 2, LEASE.nonce)
CHANGE = Change(("driver",), Course.FORWARD, {"demo_version": "580.95.05"})


@pytest.fixture(scope="module")
def service() -> Iterator[SshdService]:
    with sshd_service.running("n1", "n2", "n3", "n4", "n5") as service:
        yield service


@pytest.fixture
def leased(service: SshdService) -> SshdService:
    """Every node fresh and leased to us."""
    for sshd in service.nodes.values():
        sshd.inside("sh", "-c", "rm -rf /var/lib/fleetctl /var/lib/demo* /var/lib/rescued")
    with_nodes(lambda nodes: take(nodes, service, LEASE))
    return service


async def take(nodes: SshNodes, service: SshdService, lease: Lease) -> None:
    for answer in await asyncio.gather(*(nodes.take_lease(sshd.node(), lease) for sshd in service.nodes.values())):
        assert answer.kind == "ok", answer


def with_nodes(act: Callable[[SshNodes], Awaitable[T]]) -> T:
    async def run() -> T:
        ssh = Ssh(connect_timeout_s=2)
        try:
            return await act(SshNodes(ssh))
        finally:
            await ssh.close()

    return asyncio.run(run())


class Site:
    """An inventory, the content, and a state directory."""

    def __init__(self, directory: Path, content: Path = CONTENT) -> None:
        self.state = directory / "state"
        self.inventory = directory / "inventory"
        self.inventory.mkdir()
        self.content = content

    def changer(self, variables: Mapping[str, Mapping[str, Json]]) -> AnsibleChanger:
        (self.inventory / "hosts.json").write_text(json.dumps({"all": {"hosts": dict(variables)}}))
        settings = AnsibleSettings(
            self.state, (self.inventory,), self.content, self.content / "ansible.cfg", (self.content / "roles",)
        )
        return AnsibleChanger(settings, {"driver": "demo"})

    def files(self) -> dict[Path, bytes]:
        """Every file that is there while it is looked for; Ansible's own come and go."""
        found = {}
        for directory, _, names in os.walk(self.state):  # unlike rglob, takes a directory that vanishes for empty
            for path in (Path(directory, name) for name in names):
                with contextlib.suppress(OSError):
                    if path.is_file():
                        found[path] = path.read_bytes()
        return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def apply_to(site: Site, nodes: list[Node], variables: Mapping[str, Mapping[str, Json]]) -> dict[str, Applied]:
    async def run() -> list[Applied]:
        changer = site.changer({node.name: {} for node in nodes} | dict(variables))
        return await asyncio.gather(*(changer.apply(node, CHANGE, LEASE) for node in nodes))

    return dict(zip([node.name for node in nodes], asyncio.run(run()), strict=True))


def command_lines() -> dict[str, bytes]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[str(path)] = path.read_bytes()
    return found


def assert_nothing_is_left(site: Site) -> None:
    """The run's thread cleans up after the last answer was given."""
    until = time.monotonic() + 10
    while list((site.state / "runs").iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert list((site.state / "runs").iterdir()) == []
    assert {path.relative_to(site.state).parts[0] for path in site.files()} <= {"logs"}
    assert orphans(site.state) == []


def in_demo(sshd: Sshd, name: str = "demo") -> str:
    return sshd.inside("sh", "-c", f"cat /var/lib/{name} 2>/dev/null || true")


@pytest.mark.case("D01", "N02", "N07")
def test_nodes_share_a_run_and_each_is_answered_for_itself_when_it_is_finished(leased: SshdService, site: Site) -> None:
    n1, n2, n3, n4, n5 = (leased.nodes[f"n{number}"] for number in range(1, 6))
    variables = {
        "n1": {},
        "n2": {"demo_sleep_s": 7},
        "n3": {"demo_refusal": "no headers for 6.8.0-60, the kernel of the next boot"},
        "n4": {"demo_install": "echo 'E: Unable to correct problems, you have held broken packages.' >&2; exit 100"},
        "n5": {"demo_rescue": True, "demo_install": "cat /var/lib/no-such-file || true"},
        "dead": {},
    }
    nodes = [sshd.node() for sshd in (n1, n2, n3, n4, n5)]
    nodes.append(replace(leased.failing(n1)["refused"], name="dead"))
    runs: set[str] = set()

    async def run() -> dict[str, tuple[Applied, float]]:
        changer = site.changer(variables)
        started = time.monotonic()

        async def one(node: Node) -> tuple[Applied, float]:
            applied = await changer.apply(node, CHANGE, LEASE)
            runs.update(thread.name for thread in threading.enumerate() if thread.name.startswith("ansible"))
            assert sum(thread.name.startswith("ansible") for thread in threading.enumerate()) <= 1
            return applied, time.monotonic() - started

        answers = await asyncio.gather(*(one(node) for node in nodes))
        return dict(zip(variables, answers, strict=True))

    ended = asyncio.run(run())
    applied = {name: answer for name, (answer, _) in ended.items()}
    assert runs == {"ansible apply.yml"}

    assert applied["n1"] == Applied("ok", changed=True, reboot_required=True)
    assert in_demo(n1) == "root 580.95.05\n"
    assert (applied["n2"].kind, applied["n5"].kind) == ("ok", "ok")
    assert in_demo(n5, "rescued") == ""
    n5.inside("test", "-e", "/var/lib/rescued")

    assert applied["n3"].kind == "blocked"
    assert applied["n3"].reason == "no headers for 6.8.0-60, the kernel of the next boot"
    assert not applied["n3"].changed

    assert applied["n4"].kind == "failed"
    assert applied["n4"].reason == "Install it: E: Unable to correct problems, you have held broken packages."
    assert applied["n4"].changed

    assert applied["dead"].kind == "unknown"
    assert "unreachable" in applied["dead"].reason

    slow = ended["n2"][1]
    assert slow > 7
    for name in ("n1", "n3", "n4", "n5", "dead"):
        assert ended[name][1] < slow - 1, f"{name} waited for the slow node"
    assert "Install it" in log_path(site.state, LEASE.rollout, "n4").read_text()
    assert_nothing_is_left(site)


def test_a_preflight_changes_nothing_and_going_back_hands_each_node_its_own_closure(
    leased: SshdService, site: Site
) -> None:
    nodes = [leased.nodes[name].node() for name in ("n1", "n2")]
    told = (
        "{{ fleetctl_course ~ ' ' ~ fleetctl_closures[inventory_hostname].demo.packages.driver ~ ' ' "
        "~ fleetctl_needs_way_back }}"
    )
    variables = {name: {"demo_install": f"set -- '{told}'; echo $1 >> /var/lib/demo"} for name in ("n1", "n2")}

    async def run() -> list[Applied]:
        changer = site.changer(variables)
        before = await asyncio.gather(*(changer.preflight(node, CHANGE, LEASE) for node in nodes))
        assert [answer.kind for answer in before] == ["ok", "ok"]
        assert not any(answer.changed for answer in before)
        assert in_demo(leased.nodes["n1"]) == ""
        changes = [
            Change(("driver",), Course.BACK, {}, {"driver": Closure({"driver": f"570.{number}"}, ("driver",))}, needs)
            for number, needs in ((1, True), (2, False))
        ]
        both = zip(nodes, changes, strict=True)
        return await asyncio.gather(*(changer.apply(node, change, LEASE) for node, change in both))

    assert [answer.reboot_required for answer in asyncio.run(run())] == [False, False]
    assert in_demo(leased.nodes["n1"]) == "back 570.1 True\n"
    assert in_demo(leased.nodes["n2"]) == "back 570.2 False\n"


@pytest.mark.case("M05", "N01")
@pytest.mark.parametrize(
    ("playbook", "reason"),
    [
        ("- hosts: nobody_at_all\n  tasks: []\n", "not started"),
        ("- hosts: all\n  tasks: [{name: t, no_such_module: {}}]\n", "ERROR"),
        ("- hosts: all\n  gather_facts: false\n  tasks: [{ansible.builtin.debug: {msg: hi}}]\n", "without the task"),
    ],
)
def test_a_run_that_says_nothing_of_a_node_leaves_it_unknown(
    leased: SshdService, tmp_path: Path, playbook: str, reason: str
) -> None:
    """No hosts matched, a broken playbook, a run without the last task: never ok, never failed."""
    content = tmp_path / "content"
    shutil.copytree(CONTENT, content)
    (content / "apply.yml").write_text(playbook)
    applied = apply_to(Site(tmp_path, content), [leased.nodes["n1"].node()], {})["n1"]
    assert applied.kind == "unknown"
    assert reason in applied.reason


@pytest.mark.parametrize("user", ["ops", ROOT])
def test_without_the_lease_no_privileged_task_runs_whoever_logs_in(leased: SshdService, site: Site, user: str) -> None:
    with_nodes(lambda nodes: take(nodes, leased, RAISED))
    # What an inventory says of sudo must not open a way around the lease.
    applied = apply_to(site, [leased.nodes["n1"].node(user=user)], {"n1": {"ansible_sudo_exe": "sudo"}})["n1"]
    assert applied.kind == "unknown"
    assert "epoch 2" in applied.reason
    assert in_demo(leased.nodes["n1"]) == ""


def test_a_task_under_way_ends_and_the_next_is_refused_once_the_epoch_is_raised(
    leased: SshdService, site: Site
) -> None:
    sshd = leased.nodes["n1"]
    variables = {"n1": {"demo_install": "echo begun > /var/lib/demo; sleep 3; echo ended >> /var/lib/demo"}}

    async def run() -> Applied:
        changer = site.changer(variables | {"n1": variables["n1"] | {"demo_sleep_s": "1"}})
        applying = asyncio.create_task(changer.apply(sshd.node(), CHANGE, LEASE))
        while in_demo(sshd) != "begun\n":
            await asyncio.sleep(0.1)
        answer = await SshNodes(Ssh()).take_lease(sshd.node(), RAISED)
        assert answer.kind == "ok"
        assert in_demo(sshd) == "begun\nended\n", "the lease was handed over while the old command ran"
        return await applying

    applied = asyncio.run(run())
    assert applied.kind == "unknown"
    assert "epoch 2" in applied.reason
    assert applied.changed


def test_cancelling_one_node_leaves_the_shared_run_to_the_others(leased: SshdService, site: Site) -> None:
    n1, n2 = leased.nodes["n1"], leased.nodes["n2"]
    runs: list[str] = []

    async def run() -> Applied:
        changer = site.changer({"n1": {"demo_sleep_s": 30}, "n2": {"demo_sleep_s": 3}})
        first = asyncio.create_task(changer.apply(n1.node(), CHANGE, LEASE))
        second = asyncio.create_task(changer.apply(n2.node(), CHANGE, LEASE))
        while not in_demo(n1):
            await asyncio.sleep(0.1)
        runs.extend(path.name for path in (site.state / "runs").iterdir())
        first.cancel()
        return await second

    started = time.monotonic()
    assert asyncio.run(run()).kind == "ok"
    assert time.monotonic() - started < 20
    assert_nothing_is_left(site)
    assert [processes_of(run) for run in runs] == [()], "a worker or an ssh of the run was left"


def test_a_killed_controller_leaves_a_run_that_the_next_one_finds_and_ends(leased: SshdService, site: Site) -> None:
    sshd = leased.nodes["n1"]
    site.changer({"n1": {"demo_install": "echo begun > /var/lib/demo; sleep 3; echo ended >> /var/lib/demo"}})
    terms = {
        "content": str(CONTENT),
        "state": str(site.state),
        "inventory": str(site.inventory),
        "name": "n1",
        "connection": asdict(sshd.node().connection),
        "lease": [LEASE.rollout, LEASE.controller, LEASE.epoch, LEASE.nonce],
    }
    program = str(CONTENT / "killed_controller.py")
    controller = subprocess.Popen(
        [sys.executable, program, json.dumps(terms)],
        env={**os.environ, "PYTHONPATH": str(Path(sshd_service.__file__).parents[2])},
    )
    until = time.monotonic() + 20
    while not in_demo(sshd) and time.monotonic() < until:
        time.sleep(0.1)
    assert orphans(site.state) == [], "its controller lives"
    controller.kill()
    controller.wait()

    (orphan,) = orphans(site.state)
    assert (orphan.rollout, orphan.epoch, orphan.nodes) == (LEASE.rollout, LEASE.epoch, ("n1",))
    assert orphan.playbook == "apply.yml"
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in orphan.pids]
    assert "ansible-playbook" in commands[0], "SIGKILL of the controller should leave ansible-playbook alive"
    end_orphan(orphan)
    assert processes_of(orphan.run) == ()
    assert orphans(site.state) == []
    assert not orphan.directory.exists()
    # On the node the command goes on under the old lease, and the lease waits for it.
    assert in_demo(sshd) == "begun\n"
    answer = with_nodes(lambda nodes: nodes.take_lease(sshd.node(), RAISED))
    assert answer.kind == "ok"
    assert in_demo(sshd) == "begun\nended\n"


@pytest.mark.case("N08")
def test_a_secret_of_the_inventory_is_nowhere(leased: SshdService, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in any file, while the run lasts or after it; not in any command line; not in what is reported."""
    canary, in_environment = "canary-4711-bird", "canary-0815-bird"
    monkeypatch.setenv("SITE_VAULT_TOKEN", in_environment)
    sshd = leased.nodes["n1"]
    variables = {
        "ansible_become_password": canary,
        "demo_install": "echo trying; sleep 2; echo password={{ ansible_become_password }} is wrong >&2; exit 3",
    }
    seen: dict[str, bytes] = {}

    async def run() -> Applied:
        changer = site.changer({"n1": variables})
        node = replace(sshd.node(), variables=variables)
        applying = asyncio.create_task(changer.apply(node, CHANGE, LEASE))
        while not applying.done():
            await asyncio.sleep(0.05)
            seen.update((str(path), text) for path, text in site.files().items())
            seen.update(command_lines())
        return await applying

    applied = asyncio.run(run())
    assert applied.kind == "failed"
    assert "password=" in applied.reason, "the canary never came near what is reported"
    assert canary not in applied.reason + applied.signature
    assert any(name.endswith("extra_vars.json") for name in seen), "the run's files were not looked at"
    on_the_node = [
        name for name, text in seen.items() if canary.encode() in text and b"sh\0-c\0echo trying" not in text
    ]
    assert on_the_node == []
    assert [name for name, text in seen.items() if in_environment.encode() in text] == []
    assert canary not in log_path(site.state, LEASE.rollout, "n1").read_text()


@pytest.mark.case("M01")
def test_every_failure_of_ssh_leaves_its_node_unknown(leased: SshdService, site: Site) -> None:
    nodes = [replace(node, name=way.replace(" ", "_")) for way, node in leased.failing(leased.nodes["n1"]).items()]
    applied = apply_to(site, nodes, {"host_key_unknown": {"ansible_host_key_checking": False}})
    assert {name: answer.kind for name, answer in applied.items()} == dict.fromkeys(applied, "unknown")
    assert all("unreachable" in answer.reason for name, answer in applied.items() if name != "shell")
    assert in_demo(leased.nodes["n1"]) == ""


def test_ansible_goes_through_the_targets_jump_host(
    leased: SshdService, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bastion = leased.nodes["n5"]
    through = leased.nodes["n1"].node(proxy_jump=f"ops@{bastion.address}:{bastion.port}")
    log = bastion.directory / "sshd.log"
    before = log.read_text().count("Accepted publickey")
    with leased.agent() as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        assert apply_to(site, [through], {})["n1"].kind == "ok"
    assert log.read_text().count("Accepted publickey") > before
