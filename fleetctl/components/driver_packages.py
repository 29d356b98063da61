"""Which packages belong to the driver, and which to fabric manager, by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from fleetctl.model.versions import is_prefix, upstream_of
from fleetctl.parse.packages import Package

# Names that NVIDIA's and Canonical's repositories give to parts of one driver build. Where a branch suffix stands,
# `<b>` allows it, with what may follow (-open, -server, -server-open); NVIDIA dropped the suffix from 590 on.
_DEBIAN = (
    r"nvidia-(?:driver|open|headless(?:-no-dkms)?|dkms|utils|compute-utils|kernel-source|kernel-common|kernel-support|firmware)<b>",
    r"nvidia-(?:dkms-open|kernel-open(?:-dkms)?|kernel-dkms|open-kernel-(?:dkms|source|support)|firmware-gsp|smi)<b>",
    r"nvidia-driver-(?:bin|cuda|libs|full|local-repo.*|pinning-[0-9.]+)",
    r"nvidia-(?:alternative|legacy-check|kernel-.*|egl-icd|vulkan-icd|opencl-icd|vdpau-driver|imex)<b>",
    r"cuda-drivers<b>",
    r"libnvidia-(?:compute|cfg1?|common|decode|encode|extra|fbc1?|gl|ml1?|gpucomp|nscq|nvvm4?|pkcs11.*|ptxjitcompiler1?)<b>",
    r"lib(?:cuda1|nvcuvid1|nvsdm|nvidia-api1|nvidia-sandboxutils)<b>",
    r"xserver-xorg-video-nvidia<b>",
    r"linux-(?:modules|objects|signatures)-nvidia<b>.*",
)
_DEBIAN_NVIDIA_ONLY = (r"nvidia-(?:persistenced|modprobe|settings|xconfig)", r"libxnvctrl0")
_RHEL = (
    r"nvidia-(?:driver|open|kmod-common|modprobe|persistenced|settings|xconfig|libXNVCtrl|imex|firmware)<b>",
    r"nvidia-driver-(?:cuda|cuda-libs|libs|devel|NVML|NvFBCOpenGL|pinning-[0-9.]+)",
    r"kmod-nvidia.*",
    r"cuda-drivers<b>",
    r"libnvidia-(?:ml|cfg|fbc|gpucomp|nscq)<b>",
    r"libnvsdm<b>",
    r"xorg-x11-(?:drv-)?nvidia.*",
)
_FABRIC_MANAGER = (
    r"nvidia-fabric-?manager(?:-dev(?:el)?)?<b>",
    r"cuda-drivers-fabricmanager<b>",
    r"nvlink5<b>",
)
# Their versions are the kernel's, or a branch alone.
_OTHER_VERSION = re.compile(r"^(?:linux-(?:modules|objects|signatures)-nvidia|kmod-nvidia-\d|nvidia-driver-local-repo)")
_PINNING = re.compile(r"^nvidia-driver-pinning-")


@lru_cache
def driver_set(family: str, source: str, branch: str | None = None) -> re.Pattern[str]:
    """Names that belong to the driver; with a branch, only those of this branch or without any."""
    names: tuple[str, ...] = _RHEL if family == "rhel" else _DEBIAN
    if family != "rhel" and source == "nvidia":
        # The distributions keep these as packages of their own, with versions of their own.
        names += _DEBIAN_NVIDIA_ONLY
    return _pattern(names, branch)


@lru_cache
def fabric_manager_set(branch: str | None = None) -> re.Pattern[str]:
    return _pattern(_FABRIC_MANAGER, branch)


def _pattern(names: Iterable[str], branch: str | None) -> re.Pattern[str]:
    suffix = rf"(?:-{re.escape(branch) if branch else '[0-9]{3}'}(?:-[0-9.]+)?(?:-server)?(?:-open)?)?(?:-[0-9.]+)?"
    return re.compile("(?:" + "|".join(name.replace("<b>", suffix) for name in names) + r")\Z")


def is_of_version(package: Package, version: str) -> bool:
    """True if the package is of this driver build, or if its version says nothing of the build."""
    if _OTHER_VERSION.match(package.name):
        return True
    upstream = upstream_of(package.version).partition("~")[0]
    if _PINNING.match(package.name):
        return is_prefix(upstream, version)
    return is_prefix(upstream, version) and is_prefix(version, upstream)


def source_of(packages: Iterable[Package]) -> str:
    """Who built these packages. Ubuntu's and Debian's own revisions name their release (0ubuntu0.24.04.1, deb12u1)."""
    own = re.compile(r"ubuntu0\.\d\d\.\d\d|~?deb\d+u\d+")
    return "distribution" if any(own.search(package.version) for package in packages) else "nvidia"
