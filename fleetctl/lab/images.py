"""The images of the lab, made from the distribution's packages alone and named by the content they come from.

base (mmdebstrap, kept as a tar)  ->  head (database, scheduler, web server)
                                  ->  bare (a node without NVIDIA packages)  ->  node (driver and fabric manager)
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetctl.errors import FleetctlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fleetctl.lab.engine import Engine
    from fleetctl.lab.layout import Release


_MACHINE: Final = Path(__file__).parent / "machine"
_BASE_PACKAGES: Final = (
    "systemd,systemd-sysv,dbus,openssh-server,python3-minimal,python3-apt,iproute2,sudo,kmod,procps,ca-certificates,"
    "slurmd,slurm-client,slurm-wlm-basic-plugins,munge"
)
_HEAD_PACKAGES: Final = "slurmctld slurmdbd mariadb-server nginx-light"
_OWN: Final = "/usr/lib/lab-machine"
_BUILD_S: Final = 900.0


def cache_directory() -> Path:
    """Return where base tars are kept between labs."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "fleetctl" / "lab"


@contextmanager
def building_alone() -> Iterator[None]:
    """Hold the one lock under which images are made and networks chosen: several labs may come up at once."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def head_image(engine: Engine, release: Release, say: Callable[[str], None]) -> str:
    """Return the head's image, made when it is not there. slurmctld may not be older than its nodes' slurmd."""
    base = _base_image(engine, release, say)
    tag = _tag("head", release, base, _HEAD_PACKAGES, _tree("common"), _tree("head"))
    install = "apt-get -qq update --error-on=any", f"apt-get -qq install --yes --no-install-recommends {_HEAD_PACKAGES}"
    return _built(engine, tag, base, steps(*install, *_laid("common", "head"), f"{_OWN}/prepare-head"), say)


def bare_image(engine: Engine, release: Release, say: Callable[[str], None]) -> str:
    """Return the image of a node that has no NVIDIA package yet."""
    base = _base_image(engine, release, say)
    tag = _tag("bare", release, base, _tree("common"), _tree("node"))
    return _built(engine, tag, base, steps(*_laid("common", "node"), f"{_OWN}/prepare-node"), say)


def node_image(
    engine: Engine, release: Release, repository: Path, contents: str, script: str, say: Callable[[str], None]
) -> str:
    """Return the image of a node on which script has installed packages from repository.

    contents names what the repository is made of: signatures and dates in it differ from lab to lab.
    """
    bare = bare_image(engine, release, say)
    tag = _tag("node", release, bare, contents, script)
    return _built(engine, tag, bare, script, say, "--volume", f"{repository}:/srv/packages:ro")


def digest_of(*trees: Path) -> str:
    """Return a digest of every file's name, mode and content below trees."""
    digest = hashlib.sha256()
    for tree in trees:
        for path in sorted([tree] if tree.is_file() else tree.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(tree.parent)} {path.stat().st_mode & 0o100:o}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _tree(name: str) -> str:
    return digest_of(_MACHINE / name)


def _tag(kind: str, release: str, *content: str) -> str:
    digest = hashlib.sha256("\n".join(content).encode()).hexdigest()
    return f"localhost/fleetctl-lab-{kind}:{release}-{digest[:12]}"


def _laid(*trees: str) -> tuple[str, ...]:
    copies = tuple(f"cp -r --no-preserve=ownership /machine/{tree}/. /" for tree in trees)
    return (*copies, f"chmod 0755 {_OWN}/*")


def steps(*commands: str) -> str:
    """A script of which each command must succeed: `set -e` does not see one that fails before the last `&&`."""
    return "\n".join(commands)


def _base_image(engine: Engine, release: Release, say: Callable[[str], None]) -> str:
    tag = _tag("base", release, _BASE_PACKAGES)
    if not _exists(engine, tag):
        tar = _base_tar(release, tag.rpartition("-")[2], say)
        say(f"importing {tar.name}")
        engine.podman("import", "--change", 'CMD=["/sbin/init"]', str(tar), tag, timeout_s=_BUILD_S)
    return tag


def _base_tar(release: Release, digest: str, say: Callable[[str], None]) -> Path:
    tar = cache_directory() / f"{release}-{digest}.tar"
    if tar.exists():
        return tar
    say(f"building {tar.name} with mmdebstrap (about half a minute, kept for later labs)")
    unfinished = tar.with_suffix(".unfinished.tar")
    argv = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={_BASE_PACKAGES}", release, str(unfinished)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        unfinished.unlink(missing_ok=True)
        raise FleetctlError(f"mmdebstrap {release} failed: {_last_lines(done.stderr)}")
    unfinished.rename(tar)
    return tar


def _built(engine: Engine, tag: str, base: str, script: str, say: Callable[[str], None], *options: str) -> str:
    """Return tag, made by running script in a container of base when it is not there.

    A container and a commit rather than a Containerfile: daemons that run in the build (the database) then have
    processes and ports of their own. policy-rc.d answers 101 (not allowed), so packages start none.
    """
    if _exists(engine, tag):
        return tag
    say(f"building {tag.removeprefix('localhost/')}")
    policy = "/usr/sbin/policy-rc.d"
    steps = (
        "set -eu; export DEBIAN_FRONTEND=noninteractive",
        f"printf '#!/bin/sh\\nexit 101\\n' > {policy}; chmod 0755 {policy}",
        script,
        f"rm -rf {policy} /var/lib/apt/lists/* /var/cache/apt/*.bin; apt-get clean",
        # Ansible's cache_valid_time would take an empty new directory for lists that are fresh.
        "touch -d @0 /var/lib/apt/lists",
    )
    name = f"fleetctl-build-{tag.rpartition('-')[2]}"
    engine.attempt("rm", "--force", name)
    volume = ("--volume", f"{_MACHINE}:/machine:ro")
    try:
        done = engine.attempt(
            "run", "--name", name, "--hostname", "build", *volume, *options, base, "sh", "-c", "\n".join(steps),
            timeout_s=_BUILD_S,
        )  # fmt: skip
        log = cache_directory() / "build.log"
        log.write_text(done.stdout + done.stderr)
        if done.returncode != 0:
            raise FleetctlError(f"building {tag} failed: {_last_lines(done.stdout + done.stderr)}. All of it: {log}")
        engine.podman("commit", "--quiet", "--change", 'CMD=["/sbin/init"]', name, tag, timeout_s=_BUILD_S)
    finally:
        engine.attempt("rm", "--force", name)
    return tag


def _exists(engine: Engine, tag: str) -> bool:
    return engine.attempt("image", "exists", tag).returncode == 0


def _last_lines(text: str, count: int = 3) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-count:]) or "it said nothing"
