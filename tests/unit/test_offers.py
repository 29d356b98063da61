"""The program that asks a node's repositories, run as it runs on nodes, with stand-ins for the package manager.

What the real apt says is in tests/contract/test_offers.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.python_3_6 import PYTHON_3_6

OFFERS = Path(__file__).parents[2] / "fleetctl" / "probe" / "offers.py"
PYTHONS = [sys.executable, *([PYTHON_3_6] if PYTHON_3_6 else [])]
PACKAGES = {"nvidia_driver": {"kmod-nvidia-open-dkms": "3:570.195.03-1.el9", "nvidia-driver": "3:570.195.03-1.el9"}}


class Machine:
    """A node whose only programs are those written here; `said` is what they were called with."""

    def __init__(self, directory: Path, **programs: str) -> None:
        self.directory = directory
        for part in ("bin", "tmp"):
            (directory / part).mkdir()
        for name, text in programs.items():
            program = directory / "bin" / name.replace("_", "-")
            program.write_text(f'#!/bin/sh\necho "$@" >> {directory}/said\n{text}\n')
            program.chmod(0o755)

    def start(self, python: str = PYTHONS[-1], **parameters: Any) -> subprocess.Popen[str]:
        asked = {"packages": PACKAGES, "path": str(self.directory / "bin"), **parameters}
        text = OFFERS.read_text().replace('PARAMETERS = "{}"', f"PARAMETERS = {json.dumps(asked)!r}", 1)
        pipe, environment = subprocess.PIPE, {"TMPDIR": str(self.directory / "tmp")}
        child = subprocess.Popen([python, "-"], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
        assert child.stdin is not None
        child.stdin.write(text)
        child.stdin.close()
        return child

    def ask(self, python: str = PYTHONS[-1], **parameters: Any) -> dict[str, Any]:
        child = self.start(python, **parameters)
        assert child.stdout is not None
        out = child.stdout.read()
        assert child.wait(30) == 0, child.stderr.read() if child.stderr else ""
        assert list((self.directory / "tmp").iterdir()) == [], "its directory is gone"
        (line,) = out.splitlines()
        said: dict[str, Any] = json.loads(line)
        assert said["schema"] == 1
        return said

    @property
    def said(self) -> str:
        return (self.directory / "said").read_text()


@pytest.mark.parametrize("python", PYTHONS)
def test_dnf_is_asked_by_name_version_and_release_with_a_cache_of_its_own(tmp_path: Path, python: str) -> None:
    machine = Machine(tmp_path, dnf="echo nvidia-driver-570.195.03-1.el9")
    said = machine.ask(python)
    assert (said["manager"], said["unknown"]) == ("dnf", "")
    assert said["lost"] == ["kmod-nvidia-open-dkms-570.195.03-1.el9"]
    words = machine.said.split()
    assert words[-2:] == ["kmod-nvidia-open-dkms-570.195.03-1.el9", "nvidia-driver-570.195.03-1.el9"]
    assert "--setopt=*.skip_if_unavailable=0" in words
    private = {word.split("=")[1]: word.split("=")[2] for word in words if word.startswith("--setopt=") and "/" in word}
    assert set(private) == {"cachedir", "logdir"}
    assert all(Path(path).parent.parent == tmp_path / "tmp" for path in private.values())


def test_dnf_that_can_not_read_a_repository_says_nothing(tmp_path: Path) -> None:
    said = Machine(tmp_path, dnf="echo 'Error: Failed to download metadata for repo cuda' >&2; exit 1").ask()
    assert said["lost"] == []
    assert said["unknown"] == "dnf repoquery: Error: Failed to download metadata for repo cuda"


def test_a_repository_that_is_declared_only_may_have_it(tmp_path: Path) -> None:
    said = Machine(tmp_path, dnf=":").ask(repositories=["https://mirror.example/cuda/"])
    assert (said["lost"], said["unknown"]) == ([], "https://mirror.example/cuda/ is declared, but not on the node yet")


def test_apt_update_that_ends_well_without_an_index_proves_only_what_it_found(tmp_path: Path) -> None:
    failed = 'echo "W: Some index files failed to download. They have been ignored, or old ones used instead." >&2'
    rows = 'printf " a | 1:2-1 | http://x stable/main amd64 Packages\\n"'
    machine = Machine(tmp_path, apt_get=failed, apt_cache=rows, apt_config=":", dpkg="echo amd64")
    assert machine.ask(packages={"r": {"a": "1:2-1"}})["unknown"] == ""
    said = machine.ask(packages={"r": {"a": "2-1"}})
    assert said["lost"] == []
    assert said["unknown"].startswith("apt-get update: W: Some index files failed")


def test_hooks_and_places_of_the_nodes_configuration_are_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    dump = "\n".join(
        (
            'Acquire::http::Proxy "http://proxy.example:3128";',
            'APT::Update::Post-Invoke-Success:: "touch /var/lib/stamp";',
            'DPkg::Pre-Invoke:: "remount";',
            'Dir::Cache::pkgcache "/var/cache/apt/pkgcache.bin";',
            'Dir::Etc::Parts "/etc/apt/apt.conf.d";',
            'Acquire::IndexTargets::deb::Contents-deb::MetaKey "Contents";',
            'APT::Odd "say "no"";',
        )
    )
    keep = f'cat=$(while read -r line; do echo "$line"; done < $APT_CONFIG); echo "$cat" > {tmp_path}/config'
    machine = Machine(tmp_path, apt_get=keep, apt_cache=":", apt_config=f"echo '{dump}'", dpkg="echo amd64")
    assert machine.ask(packages={"r": {"a": "1"}})["lost"] == ["a=1"]
    config = (tmp_path / "config").read_text()
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in config
    for word in ("Invoke", "/var/", "/etc/apt", "Contents", "Odd"):
        assert word not in config, config


def test_a_node_without_a_package_manager_says_nothing(tmp_path: Path) -> None:
    said = Machine(tmp_path).ask()
    assert (said["lost"], said["unknown"]) == ([], "neither apt-get nor dnf on this node")


def test_a_program_that_hangs_is_ended_with_its_children_at_the_limit(tmp_path: Path) -> None:
    started = time.monotonic()
    said = Machine(tmp_path, dnf=f"/bin/sleep 60 & echo $! > {tmp_path}/child; wait").ask(limit_s=0.5)
    assert said["unknown"] == "dnf repoquery did not end within 0.5 s"
    assert time.monotonic() - started < 20
    assert is_gone(int((tmp_path / "child").read_text()))


def test_it_leaves_nothing_behind_when_it_is_ended(tmp_path: Path) -> None:
    machine = Machine(tmp_path, dnf=f"echo $$ > {tmp_path}/child; exec /bin/sleep 60")
    child = machine.start()
    until = time.monotonic() + 20
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == 128 + signal.SIGTERM
    assert list((tmp_path / "tmp").iterdir()) == []
    assert is_gone(int((tmp_path / "child").read_text()))


def is_gone(pid: int) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False
