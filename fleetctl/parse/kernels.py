"""What is on disk for each installed kernel: modules, headers, and the modules inside its initramfs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.boot import NextBoot
from fleetctl.parse.modinfo import ModuleOnDisk, read_module
from fleetctl.parse.raw import list_or_empty, number_or_none, part_of, read_command, text_or_empty, trouble_with

# As `ls -l` prints it, by lsinitramfs and by lsinitrd: size, date, path.
_LISTED = re.compile(r"\s(\d+)\s+(?:[A-Z][a-z]{2}\s+\d+|\d{4}-\d\d-\d\d)\s.*/nvidia\.ko(?:\.\w+)?\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelOnDisk:
    """`initramfs` is empty if it is in order, else why it may load another module than the one on disk."""

    kernel: str
    module: Reading[ModuleOnDisk]
    has_headers: Reading[bool]
    initramfs: Reading[str]


def read_kernel(raw: RawFacts, kernel: str, module: str = "nvidia") -> KernelOnDisk:
    fact = part_of(raw, "kernels", kernel)
    trouble = trouble_with(fact, f"kernel {kernel}")
    if trouble:
        return KernelOnDisk(kernel, unknown(trouble), unknown(trouble), unknown(trouble))
    found = read_module(part_of(fact, "modules", module), module, kernel)
    headers = part_of(fact, "headers")
    has_headers = value_of(headers) if isinstance(headers, bool) else unknown("headers were not looked for")
    return KernelOnDisk(kernel, found, has_headers, read_initramfs(raw, kernel, found))


def kernel_to_boot(raw: RawFacts, next_boot: Reading[NextBoot]) -> Reading[str]:
    """The next boot's kernel; the running one on a node that keeps none of its own."""
    if next_boot.is_known:
        return value_of(next_boot.get().kernel)
    running = text_or_empty(part_of(raw, "kernel"))
    if next_boot.kind == "not_applicable" and running:
        return value_of(running)
    return unknown(next_boot.reason or "the running kernel is not known")


def read_initramfs(raw: RawFacts, kernel: str, module: Reading[ModuleOnDisk]) -> Reading[str]:
    """Not applicable: no initramfs, or no NVIDIA module in it.

    Its copy is of the same build if it has the size of the one on disk, or if the initramfs was made later.
    """
    fact = part_of(raw, "initramfs", kernel)
    if fact is None:
        return unknown(f"the initramfs of {kernel} was not looked at")
    trouble = trouble_with(fact, f"the initramfs of {kernel}")
    if trouble:
        return unknown(trouble)
    if part_of(fact, "absent"):
        return not_applicable("no initramfs")
    ran = read_command(fact, "lsinitramfs")
    if not ran.is_known or ran.get().rc != 0:
        return unknown(f"the initramfs of {kernel} can't be listed: {ran.get().why if ran.is_known else ran.reason}")
    listed = _LISTED.findall(ran.get().out)
    if "nvidia.ko" not in ran.get().out:
        return not_applicable("no NVIDIA module in the initramfs")
    if not module.is_known:
        return value_of(f"the initramfs of {kernel} holds a module that is not on disk")
    on_disk = module.get()
    if on_disk.size is not None and str(int(on_disk.size)) in listed:
        return value_of("")
    made = _made_at(raw, text_or_empty(part_of(fact, "path")))
    if made is not None and on_disk.mtime is not None and made >= on_disk.mtime:
        return value_of("")
    return value_of(f"the initramfs of {kernel} is older than the module on disk")


def _made_at(raw: RawFacts, path: str) -> float | None:
    for entry in list_or_empty(part_of(raw, "boot", "entries")):
        if part_of(entry, "name") == path.rpartition("/")[2]:
            return number_or_none(part_of(entry, "mtime"))
    return None
