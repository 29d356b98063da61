"""Whether packages could be had again, asked over SSH of this machine's apt and a signed repository behind HTTP.

The node has an /etc/apt and layers over /var/lib and /var/cache of its own: what is written there is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.server
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import sshd_service
from sshd_service import Sshd

from fleetctl.adapters.nodes import SshNodes
from fleetctl.adapters.ssh import Ssh
from fleetctl.lab.repository import Repository, build_repository, missing_tools, open_repository, withdraw
from fleetctl.model.fleet import Json
from fleetctl.model.reading import Reading

_MISSING = sshd_service.missing() or ", ".join(missing_tools())
pytestmark = [pytest.mark.contract, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]

OLD, NEW = "570.195.03", "580.95.05"
KERNEL = "6.8.0-60-generic"
HOOKS = 'APT::Update::Pre-Invoke:: "touch {0}"; APT::Update::Post-Invoke-Success:: "touch {0}";\n'

# What this node's package manager sees and writes is no other's.
_PREPARE = """
set -e
mount --bind "$1/apt" /etc/apt
mkdir "$1/scratch/cache" "$1/scratch/cache-work"
mount -t overlay overlay -o "lowerdir=/var/cache,upperdir=$1/scratch/cache,workdir=$1/scratch/cache-work" /var/cache
"""


@dataclass
class Served:
    """A repository behind HTTP, and the one node that knows it."""

    repository: Repository
    port: int
    sshd: Sshd

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def packages(self, version: str) -> dict[str, str]:
        return {offer.name: offer.version for offer in self.repository.offers if offer.upstream == version}

    def write_sources(self, *more: str) -> None:
        apt = self.sshd.directory / "apt"
        source = self.repository.source(self.uri, "/etc/apt/key.asc")
        (apt / "sources.list.d" / "nvidia.sources").write_text("\n".join([source, *more]))

    def ask(
        self, packages: Mapping[str, str], limit_s: float = 60, variables: Mapping[str, Json] | None = None
    ) -> Reading[tuple[str, ...]]:
        async def run() -> Reading[tuple[str, ...]]:
            ssh = Ssh()
            nodes = SshNodes(ssh, offers_limit_s=limit_s)
            try:
                return await nodes.lost_packages(self.sshd.node(variables), {"nvidia_driver": packages})
            finally:
                await ssh.close()

        return asyncio.run(run())

    def written(self) -> str:
        """What the node's layers hold by now, the mark of a hook, and temporary directories."""
        kept = self.sshd.inside("find", f"{self.sshd.directory}/scratch", "-name", "*work", "-prune", "-o", "-print")
        return kept + "\n".join(map(str, Path("/tmp").glob("fleetctl-offers-*")))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[int]:
    handler = functools.partial(Quiet, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return build_repository(tmp_path_factory.mktemp("repository") / "lab", KERNEL)


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with sshd_service.running("n1") as service:
        node = service.nodes["n1"]
        (node.directory / "apt" / "sources.list.d").mkdir(parents=True)
        for name in ("apt.conf.d", "preferences.d", "trusted.gpg.d"):
            (node.directory / "apt" / name).mkdir()
        (node.directory / "apt" / "apt.conf.d" / "99hooks").write_text(
            HOOKS.format(node.directory / "scratch" / "hook")
        )
        with (node.directory / "passwd").open("a") as users:
            users.write("_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n")
        node.inside("sh", "-c", _PREPARE, "sh", str(node.directory))
        yield node


@pytest.fixture
def served(whole: Repository, sshd: Sshd, tmp_path: Path) -> Iterator[Served]:
    repository = open_repository(shutil.copytree(whole.directory, tmp_path / "lab"))
    shutil.copy(repository.key_file, sshd.directory / "apt" / "key.asc")
    with serving(repository.public) as port:
        made = Served(repository, port, sshd)
        made.write_sources()
        before = made.written()
        yield made
        assert made.written() == before, "only its own directory, which is gone"


def test_what_a_repository_offers_is_not_lost(served: Served) -> None:
    packages = served.packages(OLD)
    assert len(packages) > 15
    assert served.ask(packages) == Reading("value", ())


def test_a_version_that_was_taken_out_is_lost_by_name_and_nothing_else_is(served: Served) -> None:
    old, new = served.packages(OLD), served.packages(NEW)
    withdraw(served.repository, OLD)
    gone = {name: version for name, version in old.items() if name not in new}
    assert served.ask({**new, **gone}).get() == tuple(f"{name}={version}" for name, version in sorted(gone.items()))


def test_an_epoch_and_the_machines_own_architecture_are_part_of_no_difference(served: Served) -> None:
    (dkms,) = [offer.version for offer in served.repository.offers if offer.name == "dkms"]
    assert dkms.startswith("1:")
    native = served.sshd.inside("dpkg", "--print-architecture").strip()
    version = served.packages(NEW)["libnvidia-compute-580"]
    asked = {"dkms": dkms, f"libnvidia-compute-580:{native}": version, "libnvidia-compute-580:riscv64": version}
    assert served.ask(asked).get() == (f"libnvidia-compute-580:riscv64={version}",)
    assert served.ask({"dkms": dkms.removeprefix("1:")}).get() != ()


def test_of_a_repository_that_can_not_be_read_nothing_is_said_to_be_lost(served: Served) -> None:
    # Of another host: apt gives up on all ports of one that refuses.
    with socket.create_server(("127.77.0.99", 0)) as nobody:
        dead = f"127.77.0.99:{nobody.getsockname()[1]}"
    served.write_sources(f"Types: deb\nURIs: http://{dead}/\nSuites: ./\nTrusted: yes\n")
    # The other one still proves what it has.
    assert served.ask(served.packages(OLD)) == Reading("value", ())
    found = served.ask({"nvidia-open-560": "560.35.05-1"})
    assert found.kind == "unknown"
    assert found.reason.startswith("apt-get update: ")
    assert dead in found.reason


def test_an_index_that_was_changed_after_signing_says_nothing(served: Served) -> None:
    packages = served.packages(OLD)
    for index in served.repository.public.glob("dists/stable/*/binary-*/Packages*"):
        index.unlink() if index.suffix else index.write_text("")
    found = served.ask(packages)
    assert (found.kind, found.reason[:16]) == ("unknown", "apt-get update: "), found


def test_an_unsigned_repository_says_nothing(served: Served) -> None:
    (served.sshd.directory / "apt" / "key.asc").write_text("")
    found = served.ask(served.packages(OLD))
    assert found.kind == "unknown"
    assert "not signed" in found.reason or "NO_PUBKEY" in found.reason


def test_a_repository_that_only_the_role_would_declare_may_have_it(served: Served) -> None:
    old = served.packages(OLD)
    withdraw(served.repository, OLD)
    declared = {"nvidia_driver_repository": {"uri": "http://127.0.0.1:1/other"}}
    found = served.ask(old, variables=declared)
    assert found.reason == "http://127.0.0.1:1/other is declared, but not on the node yet"
    here = {"nvidia_driver_repository": {"uri": served.uri.rstrip("/")}}
    assert len(served.ask(old, variables=here).get()) == len(old)
    gone = {"nvidia_driver_repository": {"uri": "http://127.0.0.1:1/other", "state": "absent"}}
    assert len(served.ask(old, variables=gone).get()) == len(old)


def test_a_repository_that_hangs_costs_no_more_than_the_limit(served: Served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        served.write_sources(f"Types: deb\nURIs: http://127.0.0.1:{silent.getsockname()[1]}/\nSuites: ./\n")
        found = served.ask(served.packages(OLD), limit_s=3)
    assert (found.kind, found.reason) == ("unknown", "apt-get update did not end within 3 s")
    assert "apt" not in served.sshd.inside("ps", "-e", "-o", "comm=").replace("apt-daily", "")
