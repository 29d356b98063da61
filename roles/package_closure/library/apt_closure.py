#!/usr/bin/python
"""One step of the role package_closure where apt is the package manager; the role's README says what each step does."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.package_closure import (
    SHOW_FORMAT,
    Closure,
    Database,
    Declared,
    Found,
    Refused,
    choose_targets,
    compose,
    find,
    is_current,
    kept_files,
    listed,
    no_way_back,
    pins,
    read_database,
    read_offers,
    require_transaction,
    require_unobstructed,
    resolve_pins,
    resolved,
    roots_of,
    source,
    split_way_back,
    to_hold,
    told_by_apt,
    without_native,
    without_set,
)

DOCUMENTATION = r"""
module: apt_closure
short_description: One step towards an exact set of packages, with apt
description:
  - Returns C(is_current) and C(packages), the closure as C({name: version}).
options:
  step:
    description: C(read) changes nothing; C(preflight) nothing that is installed, pinned or held; C(install) does it.
    type: str
    choices: [read, preflight, install]
    required: true
  set:
    description: The options of the role package_closure, without their prefix.
    type: dict
    required: true
  packages:
    description: The closure that the preflight has resolved.
    type: dict
author: The fleetctl authors
"""

SIMULATION_LIMIT_S = 300
AFTER_TERM_S = 60
NEXT_TRY_S = 3
ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    # l: list what needs a restart, restart nothing (needrestart(1)); the node reboots anyway.
    "NEEDRESTART_MODE": "l",
    "UCF_FORCE_CONFFOLD": "1",
    "LC_ALL": "C.UTF-8",
}


class AptClosure:
    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.declared = Declared(**module.params["set"])
        mark = f"fleetctl-{self.declared.owner}"
        self.cache = Path("/var/cache/fleetctl", self.declared.owner)
        self.preferences = Path("/etc/apt/preferences.d", f"{mark}.pref")
        self.sources = Path("/etc/apt/sources.list.d", f"{mark}.sources")
        self.changed = False
        self.diffs: list[dict[str, str]] = []

    # --- the steps

    def read(self) -> tuple[Found, Closure]:
        found, _ = self.look()
        return found, found.packages if self.declared.exact is None else self.declared.exact

    def preflight(self) -> tuple[Found, Closure]:
        found, database = self.look()
        packages = found.packages if self.declared.exact is None else self.declared.exact
        if is_current(self.declared, found):
            return found, packages
        require_unobstructed(self.declared, database, found, text_of(self.preferences))
        self.declare_repository()
        if not self.module.check_mode:
            packages = self.prepare(found, packages, database.native)
        if self.declared.way_back is not None and self.declared.exact is None:
            self.keep_way_back(self.declared.way_back, packages, database.native)
        return found, packages

    def install(self) -> tuple[Found, Closure]:
        found, database = self.look()
        packages: Closure = self.module.params["packages"]
        if not is_current(self.declared, found):
            self.changed = True
            if self.module.check_mode:
                return found, packages
            words = compose(self.declared, found, packages, self.kept(database.native))
            self.apt_get("install", words, self.declared.install_timeout_s)
            found, _ = self.look()
        if found.broken or found.packages != packages:
            broken = f"{', '.join(found.broken)} is half-configured" if found.broken else "the set is not as asked for"
            raise Refused(f"{self.declared.owner}: after the transaction {broken}")
        self.write(self.preferences, pins(self.declared, packages))
        self.hold(found, to_hold(self.declared, packages))
        return found, packages

    # --- what a preflight does

    def declare_repository(self) -> None:
        repository = self.declared.repository
        if not repository:
            return
        keyring = Path(repository["keyring"])
        if repository.get("state") != "absent":
            self.write(self.sources, source(self.declared, str(keyring)))
            return
        self.remove(self.sources)
        self.remove(keyring)

    def prepare(self, found: Found, packages: Closure, native: str) -> Closure:
        """Resolve, simulate, download."""
        (self.cache / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        kept = self.kept(native)
        # A way back whose files are all here must not wait for a repository, which may be gone.
        if self.declared.exact is None or not kept.keys() >= {*listed(packages)}:
            self.update_index()
        if self.declared.exact is None:
            packages = self.resolve(found)
        words = compose(self.declared, found, packages, kept)
        code, out, err = self.try_apt_get("install", ["--simulate", *words], SIMULATION_LIMIT_S)
        if code != 0:
            raise Refused(f"{self.declared.what}: apt would refuse the change: {told_by_apt(out, err)}")
        require_transaction(self.declared, found, packages, out)
        said = self.apt_get("install", ["--download-only", *words], self.declared.install_timeout_s)
        self.changed = self.changed or "Need to get 0 B" not in said
        return packages

    def update_index(self) -> None:
        until = time.monotonic() + self.declared.lock_timeout_s
        while True:
            # apt-get(8) ends well though a list could not be had, unless told otherwise (since 2.1.12).
            words = ["-o", "APT::Update::Error-Mode=any"]
            code, out, err = self.try_apt_get("update", words, self.declared.install_timeout_s)
            if code == 0:
                return
            # It does not wait for the lock of the lists as it does for dpkg's.
            if "Could not get lock" not in err or time.monotonic() >= until:
                self.fail(code, out, err)
            time.sleep(NEXT_TRY_S)

    def resolve(self, found: Found) -> Closure:
        """The closure that apt would install on a system without the set."""
        roots = roots_of(self.declared, found)
        names = [name for root in roots for name in root]
        targets = choose_targets(self.declared, roots, self.offers(names))
        with tempfile.TemporaryDirectory(dir=self.cache) as scratch:
            status = Path("/var/lib/dpkg/status").read_text(encoding="utf-8", errors="surrogateescape")
            rest = without_set(self.declared, status)
            (Path(scratch) / "status").write_text(rest, encoding="utf-8", errors="surrogateescape")
            (Path(scratch) / "preferences.d").mkdir()
            (Path(scratch) / "preferences.d" / "resolve.pref").write_text(resolve_pins(self.declared, targets))
            options = [
                f"Dir::State::status={scratch}/status",
                f"Dir::Etc::PreferencesParts={scratch}/preferences.d",
                "Dir::Cache::pkgcache=",
                "Dir::Cache::srcpkgcache=",
            ]
            private = [word for option in options for word in ("-o", option)]
            code, out, err = self.try_apt_get("install", ["--simulate", *private, *targets], SIMULATION_LIMIT_S)
        if code != 0:
            raise Refused(f"{self.declared.what} can't be installed: {told_by_apt(out, err)}")
        return resolved(self.declared, out)

    def keep_way_back(self, way_back: Closure, packages: Closure, native: str) -> None:
        """A file of each package that is there now; fleetctl/probe/offers.py asks the same before any drain."""
        kept = self.kept(native)
        to_keep, lost = split_way_back(way_back, kept, self.offers(list(way_back)))
        if lost and self.declared.needs_way_back:
            raise Refused(no_way_back(lost))
        if self.module.check_mode:
            return
        if to_keep:
            self.changed = True
            self.apt_get("download", to_keep, self.declared.install_timeout_s, self.cache / "archives")
        needed = {*listed(way_back), *listed(packages)}
        for package, path in kept.items():
            if package not in needed:
                self.remove(Path(path))

    # --- what is there

    def look(self) -> tuple[Found, Database]:
        shown = self.command(["dpkg-query", "--show", "--showformat", SHOW_FORMAT])
        database = read_database(shown)
        self.declared = without_native(self.declared, database.native)
        return find(self.declared, database), database

    def kept(self, native: str) -> dict[str, str]:
        paths = sorted((self.cache / "archives").glob("*.deb"))
        kept: dict[str, str] = kept_files([str(path) for path in paths], native)
        return kept

    def offers(self, names: list[str]) -> list[Any]:
        return read_offers(self.command(["apt-cache", "madison", *names])) if names else []

    # --- what is changed

    def hold(self, found: Found, wanted: list[str]) -> None:
        for verb, names in (
            ("hold", sorted({*wanted} - {*found.held})),
            ("unhold", sorted({*found.held} - {*wanted})),
        ):
            if names:
                self.changed = True
                if not self.module.check_mode:
                    self.command(["apt-mark", verb, *names])

    def write(self, path: Path, content: str) -> None:
        before = text_of(path)
        if before == content:
            return
        self.changed = True
        self.diffs.append({"before_header": str(path), "after_header": str(path), "before": before, "after": content})
        if self.module.check_mode:
            return
        with tempfile.NamedTemporaryFile("w", dir=self.module.tmpdir, delete=False) as stream:
            stream.write(content)
        Path(stream.name).chmod(0o644)
        self.module.atomic_move(stream.name, str(path))

    def remove(self, path: Path) -> None:
        if path.exists():
            self.changed = True
            if not self.module.check_mode:
                path.unlink()

    # --- commands

    def apt_get(self, verb: str, words: list[str], limit_s: int, directory: Path | None = None) -> str:
        code, out, err = self.try_apt_get(verb, words, limit_s, directory)
        if code != 0:
            self.fail(code, out, err)
        return out

    def try_apt_get(
        self, verb: str, words: list[str], limit_s: int, directory: Path | None = None
    ) -> tuple[int, str, str]:
        """Exit code, stdout, stderr; refused where it does not end within the limit."""
        options = [
            f"DPkg::Lock::Timeout={self.declared.lock_timeout_s}",
            "Dpkg::Use-Pty=0",
            "Dpkg::Options::=--force-confdef",
            "Dpkg::Options::=--force-confold",
            # Downloads stay here: the way back must not depend on what a repository still offers.
            f"Dir::Cache::Archives={self.cache}/archives/",
        ]
        argv = ["timeout", f"--kill-after={AFTER_TERM_S}", str(limit_s), "apt-get", verb, "--yes"]
        argv += [word for option in options for word in ("-o", option)]
        if verb == "install":
            recommends = "--install-recommends" if self.declared.recommends else "--no-install-recommends"
            argv += [recommends, "--allow-downgrades", "--allow-change-held-packages", "--purge"]
        code, out, err = self.run([*argv, *words], directory)
        if code in (124, 137):  # timeout(1): it had to send TERM, or KILL
            self.stopped(verb, words, limit_s)
        return code, out, err

    def stopped(self, verb: str, words: list[str], limit_s: int) -> None:
        found, _ = self.look()
        what = "the download" if "--download-only" in words else f"apt-get {verb}"
        told = f"{self.declared.what}: {what} did not end within {limit_s} s and was stopped"
        raise Refused(f"{told}; half-configured: {', '.join(found.broken)}" if found.broken else told)

    def command(self, argv: list[str]) -> str:
        code, out, err = self.run(argv)
        if code != 0:
            self.fail(code, out, err)
        return out

    def run(self, argv: list[str], directory: Path | None = None) -> tuple[int, str, str]:
        code, out, err = self.module.run_command(
            argv, environ_update=ENVIRONMENT, cwd=directory and str(directory), expand_user_and_vars=False
        )
        return int(code), str(out), str(err)

    def fail(self, code: int, out: str, err: str) -> None:
        self.module.fail_json(msg="non-zero return code", rc=code, stdout=out, stderr=err, changed=self.changed)


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "required": True, "choices": ["read", "preflight", "install"]},
            "set": {"type": "dict", "required": True},
            "packages": {"type": "dict"},
        },
        required_if=[("step", "install", ["packages"])],
        supports_check_mode=True,
    )
    if not shutil.which("apt-get"):
        module.fail_json(msg="no apt-get on this node")
    closure = AptClosure(module)
    try:
        found, packages = getattr(closure, module.params["step"])()
    except Refused as reason:
        module.fail_json(msg=str(reason), changed=closure.changed)
    module.exit_json(
        changed=closure.changed,
        is_current=is_current(closure.declared, found),
        packages=packages,
        diff=closure.diffs,
    )


if __name__ == "__main__":
    main()
