"""Which kernel the next boot starts, from the boot loader's own files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cmp_to_key

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.model.versions import compare_dpkg
from fleetctl.parse.raw import command_of, file_of, list_or_empty, part_of, text_or_empty, trouble_with

_IMAGE = re.compile(r"(?:^|/)(?:vmlinu[xz]|kernel|Image)-(?P<kernel>[^\s/]+)$")
_TITLE = re.compile(r"""^\s*(?:menuentry|submenu)\s+(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>\S+))""")
_ENTRY_ID = re.compile(r"""(?:--id[= ]|\$menuentry_id_option )\s*['"]?(?P<id>[^'"\s]+)['"]?""")
_LINUX = re.compile(r"^\s*linux(?:16|efi)?\s+(?P<image>\S+)")
_SET_DEFAULT = re.compile(r"""^\s*set default=["']?(?P<default>[^"']*)["']?\s*$""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NextBoot:
    """The kernel, and what says so."""

    kernel: str
    because: str


@dataclass(slots=True)
class _Entry:
    title: str
    id: str
    kernel: str = ""
    children: list[_Entry] = field(default_factory=list)
    is_submenu: bool = False


def read_next_boot(raw: RawFacts) -> Reading[NextBoot]:
    """Not applicable: the node keeps no kernel of its own (network boot). Anything ambiguous is unknown."""
    installed = _read_installed(raw)
    if not installed.is_known:
        return Reading(installed.kind, None, installed.reason)
    once = _grubenv(raw).get("next_entry", "")
    if not once:
        grubby = command_of(raw, "grubby_default", "grubby --default-kernel")
        if grubby.is_known and grubby.get().rc == 0:
            kernel = kernel_of_image(grubby.get().out.strip())
            if kernel:
                return value_of(NextBoot(kernel, "grubby"))
    menu = _grub_menu(raw)
    if menu is not None and any(_leaves(menu.entries)):
        return _from_menu(menu, once or _grub_default(raw, menu))
    bls = _loader_entries(raw)
    if bls:
        return _from_loader_entries(bls, once or _loader_default(raw))
    if once:
        return unknown(f"grub will once boot {once!r}, which is in no menu that can be read")
    kernels = installed.get()
    because = "the only kernel in /boot" if len(kernels) == 1 else "the newest kernel in /boot, no boot loader's menu"
    return value_of(NextBoot(newest(kernels), because))


def newest(kernels: tuple[str, ...]) -> str:
    return max(kernels, key=cmp_to_key(compare_dpkg))


def kernel_of_image(path: str) -> str:
    """6.8.0-60-generic of /boot/vmlinuz-6.8.0-60-generic; empty for a link without a version."""
    found = _IMAGE.search(path.strip())
    return found["kernel"] if found else ""


def _read_installed(raw: RawFacts) -> Reading[tuple[str, ...]]:
    fact = part_of(raw, "boot")
    trouble = trouble_with(fact, "/boot")
    if trouble:
        return unknown(trouble)
    names = [text_or_empty(part_of(entry, "name")) for entry in list_or_empty(part_of(fact, "entries"))]
    kernels = tuple(kernel for name in names if (kernel := kernel_of_image(name)) and "rescue" not in kernel)
    if kernels:
        return value_of(kernels)
    if _loader_entries(raw) or _grub_menu(raw) is not None:
        return value_of(())
    return not_applicable("no kernel in /boot: this node does not boot from its own disk")


@dataclass(frozen=True, slots=True)
class _Menu:
    entries: list[_Entry]
    default: str


def _grub_menu(raw: RawFacts) -> _Menu | None:
    for path in ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"):
        text = file_of(raw, path)
        if text.is_known:
            defaults = [found["default"] for found in _SET_DEFAULT.finditer(text.get())]
            stated = [default for default in defaults if "next_entry" not in default]
            return _Menu(_read_menu(text.get()), stated[-1] if stated else "0")
    return None


def _read_menu(text: str) -> list[_Entry]:
    """Entries as they nest; braces of functions and conditions count for nothing."""
    top: list[_Entry] = []
    open_blocks: list[_Entry | None] = []
    for line in text.splitlines():
        titled = _TITLE.match(line)
        image = _LINUX.match(line)
        if titled:
            title = titled["single"] or titled["double"] or titled["bare"] or ""
            identified = _ENTRY_ID.search(line)
            entry = _Entry(
                title, identified["id"] if identified else "", is_submenu=line.lstrip().startswith("submenu")
            )
            around = next((block for block in reversed(open_blocks) if block is not None), None)
            (around.children if around else top).append(entry)
            open_blocks.append(entry)
        elif line.rstrip().endswith("{"):
            open_blocks.append(None)
        elif line.strip() == "}" and open_blocks:
            open_blocks.pop()
        elif image and open_blocks:
            innermost = next((block for block in reversed(open_blocks) if block is not None), None)
            if innermost is not None and not innermost.kernel:
                innermost.kernel = kernel_of_image(image["image"])
    return top


def _leaves(entries: list[_Entry]) -> list[_Entry]:
    return [leaf for entry in entries for leaf in (_leaves(entry.children) if entry.is_submenu else [entry])]


def _grubenv(raw: RawFacts) -> dict[str, str]:
    for path in ("/boot/grub/grubenv", "/boot/grub2/grubenv"):
        text = file_of(raw, path)
        if text.is_known:
            lines = [line for line in text.get().splitlines() if not line.startswith("#") and "=" in line]
            return {key.strip(): value.strip() for key, value in (line.split("=", 1) for line in lines)}
    return {}


def _grub_default(raw: RawFacts, menu: _Menu) -> str:
    if "saved_entry" in menu.default:
        return _grubenv(raw).get("saved_entry") or "0"
    return menu.default or "0"


def _from_menu(menu: _Menu, default: str) -> Reading[NextBoot]:
    """Resolve grub's default: index, title or id, with `>` between levels."""
    entries, chosen = menu.entries, None
    for step in default.split(">"):
        chosen = _pick(entries, step.strip())
        if chosen is None:
            return unknown(f"grub's default {default!r} is in no menu")
        entries = chosen.children
    while chosen is not None and chosen.is_submenu:
        chosen = chosen.children[0] if chosen.children else None
    if chosen is None or not chosen.kernel:
        return unknown(f"grub's default {default!r} names no kernel that can be read")
    return value_of(NextBoot(chosen.kernel, f"grub's default {default!r}"))


def _pick(entries: list[_Entry], step: str) -> _Entry | None:
    if step.isdecimal() and len(step) < 6:
        return entries[int(step)] if int(step) < len(entries) else None
    return next((entry for entry in entries if step in (entry.id, entry.title)), None)


def _loader_entries(raw: RawFacts) -> dict[str, str]:
    """Kernel by the entry's name, of the Boot Loader Specification's files."""
    files = part_of(raw, "boot_entries", "files")
    found = {}
    for path, fact in files.items() if isinstance(files, Mapping) else ():
        text = text_or_empty(part_of(fact, "text"))
        fields = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
        kernel = kernel_of_image(fields.get("linux", "")) or fields.get("version", "").strip()
        if isinstance(path, str) and kernel:
            found[path.rpartition("/")[2].removesuffix(".conf")] = kernel
    return found


def _loader_default(raw: RawFacts) -> str:
    saved = _grubenv(raw).get("saved_entry", "")
    text = file_of(raw, "/boot/loader/loader.conf")
    stated = re.search(r"^default\s+(\S+)", text.get(), re.MULTILINE) if text.is_known else None
    return saved or (stated[1].removesuffix(".conf") if stated else "")


def _from_loader_entries(entries: Mapping[str, str], default: str) -> Reading[NextBoot]:
    kernels = tuple(kernel for name, kernel in entries.items() if "rescue" not in name)
    if default in entries:
        return value_of(NextBoot(entries[default], f"boot loader entry {default!r}"))
    if default and not default.isdecimal():
        matching = {kernel for name, kernel in entries.items() if re.fullmatch(_glob(default), name)}
        if len(matching) == 1:
            return value_of(NextBoot(matching.pop(), f"boot loader entry {default!r}"))
        return unknown(f"the boot loader's default {default!r} is not among its entries")
    if default not in ("", "0") or not kernels:
        return unknown(f"the boot loader's default {default!r} can't be told")
    return value_of(NextBoot(newest(kernels), "the newest boot loader entry"))


def _glob(pattern: str) -> str:
    return "".join(".*" if mark == "*" else "." if mark == "?" else re.escape(mark) for mark in pattern)
