"""Which packages belong to the driver, and which to fabric manager, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from fleetctl.model.versions import compare_dotted, is_prefix, upstream_of
from fleetctl.parse.packages import Package

# Whole names of the parts of one driver build, in NVIDIA's repositories and in the distributions' own, with or without
# a branch (NVIDIA dropped it from 590 on). The role nvidia_driver keeps the same list in its vars, because it must also
# work without fleetctl. Not here: container toolkit, nvidia-fs, GDS, cuda-compat: versions and roles of their own.
_DEBIAN = (
    r"cuda-drivers(?:-[0-9]+)?",
    r"nvidia-open(?:-[0-9]+)?",
    r"nvidia-driver(?:-[0-9]+)?(?:-server)?(?:-open)?",
    r"nvidia-driver-(?:bin|cuda|full|libs.*|pinning-.*)",
    r"nvidia-headless-.*",
    r"nvidia-dkms(?:-.*)?",
    r"nvidia-(?:open-)?kernel-.*",
    r"nvidia-firmware.*",
    r"firmware-nvidia-(?:gsp|graphics).*",
    r"nvidia-(?:compute-)?utils(?:-.*)?",
    r"nvidia-(?:alternative|installer-cleanup|legacy-check|modprobe|persistenced|settings|smi|support)",
    r"nvidia-(?:vdpau-driver|xconfig)",
    r"nvidia-(?:egl|opencl|vulkan)-.*",
    r"linux-(?:modules|objects|signatures)-nvidia-.*",
    r"libnvidia-(?:allocator|api|cfg|common|compute|decode|egl|encode|extra|fbc|gl|gpucomp|ml|ngx|nvvm|opticalflow).*",
    r"libnvidia-(?:pkcs11|present|ptxjitcompiler|rtcore|sandboxutils|tls|vksc).*",
    r"lib(?:cuda|cudadebugger|nvcuvid|nvoptix)1",
    r"lib(?:egl|gl|gles|glx).*-nvidia.*",
    r"xserver-xorg-video-nvidia.*",
)
# The distributions build these from sources with versions of their own.
_INDEPENDENT = re.compile(
    r"nvidia-(?:modprobe|persistenced|settings|xconfig|support|installer-cleanup|legacy-check)\Z|"
    r"nvidia-(?:egl|opencl|vulkan)-common\Z"
)
_RHEL = (
    r"cuda-drivers(?:-[0-9]+)?",
    r"nvidia-(?:driver(?!-assistant)|kmod-common|libXNVCtrl|modprobe|open|persistenced|settings|xconfig).*",
    r"kmod-nvidia-.*",
    r"libnvidia-(?:cfg|fbc|gpucomp|ml).*",
    r"xorg-x11-(?:drv-)?nvidia.*",
)
# NVSwitch software comes in builds of the driver too, and must be of the same one.
_FABRIC_MANAGER = re.compile(
    r"(?:nvidia-fabric-?manager(?:-dev(?:el)?)?|cuda-drivers-fabricmanager|nvlink5|libnvidia-nscq|libnvsdm|nvidia-imex)"
    r"(?:-[0-9]+)?\Z"
)
# Other forms (6.8.0-60.63 of linux-modules-nvidia-*, 1.1.20 of libnvidia-egl-wayland1) say nothing of the build.
_DRIVER_VERSION = re.compile(r"\d{3}(?:\.\d+){0,2}\Z")


@lru_cache
def driver_set(family: str, source: str) -> re.Pattern[str]:
    """Names that belong to the driver, whatever their branch: of any other branch they are leftovers."""
    names = _RHEL if family == "rhel" else _DEBIAN
    independent = f"(?!{_INDEPENDENT.pattern})" if family != "rhel" and source == "distribution" else ""
    return re.compile(f"{independent}(?:{'|'.join(names)})\\Z")


def fabric_manager_set() -> re.Pattern[str]:
    return _FABRIC_MANAGER


def is_of_version(package: Package, version: str) -> bool:
    """True if the package is of this driver build, or if its version says nothing of the build."""
    upstream = upstream_of(package.version).partition("~")[0]
    if not _DRIVER_VERSION.match(upstream):
        return True
    if package.name.startswith("nvidia-driver-pinning-"):
        return is_prefix(upstream, version)
    return compare_dotted(upstream, version) == 0


def source_of(packages: Iterable[Package]) -> str:
    """Who built the driver packages among these. Ubuntu's and Debian's own revisions name their release."""
    own = re.compile(r"ubuntu0\.\d\d\.\d\d|[~+]deb\d+u\d+")
    parts = [package for package in packages if driver_set("debian", "nvidia").match(package.name)]
    judged = [package for package in parts if not _INDEPENDENT.match(package.name)]
    return "distribution" if any(own.search(package.version) for package in judged) else "nvidia"
