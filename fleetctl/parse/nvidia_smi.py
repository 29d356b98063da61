"""nvidia-smi: its CSV, and the ways in which it fails."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.raw import list_or_empty, one_line, part_of, read_command

_NOT_APPLICABLE = frozenset(
    {"n/a", "not supported", "requested functionality has been deprecated", "not active", "none available", ""}
)
# What NVML could not read; anything else in square brackets is an error text of NVML too (nvmlErrorString).
_ERRORS = frozenset({"err!", "error", "unknown error", "gpu requires reset", "gpu is lost", "insufficient permissions"})
_NUMBER = re.compile(r"^\s*(-?\d+(?:\.\d+)?)\s*(?:[A-Za-z%°/]+)?\s*$")
_UNIT = re.compile(r"\s*\[[^\]]*\]\s*$")
_BUS_ID = re.compile(r"\b([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?)\b")

FailureKind = Literal[
    "mismatch", "not_loaded", "lost", "no_devices", "permission", "no_library", "timed_out", "stuck", "missing", "other"
]

_FAILURES: tuple[tuple[FailureKind, re.Pattern[str]], ...] = (
    ("mismatch", re.compile(r"driver/library version mismatch", re.IGNORECASE)),
    ("lost", re.compile(r"GPU is lost|fallen off the bus|unable to determine the device handle", re.IGNORECASE)),
    ("no_devices", re.compile(r"No devices (were )?found", re.IGNORECASE)),
    ("not_loaded", re.compile(r"couldn't communicate with the NVIDIA driver|driver not loaded", re.IGNORECASE)),
    ("permission", re.compile(r"insufficient permissions?", re.IGNORECASE)),
    ("no_library", re.compile(r"couldn't find libnvidia-ml|NVML.*not found|libnvidia-ml\.so", re.IGNORECASE)),
)
# A row of CSV that came before the failure names GPUs that are well.
_LEAST_COMMAS = 4
_NVML_VERSION = re.compile(r"NVML library version:\s*(\d+(?:\.\d+)+)")


@dataclass(frozen=True, slots=True)
class SmiFailure:
    """Why nvidia-smi showed no GPU list. `nvml_version` may have fewer components than the driver's version."""

    kind: FailureKind
    text: str
    bus_id: str = ""
    nvml_version: str = ""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU in NVML. A column that this nvidia-smi does not know is not applicable; one with an error is unknown."""

    index: str
    bus_id: str
    name: str
    driver_version: Reading[str]
    recovery_action: Reading[str]
    fabric_state: Reading[str]
    fabric_status: Reading[str]
    memory_mib: Reading[float]
    device_id: str = ""
    errors: tuple[str, ...] = ()
    """Columns that must have a value and do not, and every column with an error, as "column: text"."""

    @property
    def label(self) -> str:
        return f"GPU {self.index} ({self.bus_id})"


@dataclass(frozen=True, slots=True)
class Smi:
    """What NVML says of this node. The GPUs are unknown where nvidia-smi failed, save that it saw none at all."""

    gpus: Reading[tuple[Gpu, ...]]
    driver_version: Reading[str]
    failure: SmiFailure | None = None
    processes: Reading[tuple[tuple[int, str], ...]] = field(default_factory=lambda: unknown("not asked"))


def read_field(text: str) -> Reading[str]:
    """One field of CSV or XML: a value, not applicable, or what NVML could not read."""
    plain = text.strip()
    inner = plain[1:-1].strip() if plain.startswith("[") and plain.endswith("]") else plain
    if inner.lower() in _NOT_APPLICABLE:
        return not_applicable(plain)
    if inner.lower() in _ERRORS or inner != plain:
        hint = "; run as root" if "permission" in inner.lower() else ""
        return unknown(inner + hint)
    return value_of(plain)


def read_number(text: str) -> Reading[float]:
    """A number without its unit."""
    read = read_field(text)
    if not read.is_known:
        return Reading(read.kind, None, read.reason)
    found = _NUMBER.match(read.get())
    return value_of(float(found[1])) if found else unknown(f"not a number: {one_line(text, 40)!r}")


def short_bus_id(bus_id: str) -> str:
    """The kernel's form: 0000:3b:00.0, from NVML's 00000000:3B:00.0."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{rest}" if rest else bus_id.strip().lower()


def read_csv(text: str) -> list[dict[str, str]]:
    """Rows by column name; units in the header are left off. A row of another length is given as far as it goes."""
    try:
        rows = [
            row for row in csv.reader(text.splitlines(), skipinitialspace=True) if any(cell.strip() for cell in row)
        ]
    except csv.Error:
        return []
    if not rows:
        return []
    header = [_UNIT.sub("", cell).strip() for cell in rows[0]]
    return [dict(zip(header, (cell.strip() for cell in row), strict=False)) for row in rows[1:]]


def read_failure(text: str) -> SmiFailure:
    """Class of a failure, by its text: nvidia-smi wraps lines and prints most of this on stdout, behind rows of CSV."""
    flat = " ".join(" ".join(line for line in text.splitlines() if line.count(",") < _LEAST_COMMAS).split())
    kind: FailureKind = next((kind for kind, pattern in _FAILURES if pattern.search(flat)), "other")
    bus_id, version = _BUS_ID.search(flat), _NVML_VERSION.search(flat)
    return SmiFailure(kind, flat[:300], short_bus_id(bus_id[1]) if bus_id else "", version[1] if version else "")


def read_gpus(csv_text: str, more: Mapping[str, Mapping[str, str]]) -> tuple[Gpu, ...]:
    """The GPUs of a CSV; `more` has columns from the XML by bus id, for an nvidia-smi that lacks them in CSV."""
    gpus = []
    for row in read_csv(csv_text):
        columns = {**more.get(short_bus_id(row.get("pci.bus_id", "")), {}), **row}
        errors = [
            f"{name}: {read.reason or 'no value'}"
            for name, text in columns.items()
            if (read := read_field(text)).kind == "unknown" or (name in _REQUIRED and not read.is_known)
        ]
        errors += [f"{name}: no value" for name in _REQUIRED if name not in columns]
        gpus.append(
            Gpu(
                index=columns.get("index", "?"),
                bus_id=short_bus_id(columns.get("pci.bus_id", "")),
                name=columns.get("name", ""),
                driver_version=read_field(columns.get("driver_version", "N/A")),
                recovery_action=read_field(columns.get("gpu_recovery_action", "N/A")),
                fabric_state=read_field(columns.get("fabric.state", "N/A")),
                fabric_status=read_field(columns.get("fabric.status", "N/A")),
                memory_mib=read_number(columns.get("memory.total", "N/A")),
                device_id=columns.get("pci.device_id", ""),
                errors=tuple(errors),
            )
        )
    return tuple(gpus)


_REQUIRED = ("driver_version", "name", "uuid", "pci.bus_id")


def read_smi(raw: RawFacts) -> Smi:
    """Everything nvidia-smi said in this probe."""
    from fleetctl.parse.nvidia_smi_xml import read_columns

    fact = part_of(raw, "nvidia_smi", "gpus")
    stuck = list_or_empty(part_of(fact, "stuck"))
    if stuck:
        return _failed(SmiFailure("stuck", f"nvidia-smi hangs since before this probe (pid {stuck[0]})"))
    if part_of(fact, "timed_out") or part_of(raw, "nvidia_smi", "timed_out"):
        return _failed(SmiFailure("timed_out", "nvidia-smi did not answer in time: the driver hangs"))
    ran = read_command(fact, "nvidia-smi")
    if not ran.is_known:
        kind: FailureKind = "missing" if ran.kind == "not_applicable" else "other"
        return _failed(SmiFailure(kind, ran.reason))
    if ran.get().rc != 0 or ran.get().truncated:
        return _failed(read_failure(ran.get().said or ran.get().why), ran.get().out)
    gpus = read_gpus(ran.get().out, read_columns(raw))
    if not gpus:
        return _failed(read_failure(ran.get().said or "nvidia-smi printed nothing"))
    return Smi(value_of(gpus), _version_of(gpus), None, read_apps(raw))


def _failed(failure: SmiFailure, out: str = "") -> Smi:
    gpus: Reading[tuple[Gpu, ...]] = unknown(failure.text)
    if failure.kind == "no_devices":
        gpus = value_of(())
    version = _version_of(read_gpus(out, {})) if out else unknown(failure.text)
    return Smi(gpus, version if version.is_known else unknown(failure.text), failure)


def _version_of(gpus: tuple[Gpu, ...]) -> Reading[str]:
    versions = {gpu.driver_version.get() for gpu in gpus if gpu.driver_version.is_known}
    versions = {version for version in versions if re.fullmatch(r"\d+(\.\d+)+", version)}
    if len(versions) == 1:
        return value_of(versions.pop())
    return unknown("GPUs show different driver versions" if versions else "no GPU shows a driver version")


def read_apps(raw: RawFacts) -> Reading[tuple[tuple[int, str], ...]]:
    """Compute processes as NVML sees them: pid and name."""
    ran = read_command(part_of(raw, "nvidia_smi", "apps"), "nvidia-smi --query-compute-apps")
    if not ran.is_known or ran.get().rc != 0:
        return unknown(ran.get().why if ran.is_known else ran.reason)
    rows = read_csv(ran.get().out)
    return value_of(
        tuple(
            (int(row["pid"]), row.get("process_name", ""))
            for row in rows
            if re.fullmatch("[0-9]{1,10}", row.get("pid", ""))
        )
    )
