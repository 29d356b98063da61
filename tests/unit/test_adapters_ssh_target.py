"""One resolved target, told to asyncssh and to ssh."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.adapters.ssh_target import login_to, read_hop, read_route, ssh_config
from fleetctl.errors import BadInput
from fleetctl.model.fleet import Connection


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("bastion", Connection("bastion")),
        ("ops@bastion", Connection("bastion", user="ops")),
        ("ops@bastion:2222", Connection("bastion", 2222, "ops")),
        ("me@corp@bastion", Connection("bastion", user="me@corp")),
        ("[fe80::1]:2222", Connection("fe80::1", 2222)),
        ("fe80::1", Connection("fe80::1")),
    ],
)
def test_a_jump_host_is_read_as_ssh_reads_it(text: str, hop: Connection) -> None:
    assert read_hop(text, "") == hop


def test_an_identity_file_is_the_only_key_that_is_offered(tmp_path: Path) -> None:
    """A full agent would use up the server's MaxAuthTries."""
    key = tmp_path / "key"
    assert login_to(Connection("n1", identity_file=str(key)))["agent_path"] is None
    (tmp_path / "key.pub").write_text("ssh-ed25519 AAAA\n")
    login = login_to(Connection("n1", identity_file=str(key)))
    assert login["agent_identities"] == [f"{key}.pub"]
    assert "IdentitiesOnly yes" in ssh_config([("n1", Connection("n1", identity_file=str(key)))])


def test_what_the_inventory_leaves_open_comes_from_the_users_configuration(tmp_path: Path) -> None:
    config = "Host gpu*\n  ProxyJump ops@bastion\n  UserKnownHostsFile ~/fleet_hosts\n"
    (tmp_path / ".ssh" / "config").write_text(config)
    route = read_route(Connection("gpu001"))
    assert route.hops == "ops@bastion"
    assert route.known_hosts == (str(tmp_path / "fleet_hosts"), "/etc/ssh/ssh_known_hosts")
    told = read_route(Connection("gpu001", known_hosts="/etc/fleet/known_hosts", proxy_jump="other"))
    assert told.hops == "other"
    assert told.known_hosts == ("/etc/fleet/known_hosts", "/etc/ssh/ssh_known_hosts")


@pytest.mark.parametrize("hops", ["none", "bastion", "ops@bastion:22"])
def test_no_jump_host_stands_before_itself(tmp_path: Path, hops: str) -> None:
    (tmp_path / ".ssh" / "config").write_text(f"Host *\n  ProxyJump {hops}\n")
    assert read_route(Connection("bastion")).hops == ""


def test_a_configuration_that_cannot_be_read_concerns_the_whole_fleet(tmp_path: Path) -> None:
    (tmp_path / ".ssh" / "config").write_text("Port none-at-all\n")
    with pytest.raises(BadInput, match=r"~/\.ssh/config"):
        read_route(Connection("n1"))


def test_host_keys_are_checked_whatever_the_users_configuration_says() -> None:
    """ssh takes the first value of an option that it finds: ours stands before everything that is included."""
    lines = ssh_config([("n1", Connection("10.0.0.1", 2222, "ops", "/k", "/kh", "b"))], "/run/x").splitlines()
    assert lines[:8] == [
        "Host n1",
        "  HostName 10.0.0.1",
        "  Port 2222",
        "  User ops",
        '  IdentityFile "/k"',
        "  IdentitiesOnly yes",
        '  UserKnownHostsFile "/kh"',
        "  ProxyJump b",
    ]
    assert lines.index("  StrictHostKeyChecking yes") < lines.index("Include ~/.ssh/config")
    assert '  ControlPath "/run/x"/%C' in lines
    assert lines[-1] == '  UserKnownHostsFile "/kh" ~/.ssh/known_hosts'


@given(st.text(min_size=1), st.sampled_from(["host", "user", "proxy_jump", "identity_file", "known_hosts"]))
def test_no_value_of_an_inventory_becomes_another_line_or_option(text: str, field: str) -> None:
    plain = ssh_config([("n1", Connection("h"))]).count("\n")
    try:
        config = ssh_config([("n1", Connection(**{"host": "h", field: text}))])  # type: ignore[arg-type]
    except BadInput:
        return
    assert config.count("\n") - plain <= 3
    assert all(line.isprintable() for line in config.splitlines())
    for line in config.splitlines():
        if field in ("host", "user", "proxy_jump"):
            assert len(line.split()) <= 3 or line.startswith("  UserKnownHostsFile")
