"""The node itself: identity, boot, work that is on it, package managers at work, broken packages, the lease."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from fleetctl.model.fleet import Json
from fleetctl.model.node_facts import Identity, Lease, NodeFacts, RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse import dpkg, repositories, rpm
from fleetctl.parse.nvidia_smi import read_apps
from fleetctl.parse.raw import file_of, list_or_empty, part_of, read_text, text_or_empty, trouble_with

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

# Daemons that keep a GPU open without using it, by the kernel's name for a process (15 characters).
# nvidia-smi: somebody looks, for a moment; this probe's own too.
GPU_DAEMONS = frozenset(
    {
        "nvidia-persiste",
        "nv-fabricmanage",
        "nvidia-imex",
        "nv-hostengine",
        "dcgm-exporter",
        "nvidia-smi",
        "nvidia-device-p",
        "gpud",
        "nvsm_core",
        "nvlsm",
    }
)

# A package manager that only looks; and Debian's helper that waits for shutdown all its life.
_ONLY_LOOKS = re.compile(
    r"^(?:\S*/)?(?:"
    r"rpm\s+(?:-[qV]\w*|--query|--verify)|"
    r"dpkg\s+(?:-[lLsSpC]|--list|--listfiles|--status|--search|--audit|--print-[a-z-]+|--get-selections)|"
    r"dpkg\s+--compare-versions|"
    r"dkms\s+status|"
    r"apt(?:-get|-cache)?\s+(?:list|show|search|policy|--version)|"
    r"dnf\S*\s+(?:list|info|repoquery|check-update|--version)"
    r")(?=\s|$)|\s--wait-for-signal(?=\s|$)"
)
# Starts on demand and then stays; it is seen by what it starts (dpkg, rpm) when it does something.
_IDLE = frozenset({"packagekitd"})

# What DMI shows where a vendor filled nothing in; such a value identifies no machine.
_NO_IDENTITY = re.compile(
    r"^(?:|none|null|not specified|not applicable|n/?a|default string|to be filled by o\.?e\.?m\.?|"
    r"system serial number|unknown|[0-]+|[xf-]+|0?1234567890?|chassis serial number|empty|"
    r"03000200-0400-0500-0006-000700080009)$",
    re.IGNORECASE,
)


def read_node(raw: RawFacts) -> NodeFacts:
    return NodeFacts(
        identity=read_identity(raw),
        boot_id=read_boot_id(raw),
        work_processes=read_work_processes(raw),
        package_processes=read_package_processes(raw),
        broken_packages=read_broken_packages(raw),
        lease=read_lease(raw),
        kept_packages=repositories.read_kept(raw),
        repositories=repositories.read_sources(raw),
    )


def read_boot_id(raw: RawFacts) -> Reading[str]:
    text = file_of(raw, "/proc/sys/kernel/random/boot_id")
    return boot_id_of(text.get()) if text.is_known else unknown(text.reason)


def boot_id_of(text: str) -> Reading[str]:
    """Only a text of a UUID's form is a boot id; what ssh or sudo print instead of it is not."""
    plain = text.strip().lower()
    return value_of(plain) if _UUID.fullmatch(plain) else unknown(f"not a boot id: {plain[:60]!r}")


def read_identity(raw: RawFacts) -> Reading[Identity]:
    """Parts that the machine does not tell are empty; a machine that tells none is unknown."""
    parts = []
    for path in ("/sys/class/dmi/id/product_uuid", "/sys/class/dmi/id/product_serial", "/etc/machine-id"):
        text = file_of(raw, path)
        if text.kind == "unknown":
            return unknown(text.reason)
        plain = (text.value or "").strip()
        parts.append("" if _NO_IDENTITY.match(plain) else plain)
    identity = Identity(parts[0].lower(), parts[1], parts[2].lower())
    return value_of(identity) if any(parts) else unknown("no DMI UUID, no serial, no machine-id")


def read_work_processes(raw: RawFacts) -> Reading[tuple[str, ...]]:
    """Unknown unless the open files of every process could be looked at."""
    fact = part_of(raw, "processes")
    trouble = _trouble_with_processes(fact)
    if trouble:
        return unknown(trouble)
    unread = list_or_empty(part_of(fact, "unread"))
    if unread:
        return unknown(
            f"the open files of {_label(unread[0])} and others can't be read: root with CAP_SYS_PTRACE needed"
        )
    found = {_label(entry): True for entry in list_or_empty(part_of(fact, "steps"))}
    daemons = []
    for entry in list_or_empty(part_of(fact, "gpu")):
        if _name(entry) in GPU_DAEMONS:
            daemons.append(part_of(entry, "pid"))
        else:
            found[_label(entry)] = True
    apps = read_apps(raw)
    for pid, name in apps.get() if apps.is_known else ():
        short = name.split()[0].rpartition("/")[2] if name.split() else ""
        label = f"{short or 'process'} ({pid})"
        if pid not in daemons and short[:15] not in GPU_DAEMONS and not any(f"({pid})" in other for other in found):
            found[label] = True
    return value_of(tuple(found))


def read_package_processes(raw: RawFacts) -> Reading[tuple[str, ...]]:
    fact = part_of(raw, "processes")
    trouble = _trouble_with_processes(fact)
    if trouble:
        return unknown(trouble)
    found = []
    for entry in list_or_empty(part_of(fact, "package")):
        words = text_or_empty(part_of(entry, "words"))
        if not _ONLY_LOOKS.search(words) and _name(entry) not in _IDLE:
            found.append(_label(entry))
    lease = part_of(raw, "lease")
    if part_of(lease, "holders_error") or not isinstance(lease, Mapping):
        return unknown("whether a command runs under the lease can't be read")
    found += [f"command under the lease ({pid})" for pid in list_or_empty(part_of(lease, "holders"))]
    return value_of(tuple(found))


def _trouble_with_processes(fact: Json) -> str:
    trouble = trouble_with(fact, "the process table")
    if trouble:
        return trouble
    scanned = part_of(fact, "scanned")
    if not isinstance(scanned, int) or scanned < 1:
        return "no process was seen at all"
    for key in ("steps", "gpu", "package", "unread"):
        if not isinstance(part_of(fact, key), list):
            return "the process table is incomplete"
    return ""


def _name(entry: Json) -> str:
    return text_or_empty(part_of(entry, "name"))


def _label(entry: Json) -> str:
    return f"{_name(entry) or 'process'} ({part_of(entry, 'pid')})"


def read_broken_packages(raw: RawFacts) -> Reading[tuple[str, ...]]:
    """From dpkg where the node has it, else from rpm, which has no half-installed state to show."""
    broken = dpkg.read_broken(raw)
    if broken.kind != "not_applicable":
        return broken
    packages = rpm.read_packages(raw)
    if packages.is_known:
        return value_of(())
    return unknown(packages.reason if packages.kind == "unknown" else "neither dpkg nor rpm on this node")


def read_lease(raw: RawFacts) -> Reading[Lease]:
    """Not applicable: no lease. A lease that can't be read is somebody's."""
    text = read_text(part_of(raw, "lease"), "lease")
    if not text.is_known:
        return not_applicable("no lease") if text.kind == "not_applicable" else unknown(text.reason)
    try:
        found = json.loads(text.get())
    except (ValueError, RecursionError):
        return unknown("the lease file is damaged")
    rollout, controller, epoch = (part_of(found, key) for key in ("rollout", "controller", "epoch"))
    if isinstance(rollout, str) and isinstance(controller, str) and isinstance(epoch, int):
        return value_of(Lease(rollout, controller, epoch, text_or_empty(part_of(found, "nonce"))))
    return unknown("the lease file is damaged")
