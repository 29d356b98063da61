"""Which site is meant, where its state lives, and how a site is begun."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fleetctl.errors import BadInput, FleetctlError, InventoryError
from fleetctl.model.site import Site
from fleetctl.store import site as site_module
from fleetctl.store.content import ansible_config, find_content, find_role, roles_path
from fleetctl.store.init import init
from fleetctl.store.site import find_site, state_directory


def lay(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "fleet.yml").touch()
    return directory


def refusal_of(named: str | None, here: Path, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(InventoryError) as refusal:
        find_site(named, environ or {}, here)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_the_only_site_is_implied(tmp_path: Path) -> None:
    only = lay(tmp_path / "inventory/train-a")
    assert find_site(None, {}, tmp_path) == only


def test_the_working_directory_is_implied_if_it_is_a_site(tmp_path: Path) -> None:
    assert find_site(None, {}, lay(tmp_path / "train-a")) == tmp_path / "train-a"


def test_several_sites_are_named(tmp_path: Path) -> None:
    lay(tmp_path / "inventory/train-a")
    lay(tmp_path / "inventory/train-b")
    assert "train-a, train-b. Name one with --inventory" in refusal_of(None, tmp_path)


def test_no_site_says_how_to_begin_one(tmp_path: Path) -> None:
    assert "fleetctl init" in refusal_of(None, tmp_path)


@pytest.mark.parametrize("named", ["train-a", "inventory/train-a", "inventory/train-a/", "inventory/train-a/fleet.yml"])
def test_a_site_is_found_by_name_directory_or_file(tmp_path: Path, named: str) -> None:
    site = lay(tmp_path / "inventory/train-a")
    lay(tmp_path / "inventory/train-b")
    assert find_site(named, {}, tmp_path) == site
    assert find_site(None, {"FLEETCTL_INVENTORY": named}, tmp_path) == site
    assert find_site(str(site), {"FLEETCTL_INVENTORY": "train-b"}, Path("/")) == site


def test_a_misspelt_site_is_suggested(tmp_path: Path) -> None:
    lay(tmp_path / "inventory/train-a")
    assert "there is no site trian-a (did you mean train-a?)" in refusal_of("trian-a", tmp_path)


def test_a_directory_without_fleet_yml_says_what_adds_it(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert "has no fleet.yml: `fleetctl init plain`" in refusal_of("plain", tmp_path)


def test_a_site_whose_name_can_be_no_directory_of_the_state_is_refused(tmp_path: Path) -> None:
    lay(tmp_path / "a b")
    assert "rename it" in refusal_of("a b", tmp_path)


# --- state


def test_the_systems_state_directory_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "_SYSTEM_STATE", tmp_path / "lib/fleetctl")
    found = state_directory(Site("train-a", tmp_path), {})
    assert found == tmp_path / "lib/fleetctl/train-a"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_ones_own_state_directory_where_the_systems_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # /proc can't be written by anybody, root included.
    monkeypatch.setattr(site_module, "_SYSTEM_STATE", Path("/proc/fleetctl"))
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith("/proc"))
    assert (
        state_directory(Site("train-a", tmp_path), {"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "fleetctl/train-a"
    )


def test_a_shared_state_belongs_to_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import grp

    monkeypatch.setattr(site_module, "_SYSTEM_STATE", tmp_path / "fleetctl")
    group = grp.getgrgid(os.getgid()).gr_name
    found = state_directory(Site("train-a", tmp_path, state_group=group), {})
    assert stat.S_IMODE(found.stat().st_mode) == 0o2770
    assert found.stat().st_gid == os.getgid()


def test_an_unknown_group_is_refused_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "_SYSTEM_STATE", tmp_path / "fleetctl")
    with pytest.raises(BadInput, match="nosuchgroup is not a group of this machine"):
        state_directory(Site("train-a", tmp_path, state_group="nosuchgroup"), {})
    assert not (tmp_path / "fleetctl/train-a").exists()


# --- content


def test_the_content_is_found() -> None:
    content = find_content()
    assert content.ansible_cfg.is_file()
    assert (content.example / "fleet.yml").is_file()


def test_the_content_of_a_wheel_comes_before_that_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fleetctl

    package = tmp_path / "fleetctl"
    for directory in ("roles", "playbooks", "fleetctl/_content/roles", "fleetctl/_content/playbooks"):
        (tmp_path / directory).mkdir(parents=True)
    monkeypatch.setattr(fleetctl, "__file__", str(package / "__init__.py"))
    assert find_content().roles == package / "_content/roles"
    (package / "_content/playbooks").rmdir()
    assert find_content().roles == tmp_path / "roles"
    (tmp_path / "playbooks").rmdir()
    with pytest.raises(FleetctlError, match="reinstall"):
        find_content()


def test_a_sites_own_role_comes_first(tmp_path: Path) -> None:
    (tmp_path / "nvidia_driver/tasks").mkdir(parents=True)
    path = roles_path([tmp_path])
    assert find_role("nvidia_driver", path) == tmp_path / "nvidia_driver"
    with pytest.raises(BadInput, match=r"no role nosuch in .*roles_path"):
        find_role("nosuch", path)


def test_ansible_cfg_is_looked_for_where_ansible_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    here = tmp_path / "here"
    here.mkdir(mode=0o755)
    assert ansible_config({}, here) in (Path("/etc/ansible/ansible.cfg"), find_content().ansible_cfg)
    (tmp_path / "home/.ansible.cfg").touch()
    assert ansible_config({}, here) == tmp_path / "home/.ansible.cfg"
    (here / "ansible.cfg").touch()
    assert ansible_config({}, here) == here / "ansible.cfg"
    here.chmod(0o777)
    assert ansible_config({}, here) == tmp_path / "home/.ansible.cfg"
    assert ansible_config({"ANSIBLE_CONFIG": "/named.cfg"}, here) == Path("/named.cfg")


# --- init


def test_init_lays_down_the_example(tmp_path: Path) -> None:
    laid = init(tmp_path / "new/train-a")
    assert {str(name) for name in laid.written} >= {
        "hosts.yml",
        "fleet.yml",
        "group_vars/all.yml",
        "group_vars/gpu.yml",
    }
    assert laid.kept == ()
    assert find_site(str(tmp_path / "new/train-a"), {}) == tmp_path / "new/train-a"


def test_init_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("mine")
    laid = init(tmp_path)
    assert laid.kept == (Path("hosts.yml"),)
    assert (tmp_path / "hosts.yml").read_text() == "mine"
    assert init(tmp_path).written == ()


@pytest.mark.parametrize("in_the_way", ["train-a", "train-a/hosts.yml/x"])
def test_init_refuses_what_is_in_its_way(tmp_path: Path, in_the_way: str) -> None:
    path = tmp_path / in_the_way
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with pytest.raises(BadInput):
        init(tmp_path / "train-a")


def test_the_state_lies_beside_a_sqlite_journal_that_the_site_names(tmp_path: Path) -> None:
    site = Site("train-a", tmp_path, state_url=f"sqlite:///{tmp_path / 'kept' / 'journal.db'}")
    assert state_directory(site, {}) == tmp_path / "kept"
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
