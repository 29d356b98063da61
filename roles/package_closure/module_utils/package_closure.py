"""One exact set of packages, judged from what dpkg and apt have printed. Nothing is run, read or written here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

Closure = dict[str, str]
"""Versions by name; a foreign architecture is part of the name (name:i386), the machine's own is not."""

# dpkg-query reads the escape itself.
SHOW_FORMAT = "${db:Status-Want}|${db:Status-Status}|${binary:Package}|${Version}|${Architecture}\\n"
_ABSENT = ("not-installed", "config-files")
_HALFWAY = ("half-", "unpacked", "triggers-")
# Versions as upstream wrote them: without epoch and packagers' revision.
_NOT_UPSTREAM = re.compile(r"^[0-9]+:|-[^-]*$")
_BRANCH = re.compile(r"-[0-9]+$")
# `Inst name [old] (new origin [architecture])`, `Remv name [old]`, `Purg name [old]`: pkgSimulate of
# apt-pkg/algorithms.cc.
_INST = re.compile(r"^Inst (\S+)(?: \[[^\]]*\])? \((\S+) ", re.MULTILINE)
_REMV = re.compile(r"^(?:Remv|Purg) (\S+)", re.MULTILINE)
# apt writes name_version_architecture.deb.
_FILE = re.compile(r"([^_]+)_([^_]+)_([^_]+)\.deb")


class Refused(Exception):
    """Why nothing is changed, in one line."""


@dataclass(frozen=True)
class Declared:
    """The set as the calling role declares it; the role's README says what each option means.

    Patterns are extended regular expressions for a whole name.
    """

    owner: str
    version: str
    members: str
    roots: list[list[str]]
    independent: str
    may_remove: str
    moves_along: bool
    exact: Closure | None
    exact_held: list[str] | None
    way_back: Closure | None
    needs_way_back: bool
    repository: dict[str, Any]
    recommends: bool
    adopt_holds: bool
    lock_timeout_s: int
    install_timeout_s: int

    def is_member(self, name: str) -> bool:
        return is_named(self.members, name)

    @property
    def what(self) -> str:
        return f"{self.owner} {self.version}"


class Row(NamedTuple):
    """A package in the package database; `want` and `state` are dpkg's words, such as hold and half-installed."""

    want: str
    state: str
    name: str
    version: str


class Database(NamedTuple):
    native: str
    rows: list[Row]
    """Every package that left anything but its configuration."""

    def half_configured(self) -> list[str]:
        return [row.name for row in self.rows if row.state.startswith(_HALFWAY)]


@dataclass(frozen=True)
class Found:
    """What of the set is on the node."""

    packages: Closure
    broken: list[str]
    held: list[str]


class Offer(NamedTuple):
    name: str
    version: str
    origin: str


def is_named(pattern: str, name: str) -> bool:
    return re.match(rf"^(?:{pattern})(?::[a-z0-9]+)?$", name) is not None


def listed(closure: Mapping[str, str]) -> list[str]:
    return [f"{name}={version}" for name, version in sorted(closure.items())]


def upstream(version: str) -> str:
    return _NOT_UPSTREAM.sub("", version)


def read_database(text: str) -> Database:
    """From `dpkg-query --show` in SHOW_FORMAT; dpkg's own row tells the machine's architecture."""
    columns = [line.split("|") for line in text.splitlines() if line.count("|") == 4]
    native = next((architecture for _, _, name, _, architecture in columns if name == "dpkg"), "")
    if not native:
        raise Refused("dpkg-query lists no dpkg: the package database of this node can't be read")
    rows = [Row(want, state, name, version) for want, state, name, version, _ in columns if state not in _ABSENT]
    return Database(native, [row._replace(name=row.name.removesuffix(f":{native}")) for row in rows])


def without_native(declared: Declared, native: str) -> Declared:
    """Closures are recorded elsewhere, where the machine's own architecture may be part of a name."""

    def plain(closure: Closure | None) -> Closure | None:
        return None if closure is None else {name.removesuffix(f":{native}"): v for name, v in closure.items()}

    held = declared.exact_held
    return replace(
        declared,
        exact=plain(declared.exact),
        way_back=plain(declared.way_back),
        exact_held=None if held is None else [name.removesuffix(f":{native}") for name in held],
    )


def find(declared: Declared, database: Database) -> Found:
    rows = [row for row in database.rows if declared.is_member(row.name)]
    return Found(
        packages={row.name: row.version for row in rows},
        broken=[row.name for row in rows if row.state != "installed"],
        held=[row.name for row in rows if row.want == "hold"],
    )


def roots_of(declared: Declared, found: Found) -> list[list[str]]:
    """What to ask for: each root is a list of names, of which one must be there at the declared version."""
    if not declared.moves_along:
        return declared.roots
    asked = {_BRANCH.sub("", name) for root in declared.roots for name in root}
    stems = list(dict.fromkeys(_BRANCH.sub("", name) for name in found.packages))
    branch = declared.version.split(".")[0]
    return declared.roots + [[f"{stem}-{branch}", stem] for stem in stems if stem not in asked]


def is_current(declared: Declared, found: Found) -> bool:
    if found.broken:
        return False
    if declared.exact is not None:
        return found.packages == declared.exact
    fitting = {name for name, version in found.packages.items() if upstream(version) == declared.version}
    strays = [name for name in found.packages if name not in fitting and not is_named(declared.independent, name)]
    return not strays and all(fitting.intersection(root) for root in roots_of(declared, found))


def require_unobstructed(declared: Declared, database: Database, found: Found, pins: str) -> None:
    """No package is half-configured, and every hold in the set is ours: pinned by an earlier run."""
    # The way back may start from a half-configured set: it replaces or removes every one of its packages.
    broken = [name for name in database.half_configured() if declared.exact is None or name not in found.broken]
    if broken:
        raise Refused(
            f"packages are half-configured: {', '.join(broken)}; "
            "look with dpkg --audit, finish with dpkg --configure -a"
        )
    ours = set(re.findall(r"(?m)^Package: (\S+)", pins))
    foreign = [name for name in found.held if name not in ours]
    if foreign and not declared.adopt_holds:
        raise Refused(
            f"held by somebody else: {', '.join(foreign)}; release with apt-mark unhold, or set "
            f"{declared.owner}_adopt_holds to take the holds over"
        )


def read_offers(madison: str) -> list[Offer]:
    """From `apt-cache madison`: lines of three columns, name | version | where from."""
    columns = [[column.strip() for column in line.split("|")] for line in madison.splitlines()]
    return [Offer(*row) for row in columns if len(row) == 3]


def choose_targets(declared: Declared, roots: list[list[str]], offers: list[Offer]) -> list[str]:
    """Of each root the first name that is offered at the version, as name=version; the best build comes first."""
    repository = declared.repository
    origin = str(repository.get("uri") or "").rstrip("/") if repository.get("state") != "absent" else ""
    fitting: Closure = {}
    for name, version, place in offers:
        if upstream(version) == declared.version and origin in place:
            fitting.setdefault(name, version)
    chosen = [next((name for name in root if name in fitting), None) for root in roots]
    if None in chosen:
        raise Refused(
            f"{declared.what} is in no repository of this node (asked for {', '.join(map(' or '.join, roots))}; "
            f"offered: {', '.join(dict.fromkeys(f'{o.name}={o.version}' for o in offers)) or 'nothing'})"
        )
    return [f"{name}={fitting[name]}" for name in chosen if name]


def resolve_pins(declared: Declared, targets: list[str]) -> str:
    """Preferences for the simulation that resolves: the first root's build before other builds of the version."""
    build = targets[0].partition("=")[2]
    wishes = [(build, 1002), (f"{declared.version}-*", 1001), (declared.version, 1001)]
    return "\n".join(
        f"Package: /^({declared.members})$/\nPin: version {version}\nPin-Priority: {priority}\n"
        for version, priority in wishes
    )


def without_set(declared: Declared, status: str) -> str:
    """dpkg's status file as of a system without the set, so that its history has no say in what is resolved."""
    leaving = rf"(?m)^Package: (?:{declared.members}|{declared.may_remove})$"
    return "\n\n".join(part for part in status.split("\n\n") if not re.search(leaving, part))


def resolved(declared: Declared, simulation: str) -> Closure:
    return {name: version for name, version in _INST.findall(simulation) if declared.is_member(name)}


def require_transaction(declared: Declared, found: Found, packages: Closure, simulation: str) -> None:
    """It removes nothing beyond the set and ends with exactly these packages."""
    removed = list(dict.fromkeys(_REMV.findall(simulation)))
    beyond = [n for n in removed if not declared.is_member(n) and not is_named(declared.may_remove, n)]
    if beyond:
        raise Refused(f"{declared.what}: the change would also remove {', '.join(beyond)}")
    kept = {name: version for name, version in found.packages.items() if name not in removed}
    end = {**kept, **resolved(declared, simulation)}
    if end != packages:
        differing = sorted({*listed(end)} ^ {*listed(packages)})
        raise Refused(f"{declared.what}: apt would end with other packages than asked for: {', '.join(differing)}")


def told_by_apt(out: str, err: str) -> str:
    """Why apt-get says no: the lines on dependencies and the errors."""
    lines = [line.strip() for line in out.splitlines() if re.search("epends|onflicts|reaks", line)]
    return " ".join([*filter(None, ["; ".join(lines)]), *(line for line in err.splitlines() if line.startswith("E:"))])


def kept_files(paths: Iterable[str], native: str) -> dict[str, str]:
    """Paths by name=version; the colon of an epoch is written %3a."""
    kept = {}
    for path in paths:
        match = _FILE.fullmatch(PurePath(path).name.replace("%3a", ":"))
        if match:
            name, version, architecture = match.groups()
            foreign = "" if architecture in (native, "all") else f":{architecture}"
            kept[f"{name}{foreign}={version}"] = path
    return kept


def compose(declared: Declared, found: Found, packages: Closure, kept: Mapping[str, str]) -> list[str]:
    """Words for apt-get install. On the way back the kept file is the surest source, forward the signed index is."""
    from_file = [] if declared.exact is None else [wanted for wanted in listed(packages) if wanted in kept]
    return [
        *(kept[wanted] for wanted in from_file),
        *(wanted for wanted in listed(packages) if wanted not in from_file),
        *(f"{name}-" for name in found.packages if name not in packages),
    ]


def split_way_back(way_back: Closure, kept: Mapping[str, str], offers: list[Offer]) -> tuple[list[str], list[str]]:
    """Packages of which a file can be kept now, and those that are lost: neither kept nor offered."""
    offered = {f"{offer.name}={offer.version}" for offer in offers}
    missing = [package for package in listed(way_back) if package not in kept]
    return [p for p in missing if p in offered], [p for p in missing if p not in offered]


def no_way_back(lost: list[str]) -> str:
    verb = " is" if len(lost) == 1 else f" and {len(lost) - 1} more are"
    return f"no way back: {lost[0]}{verb} in no repository"


def pins(declared: Declared, packages: Closure) -> str:
    head = f"# Written by fleetctl's role {declared.owner}: its exact packages, also held\n"
    each = (f"\nPackage: {n}\nPin: version {v}\nPin-Priority: 1001\n" for n, v in sorted(packages.items()))
    return head + "".join(each)


def source(declared: Declared, keyring: str) -> str:
    repository = declared.repository
    components = repository.get("components") or []
    return (
        f"# Written by fleetctl's role {declared.owner}: {declared.owner}_repository\n"
        f"Types: deb\nURIs: {repository['uri']}\nSuites: {' '.join(repository.get('suites') or ['/'])}\n"
        + (f"Components: {' '.join(components)}\n" if components else "")
        + f"Signed-By: {keyring}\n"
    )


def to_hold(declared: Declared, packages: Closure) -> list[str]:
    return list(packages) if declared.exact is None or declared.exact_held is None else declared.exact_held
