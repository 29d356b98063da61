"""The raw facts of a node on which everything is as declared: Ubuntu, eight H100 with NVSwitches, driver 580.95.05."""

from __future__ import annotations

import copy
from typing import Any

VERSION = "580.95.05"
KERNEL = "6.8.0-60-generic"
BOOT_ID = "0b6c0a4e-8a52-4f7e-9d0e-6f5a2f2f1c11"
BUS_IDS = tuple(f"0000:{number:02x}:00.0" for number in (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF))

HOST_VARS = {
    "nvidia_driver_version": VERSION,
    "nvidia_driver_flavour": "open",
    "nvidia_driver_source": "nvidia",
    "nvidia_driver_owner": "host",
    "nvidia_driver_gpu_count": 8,
    "nvidia_fabric_manager_enabled": "auto",
}

_COLUMNS = (
    "index, uuid, name, pci.bus_id, pci.device_id, driver_version, vbios_version, memory.total [MiB], "
    "persistence_mode, mig.mode.current, ecc.mode.current, fabric.state, fabric.status, gpu_recovery_action"
)

_PACKAGES = (
    "nvidia-open-580",
    "nvidia-driver-580-open",
    "nvidia-dkms-580-open",
    "nvidia-kernel-source-580-open",
    "nvidia-kernel-common-580",
    "nvidia-firmware-580",
    "libnvidia-compute-580",
    "libnvidia-cfg1-580",
    "nvidia-utils-580",
    "nvidia-compute-utils-580",
    "nvidia-persistenced",
    "nvidia-fabricmanager",
)


def ran(out: str = "", rc: int = 0, err: str = "", **more: Any) -> dict[str, Any]:
    return {"rc": rc, "out": out, "err": err, "took_s": 0.01, **more}


def gpu_rows(version: str = VERSION) -> str:
    rows = [
        f"{index}, GPU-00000000-0000-0000-0000-00000000000{index}, NVIDIA H100 80GB HBM3, 0000{bus_id.upper()}, "
        f"0x233010DE, {version}, 96.00.89.00.01, 81559 MiB, Enabled, Disabled, Enabled, Completed, Success, None"
        for index, bus_id in enumerate(BUS_IDS)
    ]
    return "\n".join([_COLUMNS, *rows]) + "\n"


def unit(
    name: str, active: str = "active", sub: str = "running", enabled: str = "enabled", load: str = "loaded"
) -> str:
    return (
        f"Result=success\nId={name}\nLoadState={load}\nActiveState={active}\nSubState={sub}\nUnitFileState={enabled}\n"
    )


def facts() -> dict[str, Any]:
    """A fresh copy, for a test to change."""
    return copy.deepcopy(_FACTS)


MOK_SERIAL = "08:1B:D0:AF:D2:6B:5E:A1:9E:6E:05:B5:1A:D8:E7:AC:53:59:9F:99"
MOK_KEY_ID = "30:24:4C:64:9A:B0:32:BB:E6:7B:EB:2F:B1:50:BF:67:86:79:75:87"


def secured() -> dict[str, Any]:
    """A fresh copy with Secure Boot on: DKMS signed the module with a key of this machine, which is enrolled."""
    raw = facts()
    raw["secure_boot"] = {"efi": True, "hex": "0600000001"}
    raw["commands"]["enrolled_keys"] = ran(certificate(1, MOK_SERIAL.lower(), MOK_KEY_ID))
    raw["commands"]["firmware_keys"] = ran(certificate(1, "61:08:d3:c4:00:00:00:00:00:04", "13:AD:BF:43"))
    own = kernel_key("DKMS module signing key", MOK_KEY_ID)
    raw["files"]["/proc/keys"] = {"text": own + kernel_key("Vendor", "01")}
    sign_module(raw, "DKMS module signing key", MOK_SERIAL)
    return raw


def sign_module(raw: dict[str, Any], signer: str, serial: str) -> None:
    module = raw["kernels"][KERNEL]["modules"]["nvidia"]
    module["out"] = module["out"].partition("sig_id:")[0]
    module["out"] += f"sig_id:         PKCS#7\nsigner:         {signer}\nsig_key:        {serial}\n"


def certificate(number: int, serial: str, key_id: str) -> str:
    """As the probe keeps it of what mokutil prints."""
    return (
        f"[key {number}]\n        Serial Number:\n            {serial}\n"
        f"            X509v3 Subject Key Identifier: \n                {key_id}\n"
    )


def kernel_key(subject: str, key_id: str) -> str:
    """A line of /proc/keys."""
    plain = key_id.replace(":", "").lower()
    return f"1d5e5c5f I------     1 perm 1f030000     0     0 asymmetri {subject}: {plain}: X509.rsa {plain[-8:]} []\n"


_FACTS: dict[str, Any] = {
    "schema": 1,
    "uid": 0,
    "python": "3.12.3",
    "kernel": KERNEL,
    "machine": "x86_64",
    "hostname": "gpu001",
    "time": 1796000000.0,
    "took_s": 1.5,
    "files": {
        "/proc/driver/nvidia/version": {
            "text": f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build  "
            "(builder@host)  Tue Sep 23 09:55:41 UTC 2025\nGCC version:  gcc version 13.3.0\n"
        },
        "/sys/module/nvidia/version": {"text": f"{VERSION}\n"},
        "/sys/module/nvidia_uvm/initstate": {"text": "live\n"},
        "/sys/module/nvidia_modeset/initstate": {"text": "live\n"},
        "/sys/module/nvidia_peermem/initstate": {"text": "live\n"},
        "/sys/module/nvidia_drm/initstate": {"absent": True},
        "/sys/module/nvidia_fs/initstate": {"absent": True},
        "/sys/module/gdrdrv/initstate": {"absent": True},
        "/proc/sys/kernel/random/boot_id": {"text": f"{BOOT_ID}\n"},
        "/proc/uptime": {"text": "86400.00 1234567.00\n"},
        "/etc/machine-id": {"text": "0123456789abcdef0123456789abcde1\n"},
        "/sys/class/dmi/id/product_uuid": {"text": "4C4C4544-0000-1000-8000-000000000001\n"},
        "/sys/class/dmi/id/product_serial": {"text": "SN000001\n"},
        "/etc/os-release": {"text": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n'},
        "/etc/default/grub": {"text": "GRUB_DEFAULT=0\n"},
        "/boot/grub/grubenv": {"text": "# GRUB Environment Block\n"},
        "/boot/grub/grub.cfg": {
            "text": 'set default="0"\n'
            "menuentry 'Ubuntu' --class ubuntu $menuentry_id_option 'gnulinux-simple-1' {\n"
            f"\tlinux\t/boot/vmlinuz-{KERNEL} root=UUID=1 ro\n}}\n"
        },
        "/boot/grub2/grubenv": {"absent": True},
        "/boot/grub2/grub.cfg": {"absent": True},
        "/etc/dnf/plugins/versionlock.list": {"absent": True},
        "/etc/dnf/versionlock.toml": {"absent": True},
    },
    "commands": {
        "dkms_status": ran(f"nvidia/{VERSION}, {KERNEL}, x86_64: installed\n"),
        "dpkg_list": ran("".join(f"hi \t{name}\tamd64\t{VERSION}-1\n" for name in _PACKAGES), lines=812),
        "dpkg_audit": ran(),
        "dpkg_architecture": ran("amd64\n"),
        "apt_holds": ran("\n".join(_PACKAGES) + "\n"),
        "apt_config": ran('APT::Periodic::Unattended-Upgrade "1";\n', lines=300),
        "rpm_list": {"missing": True},
        "grubby_default": {"missing": True},
        "fabric_manager_version": ran(f"Fabric Manager version is : {VERSION}\n"),
        "fabric_manager_log": ran("Connected to 1 node.\nSuccessfully configured all the available NVSwitches.\n"),
        "units": ran(
            "\n".join(
                [
                    unit("nvidia-persistenced.service"),
                    unit("nvidia-fabricmanager.service"),
                    unit("apt-daily-upgrade.timer", "inactive", "dead", "masked", "masked"),
                    unit("dnf-automatic.timer", "inactive", "dead", "", "not-found"),
                    unit("dnf-automatic-install.timer", "inactive", "dead", "", "not-found"),
                    unit("dnf5-automatic.timer", "inactive", "dead", "", "not-found"),
                ]
            )
        ),
        "kernel_log": ran(
            "2026-11-30T08:00:01+0000 gpu001 kernel: NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  "
            f"{VERSION}  Release Build\n",
            lines=2048,
        ),
        "dmesg": ran("", lines=2048),
        "secure_boot": {"missing": True},
    },
    "kernels": {
        KERNEL: {
            "tree": True,
            "headers": True,
            "modules": {
                "nvidia": ran(
                    f"filename:       /lib/modules/{KERNEL}/updates/dkms/nvidia.ko.zst\nversion:        {VERSION}\n"
                    f"license:        Dual MIT/GPL\nvermagic:       {KERNEL} SMP preempt mod_unload modversions\n",
                    size=14000000,
                    mtime=1795000000.0,
                )
            },
        }
    },
    "initramfs": {KERNEL: ran("", path=f"/boot/initrd.img-{KERNEL}")},
    "boot": {"entries": [{"name": f"vmlinuz-{KERNEL}", "size": 1, "mtime": 1.0}]},
    "boot_entries": {"files": {}},
    "nvidia_smi": {
        "gpus": ran(gpu_rows(), dropped=[]),
        "apps": ran("gpu_bus_id, pid, process_name\n"),
    },
    "pci": {
        "devices": [
            {"address": bus_id, "vendor": "0x10de", "class": "0x030200", "device": "0x2330", "driver": "nvidia"}
            for bus_id in BUS_IDS
        ]
        + [
            {"address": f"0000:0{n}:00.0", "vendor": "0x10de", "class": "0x068000", "device": "0x22a3", "driver": ""}
            for n in range(5, 9)
        ],
        "unread": 0,
    },
    "nvlink5": {"ports": []},
    "processes": {
        "steps": [],
        "gpu": [
            {"pid": 900, "name": "nvidia-persiste", "state": "S", "age_s": 86000.0, "devices": ["/dev/nvidia0"]},
            {"pid": 901, "name": "nv-fabricmanage", "state": "S", "age_s": 86000.0, "devices": ["/dev/nvidiactl"]},
        ],
        "package": [],
        "unread": [],
        "scanned": 700,
    },
    "lease": {"absent": True},
    "secure_boot": {"efi": True, "hex": "0600000000"},
    "libraries": {"names": [f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}"]},
    "fabric_manager_log_file": {"absent": True},
    "apt_preferences": {"files": {}},
    "apt_sources": {"files": {}},
    "yum_repositories": {"files": {}},
    "kept_packages": {"roles": {}},
    "free": {"/var": {"free_bytes": 10**11}, "/boot": {"free_bytes": 10**9}},
}
