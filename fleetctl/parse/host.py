"""The operating system around a component: its family, Secure Boot, and what may move packages by itself."""

from __future__ import annotations

import re

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, not_applicable, unknown, value_of
from fleetctl.parse.raw import command_of, file_of, part_of, text_or_empty, trouble_with
from fleetctl.parse.systemd import read_unit

_FAMILIES = {
    "debian": "debian",
    "ubuntu": "debian",
    "rhel": "rhel",
    "fedora": "rhel",
    "centos": "rhel",
    "rocky": "rhel",
    "almalinux": "rhel",
    "ol": "rhel",
    "amzn": "rhel",
    "azurelinux": "rhel",
}


def read_family(raw: RawFacts) -> Reading[str]:
    """debian or rhel, by os-release's ID, then ID_LIKE."""
    text = file_of(raw, "/etc/os-release")
    if not text.is_known:
        return unknown(text.reason)
    fields = dict(re.findall(r"""^([A-Z_]+)=["']?([^"'\n]*)["']?\s*$""", text.get(), re.MULTILINE))
    for name in [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]:
        if name in _FAMILIES:
            return value_of(_FAMILIES[name])
    return unknown(f"distribution {fields.get('ID', '')!r} is neither of Debian's nor of RHEL's family")


def read_secure_boot(raw: RawFacts) -> Reading[bool]:
    """True if the firmware checks signatures. Not applicable: no UEFI."""
    fact = part_of(raw, "secure_boot")
    trouble = trouble_with(fact, "Secure Boot")
    if trouble:
        return unknown(trouble)
    if part_of(fact, "efi") is False:
        return not_applicable("no UEFI")
    # An EFI variable: four bytes of attributes, then the value.
    found = text_or_empty(part_of(fact, "hex"))
    if re.fullmatch(r"[0-9a-f]{8}0[01]", found):
        return value_of(found.endswith("01"))
    ran = command_of(raw, "secure_boot", "mokutil --sb-state")
    if ran.is_known:
        stated = re.search(r"SecureBoot (enabled|disabled)", ran.get().said)
        if stated:
            return value_of(stated[1] == "enabled")
        if "not supported" in ran.get().said:
            return not_applicable("no UEFI")
    return unknown("Secure Boot's state can't be read")


def read_automatic_upgrades(raw: RawFacts, names: tuple[str, ...]) -> Reading[str]:
    """What upgrades packages by itself and would move one of `names`; empty if nothing does."""
    for unit in ("dnf-automatic.timer", "dnf-automatic-install.timer", "dnf5-automatic.timer"):
        timer = read_unit(raw, unit)
        if timer.kind == "unknown":
            return unknown(timer.reason)
        if timer.is_known and timer.get().is_running and not _dnf_excludes(raw, names):
            return value_of(unit)
    config = command_of(raw, "apt_config", "apt-config dump")
    if config.kind == "unknown":
        return unknown(config.reason)
    timer = read_unit(raw, "apt-daily-upgrade.timer")
    if timer.kind == "unknown":
        return unknown(timer.reason)
    if not (config.is_known and config.get().rc == 0 and timer.is_known and timer.get().is_running):
        return value_of("")
    text = config.get().out
    period = re.search(r'^APT::Periodic::Unattended-Upgrade "([^"]*)";', text, re.MULTILINE)
    if not period or period[1] in ("", "0"):
        return value_of("")
    blocked = re.findall(r'^Unattended-Upgrade::Package-Blacklist::[^"]*"([^"]+)";', text, re.MULTILINE)
    return value_of("" if all(_is_blocked(name, blocked) for name in names) else "unattended-upgrades")


def _is_blocked(name: str, patterns: list[str]) -> bool:
    for pattern in patterns:
        try:
            if re.match(pattern, name):
                return True
        except re.error:
            continue
    return False


def _dnf_excludes(raw: RawFacts, names: tuple[str, ...]) -> bool:
    text = "\n".join(file_of(raw, path).value or "" for path in ("/etc/dnf/dnf.conf", "/etc/dnf/automatic.conf"))
    if re.search(r"^\s*apply_updates\s*=\s*(no|false|0)", text, re.MULTILINE | re.IGNORECASE):
        return True
    excluded = " ".join(re.findall(r"^\s*exclude(?:pkgs)?\s*=\s*(.*)$", text, re.MULTILINE)).replace(",", " ").split()
    as_patterns = ["".join(".*" if mark == "*" else re.escape(mark) for mark in glob) + "$" for glob in excluded]
    return all(_is_blocked(name, as_patterns) for name in names)
