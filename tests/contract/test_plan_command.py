"""`fleetctl plan`, `audit`, `verify` and `status` as commands, over a real Slurm, real sshds and a real inventory.

The nodes are this machine without any driver, so a plan is that of a first installation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from fleetctl.cli.build import open_site
from fleetctl.cli.campaign import open_journal
from fleetctl.cli.main import main
from fleetctl.model.policy import RolloutPolicy
from fleetctl.model.rollout import Admitted, Opened, Resumed
from fleetctl.store import site as site_module
from fleetctl.store.journal import Journal
from fleetctl.store.lock import acquire, release
from fleetctl.store.policy_record import policy_to_json
from tests.contract import slurm_service, sshd_service
from tests.contract.slurm_service import SlurmService
from tests.contract.sshd_service import SshdService
from tests.unit.journal_parts import tamper

_MISSING = slurm_service.missing() or sshd_service.missing() or ("here only" if slurm_service.VIA else "")
pytestmark = [pytest.mark.contract, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]

NAMES = ("gpu001", "gpu002", "gpu003", "gpu004")


# A driver is refused on a node that could not build its module: here nobody has kernel headers. Only in the node's own
# mount namespace.
_HEADERS = """
set -e
mkdir "$1/headers" "$1/headers-work"
mount -t overlay overlay -o "lowerdir=/usr/lib,upperdir=$1/headers,workdir=$1/headers-work" /usr/lib
mkdir -p "/usr/lib/modules/$(uname -r)/build"
touch "/usr/lib/modules/$(uname -r)/build/Makefile"
"""


@dataclass
class Site:
    slurm: SlurmService
    sshds: SshdService
    directory: Path

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-i", str(self.directory)])

    def declare(self, **variables: str) -> None:
        (self.directory / "group_vars" / "all.yml").write_text(yaml.safe_dump(variables))


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[SlurmService, SshdService]]:
    with slurm_service.running(4) as slurm, sshd_service.running(*NAMES[:3]) as sshds:
        for sshd in sshds.nodes.values():
            sshd.inside("sh", "-c", _HEADERS, "sh", str(sshd.directory / "scratch"))
        yield slurm, sshds


@pytest.fixture
def site(services: tuple[SlurmService, SshdService], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Four nodes in two racks; nobody answers on gpu004."""
    slurm, sshds = services
    monkeypatch.setattr(site_module, "_SYSTEM_STATE", tmp_path / "state")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", slurm.conf)
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "train-x"
    (directory / "group_vars").mkdir(parents=True)
    hosts = {
        name: {
            "ansible_host": sshds.nodes[name].address if name in sshds.nodes else "127.77.0.99",
            "ansible_port": sshds.nodes[name].port if name in sshds.nodes else 1,
            "ansible_user": sshd_service.USER,
            "ansible_ssh_private_key_file": str(sshds.identity),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={sshds.known_hosts}",
            "rack": "r01" if number < 2 else "r02",
        }
        for number, name in enumerate(NAMES)
    }
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    policy = {
        "schedulers": {"slurm": {"via": "local"}},
        "failure_domains": {"rack": "rack"},
        "rollout": {"canary": 1, "max_unavailable": 3, "max_unavailable_per": {"rack": 1}},
    }
    (directory / "fleet.yml").write_text(yaml.safe_dump(policy))
    made = Site(slurm, sshds, directory)
    made.declare(nvidia_driver_version="580.95.05")
    yield made
    slurm.clear(*NAMES)


def test_a_plan_names_every_node_and_touches_nothing(site: Site) -> None:
    site.slurm.run("scontrol", "update", "nodename=gpu002", "state=drain", "reason=ECC errors, RMA open")
    before = {name: (site.slurm.state(name), site.slurm.reason(name)) for name in NAMES}
    planned = site.run("plan", "driver")
    assert (planned.exit_code, planned.stderr) == (0, "")
    lines = planned.stdout.splitlines()
    assert lines[:2] == [
        "driver none -> 580.95.05 (open)",
        "site train-x: 4 nodes declared: change 2, not planned 2",
    ]
    assert 'gpu002       held         drained by root just now: "ECC errors, RMA open"' in lines
    assert any(line.startswith("gpu004       unreachable  ssh: refused") for line in lines)
    assert any(line.startswith("canary  gpu00") for line in lines)
    assert any("out now 1: gpu002" in line for line in lines)
    assert all(len(line) <= 100 for line in lines)
    assert {name: (site.slurm.state(name), site.slurm.reason(name)) for name in NAMES} == before
    assert all(sshd.orders == [] for sshd in site.sshds.nodes.values())
    # What a node writes below /var/lib lands here: no lease, no program.
    assert [sshd.inside("ls", f"{sshd.directory}/scratch/upper") for sshd in site.sshds.nodes.values()] == [""] * 3


def test_a_plan_for_scripts_has_the_same_nodes(site: Site) -> None:
    site.slurm.submit("gpu001", "-t", "30")
    site.slurm.await_state("gpu001", "MIXED")
    planned = json.loads(site.run("plan", "driver", "--json", "--exclude", "gpu004").stdout)
    assert planned["nodes"] == ["gpu001", "gpu002", "gpu003"]
    assert planned["to_change"]["gpu001"]["from"] == {"driver": "none"}
    assert len(planned["to_change"]["gpu001"]["jobs"]) == 1
    assert planned["to_change"]["gpu001"]["free_at"] is not None
    assert planned["waves"][0]["nodes"] != ["gpu001"], "the busy node is not the canary"
    assert planned["not_planned"] == {}


def test_to_overrides_for_this_once_and_says_so(site: Site) -> None:
    planned = site.run("plan", "driver", "--to", "590.48.01", "--limit", "gpu[001-002]")
    assert planned.stdout.startswith("driver none -> 590.48.01 (open)\n")
    assert "the inventory still says 580.95.05" in planned.stdout.replace("\n      ", " ")


def test_an_audit_finds_the_drift_and_what_it_could_not_read_and_exits_3(site: Site) -> None:
    audited = site.run("audit", "--component", "driver")
    assert (audited.exit_code, audited.stderr) == (3, "")
    assert "site train-x: 4 nodes: 3 with drift, 1 not observed" in audited.stdout
    assert "gpu[001-003] (3)  driver     packaged" in audited.stdout
    assert "gpu004            the whole node" in audited.stdout
    read = json.loads(site.run("audit", "--json", "--limit", "gpu001").stdout)
    assert read["drifting"] == ["gpu001"]
    assert not read["is_clean"]


def test_a_fleet_for_which_nothing_is_declared_is_no_drift(site: Site) -> None:
    site.declare(nvidia_driver_flavour="open")
    audited = site.run("audit")
    assert audited.exit_code == 0, audited.stdout
    assert audited.stdout == "site train-x: 4 nodes: 4 without a declared driver or fabric manager\n"
    refused = site.run("plan", "driver")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "fleetctl: none of these nodes declares a version of driver\n"


def test_a_verify_of_a_bare_node_fails_and_exits_3(site: Site) -> None:
    verified = site.run("verify", "gpu[001,004]", "--component", "driver", "--json")
    assert verified.exit_code == 3
    read = json.loads(verified.stdout)
    assert not read["passed"]
    assert read["nodes"]["gpu001"]["failures"]
    assert read["nodes"]["gpu004"]["unknown"].startswith("can't be probed: ssh: refused")


def test_checks_that_disturb_do_not_run_beside_a_job(site: Site) -> None:
    job = site.slurm.submit("gpu001", "-t", "30")
    site.slurm.await_state("gpu001", "MIXED")
    read = json.loads(site.run("verify", "gpu[001,003]", "--component", "driver", "--json").stdout)
    assert read["nodes"]["gpu001"]["passive_because"] == f"work on the node: job {job}"
    assert read["nodes"]["gpu003"]["passive_because"] == ""


def test_without_room_nothing_is_begun_and_the_number_is_named(site: Site) -> None:
    for name in ("gpu002", "gpu003"):
        site.slurm.run("scontrol", "update", f"nodename={name}", "state=drain", "reason=mine")
    refused = site.run("plan", "driver", "--limit", "gpu001", "--max-unavailable", "1")
    assert refused.exit_code == 2
    assert refused.stdout.startswith("driver none -> 580.95.05 (open)\n")
    assert refused.stderr == (
        "fleetctl: no node could be taken out: max_unavailable allows 1, and 2 are out already (gpu[002-003]): bring "
        "those back, or set max_unavailable to 3 or more\n"
    )


@pytest.mark.case("F03")
def test_nodes_that_a_dead_controller_left_are_listed_with_what_they_wait_for(site: Site) -> None:
    begun_at = datetime.now(UTC) - timedelta(days=14)
    opened = Opened(
        begun_at, "r-old", "train-x", ("driver",), NAMES, "alice", "ctl-9", "5f0c93d1", policy_to_json(RolloutPolicy())
    )
    admitted = [Admitted(begun_at, name, "canary") for name in ("gpu001", "gpu002")]
    opened_site = open_site(str(site.directory))
    database = open_journal(opened_site)
    claim = acquire(database, "train-x", "r-old", begun_at)
    Journal(database, claim).append([opened, Resumed(begun_at, "ctl-9", 1), *admitted])
    release(database, claim)
    for name, reason in {"gpu001": "fleetctl:r-old:5f0c93d1 driver", "gpu003": "fleetctl:r-elsewhere:ab12 x"}.items():
        site.slurm.run("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")

    told = site.run("status")
    assert (told.exit_code, told.stderr) == (0, "")
    assert told.stdout.splitlines() == [
        "gpu003  rollout r-elsewhere  no controller known here: fleetctl take-over adopts them  drained just now",
        "  x",
        "gpu001  rollout r-old  interrupted, no controller  drained just now",
        "  driver",
        "  gpu001: past its limit: checking for 14 d (limit 5:00): waits for the outcome of its check",
    ]
    rows = {row["node"]: row for row in json.loads(site.run("status", "--json").stdout)}
    assert rows["gpu001"]["past_limit"].startswith("checking for 14 d")
    assert rows["gpu003"]["past_limit"] == ""
    of_rollout = site.run("rollout", "status")
    assert "under way         2  gpu[001-002]" in of_rollout.stdout
    assert (
        "gpu002: past its limit: checking for 14 d (limit 5:00): waits for the outcome of its check"
        in of_rollout.stdout
    )
    assert of_rollout.stderr == "nobody runs it: fleetctl rollout resume r-old\n"

    tamper(opened_site.state_directory, "UPDATE events SET payload = '{}' WHERE seq = 3")
    damaged = site.run("status")
    assert (damaged.exit_code, damaged.stdout.splitlines()) == (0, told.stdout.splitlines()[:-1])
    assert damaged.stderr.startswith("the limits of r-old are not known: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "580"], '--to: nvidia_driver_version: "580" is not an exact driver version'),
        (["--to", "latest"], '"latest" is not an exact version'),
        (["--max-unavailable", "0"], "--max-unavailable 0: 0 would let no node out"),
        (["--canary", "x"], '--canary x: "x" must be a whole number'),
        (["--limit", "gpu9"], "gpu9 is neither a node nor a group of the inventory"),
        (["--limit", ""], "the node pattern is empty"),
        (["--exclude", "all"], "--exclude all leaves no node"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(site: Site, arguments: list[str], words: str) -> None:
    refused = site.run("plan", "driver", *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("fleetctl: ")
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_an_unreachable_slurm_is_one_line_and_exit_2(site: Site) -> None:
    (site.directory / "fleet.yml").write_text("schedulers: {slurm: {via: 'ssh://127.0.0.1:1'}}\n")
    refused = site.run("plan", "driver")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        "fleetctl: Slurm can't be reached: 127.0.0.1: ssh: refused: nobody listens at 127.0.0.1:1; try `scontrol ping` "
        "there\n"
    )
