"""A driver is changed by a reboot, never under a running kernel: nothing of ours unloads a module or resets a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# All that is sent to a node or run there: roles with their modules, templates and verify files, playbooks, hooks, and
# fleetctl with its probes and commands. It is looked at as words, so a list in YAML or Python reads like a command.
PLACES = ("roles", "playbooks", "hooks", "fleetctl")
WORD = re.compile(r"[\w./-]*\w")
NEAR = 6
"""Options of a command are looked for in this many words behind it."""
OPTIONS = {
    "modprobe": re.compile(r"-\w*r\w*|--remove(-\w+)*"),
    "nvidia-smi": re.compile(r"-r|--gpu-reset"),
    "kmod": re.compile(r"unload|remove"),
}
NEVER = re.compile(r"(\S*[/.])?(rmmod|delete_module|unbind)|--gpu-reset")


def unloads(text: str) -> Iterator[str]:
    """Every order to unload a kernel module, take a device from its driver, or reset a GPU, as words."""
    words = WORD.findall(text)
    for position, word in enumerate(words):
        option = OPTIONS.get(word.rpartition("/")[2])
        behind = words[position + 1 : position + 1 + NEAR]
        if NEVER.fullmatch(word) or (option and any(option.fullmatch(one) for one in behind)):
            yield " ".join([word, *behind])


def files() -> list[Path]:
    found = (path for place in PLACES for path in (ROOT / place).rglob("*"))
    return sorted(path for path in found if path.is_file() and path.suffix not in (".md", ".pyc"))


@pytest.mark.case("F01")
def test_nothing_unloads_a_module_or_resets_a_gpu() -> None:
    looked_at = files()
    assert {"install.yml", "nodes.py", "probe.py", "modprobe.conf.j2"} <= {path.name for path in looked_at}
    found = {str(path.relative_to(ROOT)): list(unloads(path.read_text(encoding="utf-8"))) for path in looked_at}
    assert {name: orders for name, orders in found.items() if orders} == {}


@pytest.mark.parametrize(
    "text",
    [
        "rmmod nvidia_uvm nvidia",
        "sudo /sbin/rmmod -f nvidia",
        "modprobe -r nvidia",
        "modprobe -fr nvidia",
        "modprobe --quiet --remove nvidia",
        "modprobe --remove-dependencies nvidia",
        "argv: [modprobe, -r, nvidia_drm]",
        "argv:\n  - /usr/sbin/modprobe\n  - -v\n  - -r\n  - nvidia\n",
        'run(["nvidia-smi", "--id", "0", "-r"])',
        "nvidia-smi --gpu-reset -i 0",
        'ctypes.CDLL(None).delete_module(b"nvidia", 0)',
        "echo 0000:1b:00.0 > /sys/bus/pci/drivers/nvidia/unbind",
    ],
)
def test_such_an_order_would_be_seen(text: str) -> None:
    assert list(unloads(text))


@pytest.mark.parametrize(
    "text",
    [
        "dest: /etc/modprobe.d/fleetctl-nvidia_driver.conf",
        "argv: [modprobe, nvidia]",
        "nvidia-modprobe, nvidia-persistenced",
        "nvidia-smi -q -x",
        "argv: [modinfo, -k, x, nvidia]\n\nregister: __nvidia_driver_modinfo",
    ],
)
def test_what_only_names_modules_is_none(text: str) -> None:
    assert not list(unloads(text))
