"""Which packages this node could not get any more: no repository of it offers them at that version.

Runs on the node's own Python (3.6 or newer), standard library alone, as root: `python3 - < offers.py`. Nothing of the
package manager's own is written: indexes, caches and logs go into a temporary directory that is removed at the end.
One line of JSON on stdout; README.md beside this file describes it.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

PARAMETERS = "{}"

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMIT_S = 180.0
# apt-get(8) ends well though one index could not be had; with an error for that it would keep none of the others.
FAILED_UPDATE = r"^(Err:|E: |Error: |(W|Warning): (Failed to fetch|Some index files))"
# A child in D state outlives SIGKILL: it gets this long to go, then it is left alone.
AFTER_KILL_S = 1.0


class Unread(Exception):
    """Nothing can be said of the repositories, and why."""


class Ran:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def why(self) -> str:
        """The first line that looks like the reason, else the last words."""
        lines = [line.strip() for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        named = [line for line in lines if re.match(r"E: |Error|Err:|W: Failed", line)]
        return (named or lines[-1:] or ["exit %d without a word" % self.code])[0][:300]


class Runner:
    """Starts commands that write below `scratch` only, all together for `limit_s`."""

    def __init__(self, scratch: str, path: str, limit_s: float) -> None:
        self.scratch = scratch
        self._until = time.time() + limit_s
        self._limit_s = limit_s
        # Proxies may come from the environment, as they do for Ansible.
        self._environment = dict(os.environ, PATH=path, LC_ALL="C", LANG="C", DEBIAN_FRONTEND="noninteractive")
        self._environment["TMPDIR"] = self.directory("tmp", 0o1777)

    def directory(self, name: str, mode: int = 0o755) -> str:
        path = os.path.join(self.scratch, name)
        os.makedirs(path)
        os.chmod(path, mode)
        return path

    def run(self, argv: List[str], **environment: str) -> Ran:
        """Unread where it can't be started or does not end in time."""
        what = " ".join([word for word in argv if not word.startswith("-")][:2])
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(self._environment, **environment),
                start_new_session=True,
            )
        except OSError as error:
            raise Unread("%s: %s" % (what, error.strerror)) from None
        try:
            out, err = child.communicate(timeout=max(0.1, self._until - time.time()))
        except subprocess.TimeoutExpired:
            raise Unread("%s did not end within %g s" % (what, self._limit_s)) from None
        finally:
            if child.returncode is None:
                end(child)
        return Ran(child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def end(child: Any) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=AFTER_KILL_S)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        pass


# --- apt


def ask_apt(runner: Runner, wanted: Dict[str, str], uris: List[str]) -> List[str]:
    """What no repository offers, as name=version. Unread where a repository that can't be read may have it."""
    native = checked(runner.run(["dpkg", "--print-architecture"]), "dpkg --print-architecture").out.strip()
    names = {re.sub(":%s$" % re.escape(native), "", name): version for name, version in wanted.items()}
    config = write_apt_config(runner)
    update = runner.run(["apt-get", "-q", "update"], APT_CONFIG=config)
    madison = checked(runner.run(["apt-cache", "madison", *sorted(names)], APT_CONFIG=config), "apt-cache madison")
    # Three columns: name | version | where from.
    rows = [[column.strip() for column in line.split("|")] for line in madison.out.splitlines()]
    offered = {(row[0], row[1]) for row in rows if len(row) == 3}
    lost = ["%s=%s" % package for package in sorted(names.items()) if package not in offered]

    said = update.out + "\n" + update.err
    if lost and (update.code != 0 or re.search(FAILED_UPDATE, said, re.MULTILINE)):
        raise Unread("apt-get update: %s" % update.why)
    if lost and uris:
        targets = runner.run(["apt-get", "indextargets", "--format", "$(REPO_URI)"], APT_CONFIG=config)
        known = {uri.rstrip("/") for uri in checked(targets, "apt-get indextargets").out.split()}
        require_declared([uri for uri in uris if uri.rstrip("/") not in known])
    return lost


def write_apt_config(runner: Runner) -> str:
    """The node's own configuration but for hooks and all places that apt writes to; only lists of packages are read."""
    dump = checked(runner.run(["apt-config", "dump"]), "apt-config dump").out
    left_out = (
        r"(?i)APT::Update::|DPkg::|Acquire::Languages|Acquire::IndexTargets::|Dir::Etc::(main|parts)\b|Dir::Cache"
    )
    kept = [line for line in dump.splitlines() if re.match(r'\S+ "[^"]*";$', line) and not re.match(left_out, line)]
    runner.directory("lists/partial")
    own = {
        "Dir::Etc::main": "/dev/null",
        "Dir::Etc::parts": runner.directory("apt.conf.d"),
        "Dir::State::lists": os.path.join(runner.scratch, "lists") + "/",
        "Dir::Cache": runner.directory("cache") + "/",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb-src::Sources::DefaultEnabled": "false",
        # A dead repository must not use up the time of the others; another node is asked soon enough.
        "Acquire::Retries": "0",
        "Acquire::http::Timeout": "15",
        "Acquire::https::Timeout": "15",
    }
    path = os.path.join(runner.scratch, "apt.conf")
    with open(path, "w") as stream:
        stream.write("\n".join(kept + ['%s "%s";' % item for item in sorted(own.items())]) + "\n")
    return path


# --- dnf


def ask_dnf(runner: Runner, wanted: Dict[str, str], uris: List[str]) -> List[str]:
    """What no repository offers, as name-version-release."""
    # name-version-release, as the roles ask: an epoch is not part of it.
    specs = sorted("%s-%s" % (name, re.sub("^[0-9]+:", "", version)) for name, version in wanted.items())
    private = "cachedir=%s" % runner.directory("cache"), "logdir=%s" % runner.directory("log")
    options = ["--setopt=%s" % option for option in (*private, "*.skip_if_unavailable=0")]
    query = ["repoquery", "--available", "--queryformat", "%{name}-%{version}-%{release}", *specs]
    ran = runner.run(["dnf", "--quiet", "--disableplugin=versionlock", *options, *query])
    offered = set(checked(ran, "dnf repoquery").out.split())
    lost = [spec for spec in specs if spec not in offered]
    if lost and uris:
        declared = "".join(read_text(path) for path in sorted(glob.glob("/etc/yum.repos.d/*.repo")))
        require_declared([uri for uri in uris if uri.rstrip("/") not in declared])
    return lost


def read_text(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:
        return ""


# --- both


def checked(ran: Ran, what: str) -> Ran:
    if ran.code != 0:
        raise Unread("%s: %s" % (what, ran.why))
    return ran


def require_declared(absent: List[str]) -> None:
    """The preflight declares a repository before it asks; here the node is left as it is."""
    if absent:
        raise Unread("%s is declared, but not on the node yet" % ", ".join(absent))


def find_lost(parameters: Dict[str, Any]) -> Dict[str, Any]:
    path = str(parameters.get("path") or PATH)
    manager = next((name for name in ("apt-get", "dnf") if shutil.which(name, path=path)), "")
    wanted = {name: version for packages in parameters["packages"].values() for name, version in packages.items()}
    uris = [str(uri) for uri in parameters.get("repositories", [])]
    said: Dict[str, Any] = {"manager": manager, "lost": [], "unknown": ""}
    scratch = tempfile.mkdtemp(prefix="fleetctl-offers-")
    try:
        os.chmod(scratch, 0o711)  # apt downloads as a user of its own
        runner = Runner(scratch, path, float(parameters.get("limit_s", LIMIT_S)))
        if not manager:
            raise Unread("neither apt-get nor dnf on this node")
        said["lost"] = (ask_apt if manager == "apt-get" else ask_dnf)(runner, wanted, uris)
    except Unread as reason:
        said["unknown"] = str(reason)
    finally:
        shutil.rmtree(scratch)
    return said


def leave(number: int, _frame: Any) -> None:
    sys.exit(128 + number)  # an ordinary exit: the temporary directory goes, and what was started


def main(parameters: Dict[str, Any]) -> None:
    started = time.time()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)
    said = find_lost(parameters)
    said.update({"schema": 1, "uid": os.geteuid(), "took_s": round(time.time() - started, 2)})
    sys.stdout.write(json.dumps(said, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(json.loads(PARAMETERS))
