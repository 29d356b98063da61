"""A signed apt repository of the lab's packages, written into a directory. No network, no root.

<directory>/public/   what a web server may show: dists/, pool/, and the key that `Signed-By` names
<directory>/private/  the signing key (0700); never served
"""

import gzip
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import FleetctlError
from fleetctl.lab.packages.table import Package, packages
from fleetctl.lab.packages.trees import lay_out

SUITE = "stable"
COMPONENTS = ("main", "lab", "multiverse")
DEFAULT_COMPONENTS = ("main", "lab")
KEY_FILE = "nvidia-archive-keyring.asc"
TOOLS = {"dpkg-deb": "dpkg", "apt-ftparchive": "apt-utils", "gpg": "gpg", "gcc": "gcc and libc6-dev"}
COMMAND_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Offer:
    """One package of the index."""

    name: str
    version: str
    component: str
    file: Path

    @property
    def upstream(self) -> str:
        """The version without epoch and revision."""
        return self.version.rpartition(":")[2].rpartition("-")[0] or self.version


@dataclass(frozen=True, slots=True)
class Repository:
    """A written repository: serve `public`, trust `key_file`."""

    directory: Path
    offers: tuple[Offer, ...]
    suite: str = SUITE
    components: tuple[str, ...] = COMPONENTS

    @property
    def public(self) -> Path:
        return self.directory / "public"

    @property
    def key_file(self) -> Path:
        return self.public / KEY_FILE

    def source(self, uri: str, signed_by: str, components: Sequence[str] = DEFAULT_COMPONENTS) -> str:
        """A deb822 source for /etc/apt/sources.list.d/: `uri` shows `public`, `signed_by` is the key on the node.

        The component multiverse holds a trap (README.md beside the package sources) and is off unless asked for.
        """
        where = f"Types: deb\nURIs: {uri}\nSuites: {self.suite}\nComponents: {' '.join(components)}\n"
        return f"{where}Signed-By: {signed_by}\n"


def missing_tools() -> list[str]:
    """Debian packages that must be installed before a repository can be built here."""
    return [package for tool, package in TOOLS.items() if shutil.which(tool) is None]


def build_repository(directory: Path, kernel: str) -> Repository:
    """Build, index and sign the whole repository for nodes whose `uname -r` is `kernel`. `directory` is made anew."""
    missing = missing_tools()
    if missing:
        raise FleetctlError(f"the lab's repository can't be built: install {', '.join(missing)}")
    architecture = _run(["dpkg", "--print-architecture"]).strip()
    if directory.exists():
        if any(directory.iterdir()) and not (directory / "public" / "dists").is_dir():
            raise FleetctlError(f"{directory} holds something else than a lab repository: choose another directory")
        shutil.rmtree(directory)
    public, private = directory / "public", directory / "private"
    for component in COMPONENTS:
        (public / "pool" / component).mkdir(parents=True)
    private.mkdir(mode=0o700)
    with tempfile.TemporaryDirectory(prefix="fleetctl-debs-") as work:
        trees = Path(work)

        def build(numbered: tuple[int, Package]) -> None:
            number, package = numbered
            _build_deb(package, trees / str(number), public / "pool" / package.component / package.file_name)

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(build, enumerate(packages(kernel, architecture))))
    _make_key(private, public / KEY_FILE)
    return _index(directory, architecture)


def open_repository(directory: Path) -> Repository:
    """The repository that `build_repository` wrote there."""
    public = directory / "public"
    if not (public / "dists" / SUITE / "InRelease").is_file():
        raise FleetctlError(f"{directory} holds no lab repository: build one first")
    return Repository(directory=directory, offers=tuple(_offers(public)))


def withdraw(repository: Repository, version: str) -> Repository:
    """Take every package of a driver version out of the pool and sign a new index: as if NVIDIA had deleted it."""
    gone = [offer for offer in repository.offers if version in (offer.upstream, offer.version)]
    if not gone:
        raise FleetctlError(f"{version} is not in the repository at {repository.directory}")
    for offer in gone:
        offer.file.unlink()
    return _index(repository.directory, _run(["dpkg", "--print-architecture"]).strip())


def _build_deb(package: Package, tree: Path, deb: Path) -> None:
    tree.mkdir(mode=0o755)
    lay_out(package, tree)
    # gzip at its fastest: the packages are small and built for every lab.
    _run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(deb)])
    shutil.rmtree(tree)


def _index(directory: Path, architecture: str) -> Repository:
    public = directory / "public"
    dists = public / "dists" / SUITE
    shutil.rmtree(dists, ignore_errors=True)
    for component in COMPONENTS:
        binary = dists / component / f"binary-{architecture}"
        binary.mkdir(parents=True)
        index = _run(["apt-ftparchive", "packages", f"pool/{component}"], cwd=public)
        (binary / "Packages").write_text(index)
        (binary / "Packages.gz").write_bytes(gzip.compress(index.encode(), mtime=0))
    facts = {
        "Origin": "NVIDIA",
        "Label": "NVIDIA CUDA",
        "Suite": SUITE,
        "Codename": SUITE,
        "Architectures": architecture,
        "Components": " ".join(COMPONENTS),
        "Description": "stand-in packages of the fleetctl lab",
    }
    options = [part for key, value in facts.items() for part in ("-o", f"APT::FTPArchive::Release::{key}={value}")]
    (dists / "Release").write_text(_run(["apt-ftparchive", *options, "release", str(dists)]))
    _sign(directory / "private" / "key.asc", dists)
    return Repository(directory=directory, offers=tuple(_offers(public)))


def _offers(public: Path) -> Iterator[Offer]:
    for index in sorted((public / "dists" / SUITE).glob("*/binary-*/Packages")):
        component = index.parent.parent.name
        for stanza in index.read_text().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
            if fields:
                yield Offer(fields["Package"], fields["Version"], component, public / fields["Filename"])


@contextmanager
def _gpg_home() -> Iterator[Path]:
    """A home of its own for one use: short (an agent's socket path is limited), and no agent stays behind."""
    with tempfile.TemporaryDirectory(prefix="fgpg-") as home:
        try:
            yield Path(home)
        finally:
            subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, timeout=COMMAND_TIMEOUT_S)


def _gpg(home: Path, *arguments: str) -> str:
    quiet = ("--batch", "--quiet", "--yes", "--pinentry-mode", "loopback")
    return _run(["gpg", "--homedir", str(home), *quiet, *arguments])


def _make_key(private: Path, public_key: Path) -> None:
    with _gpg_home() as home:
        name = "fleetctl lab repository <lab@fleetctl.invalid>"
        _gpg(home, "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "never")
        public_key.write_text(_gpg(home, "--armor", "--export"))
        secret = private / "key.asc"
        secret.touch(mode=0o600)
        secret.write_text(_gpg(home, "--passphrase", "", "--armor", "--export-secret-keys"))


def _sign(secret: Path, dists: Path) -> None:
    with _gpg_home() as home:
        _gpg(home, "--import", str(secret))
        _gpg(home, "--clearsign", "--output", str(dists / "InRelease"), str(dists / "Release"))
        _gpg(home, "--armor", "--detach-sign", "--output", str(dists / "Release.gpg"), str(dists / "Release"))


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise FleetctlError(f"{command[0]} failed ({done.returncode}): {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout
