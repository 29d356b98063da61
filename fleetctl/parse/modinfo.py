"""A module on disk, as modinfo describes it for one installed kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.fleet import Json
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.raw import number_or_none, part_of, read_command

# MODULE_LICENSE in kernel-open/nvidia/nv.c (NVIDIA/open-gpu-kernel-modules) and in the proprietary module's interface.
_FLAVOUR_BY_LICENSE = {"Dual MIT/GPL": "open", "NVIDIA": "proprietary"}
_FIELD = re.compile(r"^([a-z_]+):[ \t]*(.*)$", re.MULTILINE)
# "signat" is what kmod before 27 calls sig_id.
_OF_A_SIGNATURE = frozenset({"sig_id", "signat", "signer", "sig_key"})
_NOT_FOUND = re.compile(r"Module \S+ not found|could not find module|modinfo: .*not found", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ModuleOnDisk:
    """`flavour` is empty where the licence is neither of the two that NVIDIA uses.

    `sig_key` is the serial number of the certificate that signed it, `signer` the name of who issued that one. Both
    may be empty for a signed module: a modinfo without OpenSSL says no more than that there is a signature.
    """

    version: str
    license: str
    flavour: str
    is_signed: bool = False
    signer: str = ""
    sig_key: str = ""
    size: float | None = None
    mtime: float | None = None


def read_module(fact: Json, module: str, kernel: str) -> Reading[ModuleOnDisk]:
    """Not applicable: this kernel has no such module."""
    ran = read_command(fact, f"modinfo {module}")
    if ran.kind == "not_applicable":
        return unknown(ran.reason)
    if not ran.is_known:
        return unknown(ran.reason)
    if ran.get().rc != 0:
        if _NOT_FOUND.search(ran.get().said):
            return not_applicable(f"no module {module} for kernel {kernel}")
        return unknown(f"modinfo {module}: {ran.get().why}")
    fields: dict[str, str] = {}
    for key, text in _FIELD.findall(ran.get().out):
        fields.setdefault(key, text.strip())
    if not fields.get("version"):
        return unknown(f"modinfo {module}: no version")
    license_text = fields.get("license", "")
    return value_of(
        ModuleOnDisk(
            version=fields["version"],
            license=license_text,
            flavour=_FLAVOUR_BY_LICENSE.get(license_text, ""),
            is_signed=not _OF_A_SIGNATURE.isdisjoint(fields),
            signer=fields.get("signer", ""),
            sig_key=fields.get("sig_key", ""),
            size=number_or_none(part_of(fact, "size")),
            mtime=number_or_none(part_of(fact, "mtime")),
        )
    )
