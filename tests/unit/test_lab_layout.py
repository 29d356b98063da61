"""What a lab consists of, before any container: names, addresses, configuration, image names."""

from __future__ import annotations

import ipaddress
import resource
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import BadInput
from fleetctl.lab import engine
from fleetctl.lab.images import digest_of, steps
from fleetctl.lab.layout import MAX_NODES, Lab, check_request, free_subnet, load, plan_lab, racks_of, save
from fleetctl.lab.slurm_config import slurm_conf


def lab_of(nodes: int, racks: int, directory: Path = Path("lab")) -> Lab:
    return plan_lab(
        "lab", directory, nodes=nodes, racks=racks, release="bookworm", kernel="6.1.0", subnet="10.231.0.0/22"
    )


@given(st.integers(1, MAX_NODES).flatmap(lambda nodes: st.tuples(st.just(nodes), st.integers(1, nodes))))
def test_every_machine_has_an_address_of_its_own_within_the_subnet(size: tuple[int, int]) -> None:
    lab = lab_of(*size)
    addresses = [ipaddress.IPv4Address(machine.address) for machine in lab.machines]
    subnet = ipaddress.IPv4Network(lab.subnet)
    assert len(set(addresses)) == size[0] + 1
    assert all(address in subnet and address not in (subnet[0], subnet[1], subnet[-1]) for address in addresses)


@given(st.integers(1, MAX_NODES).flatmap(lambda nodes: st.tuples(st.just(nodes), st.integers(1, nodes))))
def test_no_rack_is_larger_than_the_first_and_there_are_not_more_than_asked_for(size: tuple[int, int]) -> None:
    nodes, racks = size
    lab = lab_of(nodes, racks)
    counts = [sum(node.rack == rack for node in lab.nodes) for rack in racks_of(lab)]
    assert len(counts) <= racks
    assert max(counts) == counts[0] == -(-nodes // racks)


def test_a_lab_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    lab = lab_of(5, 2, tmp_path)
    save(lab)
    assert load(tmp_path) == lab
    assert load(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("name", "nodes", "racks", "release", "message"),
    [
        ("Lab", 1, 1, "bookworm", "can't name a lab"),
        ("-x", 1, 1, "bookworm", "can't name a lab"),
        ("lab", 0, 1, "bookworm", "1 to 999 nodes"),
        ("lab", 1000, 1, "bookworm", "1 to 999 nodes"),
        ("lab", 4, 0, "bookworm", "from 1 to the number of nodes"),
        ("lab", 4, 5, "bookworm", "from 1 to the number of nodes"),
        ("lab", 4, 2, "bullseye", "bookworm .* or trixie"),
    ],
)
def test_a_lab_that_can_not_be_is_refused(name: str, nodes: int, racks: int, release: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_request(name, nodes, racks, release)


def test_a_subnet_is_chosen_that_nobody_uses() -> None:
    assert free_subnet([]) == "10.231.0.0/22"
    assert free_subnet(["10.88.0.0/16", "10.231.1.0/24", "fd00::/64"]) == "10.231.4.0/22"
    with pytest.raises(BadInput, match="no free /22"):
        free_subnet(["10.0.0.0/8"])


def test_slurm_conf_names_every_node_and_the_first_two_for_debugging() -> None:
    conf = slurm_conf(lab_of(3, 1))
    assert "SlurmdTimeout=5\n" in conf
    assert "NodeName=gpu003 NodeAddr=10.231.0.22" in conf
    assert "PartitionName=train Nodes=gpu001,gpu002,gpu003 Default=YES" in conf
    assert "PartitionName=debug Nodes=gpu001,gpu002 " in conf


def test_cgroup_layouts_are_told_apart(tmp_path: Path) -> None:
    assert not engine.has_unified_cgroups(tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert engine.has_unified_cgroups(tmp_path)


def test_limits_are_what_this_machine_can_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_may_raise_limits", lambda: False)
    monkeypatch.setattr(engine, "has_unified_cgroups", lambda: False)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1, 20000 if kind == resource.RLIMIT_NOFILE else -1))
    conf = engine.containers_conf()
    assert 'runtime = "runc"' in conf
    assert 'default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]' in conf
    monkeypatch.setattr(engine, "_may_raise_limits", lambda: True)
    monkeypatch.setattr(engine, "has_unified_cgroups", lambda: True)
    assert engine.containers_conf() == '[network]\nnetwork_backend = "netavark"\n[engine]\n'


def test_a_person_who_is_not_root_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(BadInput, match=r"needs root.*sudo"):
        engine.require_engine()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda command: None if command in ("podman", "ssh-keygen") else command)
    with pytest.raises(BadInput, match=r"needs podman, openssh-client\. Run: apt-get install podman openssh-client"):
        engine.require_engine()


def test_an_image_is_named_by_content_and_mode_alone(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("true\n")
    before = digest_of(tmp_path)
    assert digest_of(tmp_path) == before
    script.chmod(0o755)
    executable = digest_of(tmp_path)
    script.write_text("false\n")
    assert len({before, executable, digest_of(tmp_path)}) == 3


@pytest.mark.parametrize("failing", range(3))
def test_an_image_is_not_made_when_any_of_its_steps_fails(failing: int) -> None:
    commands = ["true"] * 3
    commands[failing] = "false"
    done = subprocess.run(["sh", "-c", f"set -eu\n{steps(*commands)}\ntrue"], check=False)
    assert done.returncode != 0
