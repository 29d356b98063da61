"""The package table, expanded: packages.yml plus a kernel release gives every package of the repository."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PAYLOAD = HERE / "payload"
TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """A file of payload/ and where the package lays it."""

    source: str
    target: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True)
class Daemon:
    """A C program of payload/, laid in /usr/bin, and its systemd unit."""

    program: str
    unit: str


@dataclass(frozen=True, slots=True)
class Package:
    """One .deb to build. `upstream` is the driver version its payload carries, "" where it carries none."""

    name: str
    version: str
    architecture: str
    component: str
    summary: str
    upstream: str = ""
    cuda: str = ""
    kernel: str = ""
    depends: tuple[str, ...] = ()
    exclusive: tuple[str, ...] = ()
    files: tuple[PayloadFile, ...] = ()
    libraries: tuple[str, ...] = ()
    daemon: Daemon | None = None
    scripts: tuple[tuple[str, str], ...] = ()
    directories: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    conffiles: tuple[str, ...] = ()
    kernel_source: str = ""
    kernel_image: bool = False
    kernel_headers: bool = False
    ldconfig: bool = False
    pin: str = ""

    @property
    def file_name(self) -> str:
        """As in a real pool: without the epoch."""
        return f"{self.name}_{self.version.rpartition(':')[2]}_{self.architecture}.deb"


def kernel_slug(kernel: str) -> str:
    """A kernel release in the letters a Debian package name may have."""
    return "".join(letter if letter.isalnum() or letter in "+-." else "-" for letter in kernel.lower())


def next_kernel(kernel: str) -> str:
    """A newer kernel, offered beside the running one: what a kernel update would put first in the boot menu."""
    first, dot, rest = kernel.partition(".")
    return f"{int(first) + 1}{dot}{rest}" if first.isdigit() else f"{kernel}.1"


def _matches(rule: str, branch: int) -> bool:
    if not rule:
        return True
    operator, number = rule.rstrip("0123456789"), int(rule.lstrip("<>="))
    return {">=": branch >= number, "<": branch < number, "=": branch == number}[operator]


def _package(row: Mapping[str, Any], words: Mapping[str, str], **given: str) -> Package:
    def fill(text: str) -> str:
        return text.format_map(words)

    depends = [*row.get("depends", ()), *(row.get("depends_before_580", ()) if int(words["branch"]) < 580 else ())]
    daemon = row.get("daemon")
    return Package(
        name=fill(row["name"]),
        version=fill(row.get("version", "{v}")),
        architecture=row.get("architecture", words["architecture"]),
        component=row.get("component", given.get("component", "main")),
        summary=fill(row["summary"]),
        upstream=row.get("upstream", given.get("upstream", "")),
        cuda=given.get("cuda", ""),
        kernel=given.get("kernel", ""),
        depends=tuple(map(fill, depends)),
        exclusive=tuple(map(fill, row.get("exclusive", ()))),
        files=tuple(PayloadFile(**{**file, "target": fill(file["target"])}) for file in row.get("files", ())),
        libraries=tuple(row.get("libraries", ())),
        daemon=Daemon(**daemon) if daemon else None,
        scripts=tuple(row.get("scripts", {}).items()),
        directories=tuple(row.get("directories", ())),
        links=tuple(row.get("links", {}).items()),
        conffiles=tuple(row.get("conffiles", ())),
        kernel_source=row.get("kernel_source", ""),
        kernel_image=row.get("kernel_image", False),
        kernel_headers=row.get("kernel_headers", False),
        ldconfig=row.get("ldconfig", False),
        pin=fill(row.get("pin", "")),
    )


def _driver_packages(table: Mapping[str, Any], architecture: str) -> Iterator[Package]:
    once: set[str] = set()
    for release in table["releases"]:
        upstream = release["upstream"]
        branch = upstream.partition(".")[0]
        # From 590 on NVIDIA's own repository has no branch in its names; the fabric manager lost its at 580.
        words = {
            "b": f"-{branch}" if int(branch) < 590 else "",
            "f": f"-{branch}" if int(branch) < 580 else "",
            "branch": branch,
            "u": upstream,
            "v": f"{upstream}-{release['revision']}",
            "w": f"{upstream}-{release['nvswitch_revision']}",
            "triplet": TRIPLETS[architecture],
            "architecture": architecture,
        }
        for row in table["driver_packages"]:
            if not _matches(row.get("branches", ""), int(branch)):
                continue
            package = _package(row, words, upstream=upstream, cuda=release["cuda"])
            if row.get("once_per_branch"):
                if package.name in once:
                    continue
                once.add(package.name)
            yield package


def packages(kernel: str, architecture: str) -> tuple[Package, ...]:
    """Every package of the repository, for nodes whose `uname -r` is `kernel`; names and versions are unique."""
    table = yaml.safe_load((HERE / "packages.yml").read_text())
    plain = {"b": "", "f": "", "branch": "0", "architecture": architecture, "triplet": TRIPLETS[architecture]}
    found = list(_driver_packages(table, architecture))
    found += [_package(row, plain, component="multiverse") for row in table["archive_packages"]]
    found += [_package(row, plain) for row in table["machine_packages"]]
    for release in (kernel, next_kernel(kernel)):
        words = {**plain, "kernel": release, "slug": kernel_slug(release), "v": f"{release.split('-')[0]}-1"}
        found += [_package(row, words, component="lab", kernel=release) for row in table["kernel_packages"]]
    _require_unique(found)
    return tuple(found)


def _require_unique(found: Iterable[Package]) -> None:
    seen: set[tuple[str, str]] = set()
    for package in found:
        key = (package.name, package.version)
        if key in seen:
            raise AssertionError(f"packages.yml gives {package.name} {package.version} twice")
        seen.add(key)
