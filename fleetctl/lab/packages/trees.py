"""Lays out what one .deb installs: files, compiled stand-ins, maintainer scripts and control data."""

import hashlib
import re
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path

from fleetctl.errors import FleetctlError
from fleetctl.lab.packages.table import PAYLOAD, TRIPLETS, Package

MAINTAINER = "fleetctl lab <lab@fleetctl.invalid>"
KERNEL_MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
# -std=c99: newer C libraries then offer no symbols that Debian 12's lacks, so one build serves both node images.
COMPILE = ("gcc", "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-s")
MINUTE_S = 60


def lay_out(package: Package, root: Path) -> None:
    """Fill the empty directory `root` with the package's files and its DEBIAN directory."""
    words = _words(package)
    for file in package.files:
        _write(root, file.target, _render(file.source, words), file.mode)
    for directory in package.directories:
        (root / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for link, target in package.links:
        path = root / link.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    for library in package.libraries:
        _compile_library(package, library, root)
    if package.daemon:
        program = root / "usr/bin" / package.daemon.program
        _compile(package, f"{package.daemon.program}.c", program)
        unit = package.daemon.unit
        _write(root, f"/usr/lib/systemd/system/{unit}", _render(unit, words))
    if package.kernel_source:
        _lay_kernel_source(package, root)
    if package.kernel_image:
        _lay_kernel_image(package.kernel, root)
    if package.kernel_headers:
        _lay_kernel_headers(package.kernel, root)
    if package.pin:
        text = f"Package: *nvidia* cuda-drivers*\nPin: version {package.pin}\nPin-Priority: 1000\n"
        # apt ignores a file of preferences.d whose name has another extension, and "580.95.05" ends in one.
        _write(root, f"/etc/apt/preferences.d/{package.name}.pref", text)
    _write(root, f"/usr/share/doc/{package.name}/copyright", "A stand-in of the fleetctl lab. Licence: Apache-2.0.\n")
    _lay_control(package, root, words)
    # Whatever the umask was: these become directories of the node.
    for directory_path in (root, *(path for path in root.rglob("*") if path.is_dir() and not path.is_symlink())):
        directory_path.chmod(0o755)


def _words(package: Package) -> dict[str, str]:
    return {
        "VERSION": package.upstream,
        "UPSTREAM": package.upstream,
        "CUDA": package.cuda,
        "KERNEL": package.kernel,
        "UNIT": package.daemon.unit if package.daemon else "",
    }


def _render(source: str, words: Mapping[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda match: words[match.group(1)], (PAYLOAD / source).read_text())


def _write(root: Path, target: str, text: str, mode: int = 0o644) -> None:
    path = root / target.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _cuda_number(package: Package) -> int:
    """cuda.h's CUDA_VERSION: 13.1 is 13010. A package of the archive has no CUDA of its own."""
    major, _, minor = (package.cuda or "0.0").partition(".")
    return int(major) * 1000 + int(minor) * 10


def _compile(package: Package, source: str, target: Path, *options: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    defines = (
        f'-DVERSION="{package.upstream}"',
        f"-DCUDA_VERSION={_cuda_number(package)}",
        f'-DLIBRARIES="/usr/lib/{TRIPLETS[package.architecture]}"',
    )
    command = [*COMPILE, *defines, *options, "-o", str(target), str(PAYLOAD / source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MINUTE_S, check=False)
    if done.returncode != 0:
        raise FleetctlError(f"{source} does not compile for {package.name}: {done.stderr.strip()}")
    target.chmod(0o755)


def _compile_library(package: Package, library: str, root: Path) -> None:
    directory = root / "usr/lib" / TRIPLETS[package.architecture]
    file = directory / f"{library}.so.{package.upstream}"
    _compile(package, f"{library}.c", file, "-shared", "-fPIC", f"-Wl,-soname,{library}.so.1")
    file.chmod(0o644)
    (directory / f"{library}.so.1").symlink_to(file.name)
    (directory / f"{library}.so").symlink_to(f"{library}.so.1")


def _lay_kernel_source(package: Package, root: Path) -> None:
    directory = f"/usr/src/nvidia-{package.upstream}"
    lines = ['PACKAGE_NAME="nvidia"', f'PACKAGE_VERSION="{package.upstream}"', 'AUTOINSTALL="yes"']
    for index, module in enumerate(KERNEL_MODULES):
        lines.append(f'BUILT_MODULE_NAME[{index}]="{module}"')
        lines.append(f'DEST_MODULE_LOCATION[{index}]="/updates/dkms"')
        source = (
            "/* Stand-in of the fleetctl lab: all that its dkms reads. */",
            f'MODULE_LICENSE("{package.kernel_source}");',
            f'MODULE_VERSION("{package.upstream}");',
        )
        _write(root, f"{directory}/{module}.c", "\n".join(source) + "\n")
    _write(root, f"{directory}/dkms.conf", "\n".join(lines) + "\n")


def _lay_kernel_image(kernel: str, root: Path) -> None:
    modules = f"/lib/modules/{kernel}"
    _write(root, f"/boot/vmlinuz-{kernel}", f"stand-in of the fleetctl lab: Linux {kernel}\n")
    _write(
        root,
        f"/boot/config-{kernel}",
        "# Stand-in of the fleetctl lab\nCONFIG_MODULES=y\n# CONFIG_MODULE_SIG_FORCE is not set\n",
    )
    _write(root, f"/boot/System.map-{kernel}", "ffffffffffffffff B The_real_System.map_is_in_the_debug_package\n")
    # An empty but real cpio archive: an initramfs without any NVIDIA module in it.
    trailer = "070701" + "0" * 8 * 4 + f"{1:08x}" + "0" * 8 * 6 + f"{11:08x}" + "0" * 8 + "TRAILER!!!\0"
    _write(root, f"/boot/initrd.img-{kernel}", trailer + "\0" * (-len(trailer) % 512))
    _write(root, f"{modules}/modules.builtin", "kernel/fs/ext4/ext4.ko\nkernel/drivers/block/virtio_blk.ko\n")
    _write(root, f"{modules}/modules.builtin.modinfo", "ext4.license=GPL\0virtio_blk.license=GPL\0")
    _write(root, f"{modules}/modules.order", "")
    (root / modules.lstrip("/") / "kernel").mkdir()


def _lay_kernel_headers(kernel: str, root: Path) -> None:
    headers = f"/usr/src/linux-headers-{kernel}"
    _write(root, f"{headers}/include/generated/utsrelease.h", f'#define UTS_RELEASE "{kernel}"\n')
    _write(root, f"{headers}/Makefile", "# Stand-in of the fleetctl lab: present, as dkms wants to see it.\n")
    modules = root / "lib/modules" / kernel
    modules.mkdir(parents=True)
    (modules / "build").symlink_to(headers)


def _lay_control(package: Package, root: Path, words: Mapping[str, str]) -> None:
    control = root / "DEBIAN"
    control.mkdir()
    scripts = dict(package.scripts)
    if package.daemon:
        scripts.update(postinst="daemon.postinst", prerm="daemon.prerm", postrm="daemon.postrm")
    if package.ldconfig:
        scripts.update(postinst="ldconfig.sh", postrm="ldconfig.sh")
    for name, source in scripts.items():
        _write(root, f"/DEBIAN/{name}", _render(source, words), 0o755)
    if package.conffiles:
        _write(root, "/DEBIAN/conffiles", "\n".join(package.conffiles) + "\n")
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    installed = [path for path in files if control not in path.parents]
    # md5 is dpkg's format: `dpkg --verify` reads these.
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}"
        for path in installed
    ]
    _write(root, "/DEBIAN/md5sums", "\n".join(sums) + "\n")
    size_kib = sum(path.stat().st_size for path in installed) // 1024 + 1
    _write(root, "/DEBIAN/control", _control(package, size_kib))


def _control(package: Package, size_kib: int) -> str:
    fields = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": package.architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(size_kib),
        "Section": "kernel" if package.component == "lab" else "non-free/libs",
        "Priority": "optional",
        "Depends": ", ".join(package.depends),
        "Provides": ", ".join(package.exclusive),
        "Conflicts": ", ".join(package.exclusive),
        "Replaces": ", ".join(package.exclusive),
        "Description": package.summary,
    }
    lines = [f"{key}: {value}" for key, value in fields.items() if value]
    about = "A stand-in of the fleetctl lab: names and versions are the field's, the content is not. It drives no GPU."
    return "\n".join([*lines, *(f" {line}" for line in textwrap.wrap(about, 76))]) + "\n"
