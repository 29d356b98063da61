"""What one node says of itself: raw texts and exit codes as one bounded JSON object, schema 1. Judges nothing.

Runs on the node's own Python (3.6 or newer), standard library alone, as root, read-only:
`python3 - < probe.py`. One line of JSON on stdout; README.md beside this file describes it.
"""

import collections
import errno
import glob
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

PARAMETERS = "{}"

Fact = Dict[str, Any]

TEXT_LIMIT = 96 * 1024
OUTPUT_LIMIT = 1024 * 1024
KERNELS_AT_MOST = 8
# After SIGKILL a child may stay in D state for ever: it gets this long to go, then it is left alone.
AFTER_KILL_S = 0.5
# Others run nvidia-smi too, and its start may take long without the persistence daemon.
NVIDIA_SMI_STUCK_AFTER_S = 20

# Newer columns come last; those that this nvidia-smi does not know are left out and asked for as XML.
GPU_COLUMNS = (
    "index,uuid,name,pci.bus_id,pci.device_id,driver_version,vbios_version,memory.total,persistence_mode,"
    "mig.mode.current,ecc.mode.current,fabric.state,fabric.status,gpu_recovery_action"
)

UNITS = (
    "nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service nvidia-dcgm.service "
    "unattended-upgrades.service apt-daily.timer apt-daily-upgrade.timer packagekit.service "
    "dnf-automatic.timer dnf-automatic-install.timer dnf5-automatic.timer slurmd.service kubelet.service"
).split()

PACKAGES = (
    r"nvidia|cuda|nvcuvid|nvoptix|xnvctrl|nvlink|nvlsm|nvsdm|imex|fabric-?manager|datacenter-gpu|dcgm|dkms|"
    r"doca|mlnx|mlx|ofed|mft|rdma|infiniband|ibverbs|"
    r"linux-(image|headers|modules)|^kernel|kmod|lustre|gdrcopy|gdrdrv|nccl|unattended-upgrades|dnf-automatic"
)

PACKAGE_PROGRAMS = frozenset(
    "apt apt-get aptitude dpkg dpkg-deb apt.systemd.dai unattended-upgr dnf dnf5 dnf-3 yum rpm microdnf zypper tdnf "
    "dkms packagekitd needrestart update-initramf mkinitramfs dracut depmod akmods".split()
)
ANSIBLE = re.compile(r"ansible-tmp-|AnsiballZ_|BECOME-SUCCESS-|async_wrapper|ansible-playbook|ansible-pull")

# Of a certificate as OpenSSL prints it: serial number and key identifier, which may stand on the line below.
CERTIFICATE_LINES = r"^\[key |Serial Number:|Subject Key Identifier:|^( {12}| {16})[0-9A-Fa-f:]+$"

# name -> (argv, deadline in seconds, only lines that match, keep the end rather than the beginning)
COMMANDS: Dict[str, Tuple[List[str], float, Optional[str], bool]] = {
    "dkms_status": (["dkms", "status"], 30, None, False),
    "dpkg_list": (
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}\\t${Package}\\t${Architecture}\\t${Version}\\n"],
        30,
        r"\t\S*(?:%s)|^[^ih]|^.[^in]|^..\S" % PACKAGES.replace("^", ""),
        False,
    ),
    "dpkg_audit": (["dpkg", "--audit"], 30, None, False),
    "dpkg_architecture": (["dpkg", "--print-architecture"], 10, None, False),
    "apt_holds": (["apt-mark", "showhold"], 20, None, False),
    "apt_config": (["apt-config", "dump"], 20, r"^(APT::Periodic|Unattended-Upgrade)", False),
    "rpm_list": (
        ["rpm", "-qa", "--qf", "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\n"],
        40,
        PACKAGES,
        False,
    ),
    "grubby_default": (["grubby", "--default-kernel"], 15, None, False),
    "fabric_manager_version": (["nv-fabricmanager", "--version"], 15, None, False),
    "fabric_manager_log": (
        ["journalctl", "-u", "nvidia-fabricmanager", "-b", "--no-pager", "-n", "40", "-o", "cat"],
        20,
        None,
        True,
    ),
    "units": (
        ["systemctl", "show", "--no-pager", "-p", "Id,LoadState,ActiveState,SubState,Result,UnitFileState", *UNITS],
        20,
        None,
        False,
    ),
    "kernel_log": (["journalctl", "-k", "-b", "--no-pager", "-q", "-o", "short-iso"], 30, r"NVRM|SXid|nvidia", True),
    "dmesg": (["dmesg"], 15, r"NVRM|SXid|nvidia", True),
    "secure_boot": (["mokutil", "--sb-state"], 15, None, False),
    "enrolled_keys": (["mokutil", "--list-enrolled"], 15, CERTIFICATE_LINES, False),
    "firmware_keys": (["mokutil", "--db"], 15, CERTIFICATE_LINES, False),
}

FILES = (
    "/proc/driver/nvidia/version",
    "/sys/module/nvidia/version",
    "/sys/module/nvidia_uvm/initstate",
    "/sys/module/nvidia_modeset/initstate",
    "/sys/module/nvidia_drm/initstate",
    "/sys/module/nvidia_peermem/initstate",
    "/sys/module/nvidia_fs/initstate",
    "/sys/module/gdrdrv/initstate",
    "/proc/sys/kernel/random/boot_id",
    "/proc/uptime",
    "/proc/cmdline",
    "/etc/machine-id",
    "/etc/os-release",
    "/sys/class/dmi/id/product_uuid",
    "/sys/class/dmi/id/product_serial",
    "/sys/class/dmi/id/board_serial",
    "/etc/default/grub",
    "/etc/kernel/cmdline",
    "/boot/grub/grubenv",
    "/boot/grub2/grubenv",
    "/boot/loader/loader.conf",
    "/etc/dnf/automatic.conf",
    "/etc/dnf/dnf.conf",
    "/etc/dnf/plugins/versionlock.list",
    "/etc/dnf/versionlock.toml",
    "/run/reboot-required.pkgs",
    "/sys/module/module/parameters/sig_enforce",
    "/sys/kernel/security/lockdown",
)

# What tells which kernel a menu entry boots, and how entries nest; the rest of grub.cfg is long and says neither.
GRUB_LINES = r"^\s*(menuentry|submenu|linux(16|efi)?\s|set default=|blscfg|\})|\{\s*$"
INITRAMFS_LINES = r"/nvidia[^/]*\.ko"


def environment(path: str) -> Dict[str, str]:
    return {
        "PATH": path,
        "LC_ALL": "C",
        "LANG": "C",
        "HOME": "/root",
        "DEBIAN_FRONTEND": "noninteractive",
        "SYSTEMD_COLORS": "0",
        "SYSTEMD_PAGER": "",
    }


class Output:
    """Bounded text of a stream: its beginning or its end, whole, or only lines that match."""

    def __init__(self, keep: Optional[str], tail: bool) -> None:
        self._keep = re.compile(keep) if keep else None
        self._tail = tail
        self._rest = b""
        self._parts: Any = collections.deque()
        self._size = 0
        self.truncated = False
        self.lines = 0

    def feed(self, data: bytes) -> None:
        if self._keep is None:
            self._add(data.decode("utf-8", "replace"))
            return
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-65536:]
        for line in lines:
            self._add_line(line)

    def _add_line(self, line: bytes) -> None:
        self.lines += 1
        text = line.decode("utf-8", "replace")
        if self._keep is not None and self._keep.search(text):
            self._add(text[:4096] + "\n")

    def _add(self, text: str) -> None:
        if self._tail:
            self._parts.append(text)
            self._size += len(text)
            while self._size > TEXT_LIMIT and len(self._parts) > 1:
                self._size -= len(self._parts.popleft())
                self.truncated = True
            return
        room = TEXT_LIMIT - self._size
        self.truncated = self.truncated or len(text) > room
        self._parts.append(text[:room])
        self._size += len(text[:room])

    def text(self) -> str:
        if self._rest:
            self._add_line(self._rest)
            self._rest = b""
        return "".join(self._parts)


class Runner:
    """Runs commands with a deadline each; never waits for a child that can't be killed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def run(self, argv: List[str], deadline_s: float, keep: Optional[str] = None, tail: bool = False) -> Fact:
        started = time.time()
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(self._path),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return {"missing": True}
            return {"error": describe(error)}
        out, err = Output(keep, tail), Output(None, False)
        ended = self._read(child, {child.stdout: out, child.stderr: err}, started + deadline_s)
        fact: Fact = {"out": out.text(), "err": err.text()[:4096], "took_s": round(time.time() - started, 2)}
        if out.truncated:
            fact["truncated"] = True
        if keep:
            fact["lines"] = out.lines
        if ended:
            fact["rc"] = child.returncode
        else:
            fact["timed_out"] = True
            fact["pid"] = child.pid
        return fact

    @staticmethod
    def _read(child: Any, outputs: Dict[Any, Output], until: float) -> bool:
        """Read until the child has ended; True if it has, False if it was killed or given up."""
        open_streams = list(outputs)
        while time.time() < until:
            # Asked before the pipes are: what a child writes just before it ends must not be missed.
            has_ended = child.poll() is not None
            ready = select.select(open_streams, [], [], 0.05)[0] if open_streams else []
            for stream in ready:
                data = os.read(stream.fileno(), 65536)
                if data:
                    outputs[stream].feed(data)
                else:
                    open_streams.remove(stream)
            if has_ended and not ready:
                # A grandchild may hold the pipe open: what the child itself wrote has been read.
                return True
            if not open_streams:
                time.sleep(0.01)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
        give_up = time.time() + AFTER_KILL_S
        while child.poll() is None and time.time() < give_up:
            time.sleep(0.02)
        return False


def describe(error: Exception) -> str:
    number = getattr(error, "errno", None)
    name = errno.errorcode.get(number, "") if number else type(error).__name__
    return ("%s: %s" % (name, error))[:300]


def read_file(path: str, limit: int = TEXT_LIMIT, keep: Optional[str] = None) -> Fact:
    """The text of a file, or that it is absent, or why it can't be read: three different facts."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(limit * 8 if keep else limit + 1)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return {"absent": True}
        return {"error": describe(error)}
    text = data.decode("utf-8", "replace")
    if keep:
        text = "\n".join(line for line in text.splitlines() if re.search(keep, line))
    fact: Fact = {"text": text[:limit]}
    if len(text) > limit:
        fact["truncated"] = True
    return fact


def without_credentials(fact: Fact) -> Fact:
    if "text" in fact:
        fact["text"] = re.sub(r"://[^/\s@]+@", "://***@", fact["text"])
    return fact


def list_boot() -> Fact:
    entries = []
    try:
        names = sorted(os.listdir("/boot"))
    except OSError as error:
        return {"absent": True} if error.errno == errno.ENOENT else {"error": describe(error)}
    for name in names:
        if re.match(r"(vmlinu[xz]|kernel|initrd|initramfs|Image)", name):
            try:
                status = os.stat(os.path.join("/boot", name))
                entries.append({"name": name, "size": status.st_size, "mtime": status.st_mtime})
            except OSError as error:
                entries.append({"name": name, "error": describe(error)})
    return {"entries": entries[:64]}


def list_kernels() -> List[str]:
    """Kernels that have a module tree here, newest first by a plain numeric order, and always the running one."""
    found: Set[str] = set()
    for root in ("/lib/modules", "/usr/lib/modules"):
        try:
            names = os.listdir(root)
        except OSError:
            continue
        found.update(name for name in names if os.path.isdir(os.path.join(root, name)))
    for path in glob.glob("/boot/vmlinuz-*"):
        found.add(os.path.basename(path)[len("vmlinuz-") :])
    running = os.uname().release
    found.discard(running)
    ordered = sorted(found, key=lambda name: [int(part) for part in re.findall(r"\d+", name)], reverse=True)
    return [running, *[name for name in ordered if "rescue" not in name][: KERNELS_AT_MOST - 1]]


def read_kernel(runner: Runner, kernel: str, modules: List[str]) -> Fact:
    """What is on disk for one installed kernel: each module's modinfo and file, and whether headers are there."""
    fact: Fact = {"modules": {}}
    tree = os.path.join("/lib/modules", kernel)
    fact["tree"] = os.path.isdir(tree)
    fact["headers"] = os.path.exists(os.path.join(tree, "build", "Makefile"))
    for module in modules:
        found = runner.run(
            ["modinfo", "-k", kernel, module], 10, r"^(filename|version|license|signer|sig_id|signat|sig_key|vermagic):"
        )
        named = re.search(r"^filename:\s+(/\S+)", found.get("out", ""), re.MULTILINE)
        if named:
            try:
                status = os.stat(named.group(1))
                found["size"], found["mtime"] = status.st_size, status.st_mtime
            except OSError as error:
                found["stat_error"] = describe(error)
        fact["modules"][module] = found
    return fact


def read_initramfs(runner: Runner, kernel: str) -> Fact:
    """The nvidia modules inside the kernel's initramfs, by name and size; `absent` where the kernel has none."""
    for path in ("/boot/initrd.img-" + kernel, "/boot/initramfs-" + kernel + ".img", "/boot/initrd-" + kernel):
        if os.path.exists(path):
            fact: Fact = {}
            for argv in (["lsinitramfs", "-l", path], ["lsinitrd", path]):
                fact = runner.run(["nice", "-n", "19", *argv], 25, INITRAMFS_LINES)
                if fact.get("rc") != 127:
                    break
            else:
                fact = list_plain_cpio(path)
            fact["path"] = path
            return fact
    return {"absent": True}


def list_plain_cpio(path: str) -> Fact:
    """As a lister would print it, of an archive that is not compressed (cpio "newc"); for nodes without a lister."""
    lines: List[str] = []
    count, name = 0, ""
    with open(path, "rb") as stream:
        while True:
            header = stream.read(110)
            if not header and name == "TRAILER!!!":
                return {"rc": 0, "out": "".join(lines), "err": "", "lines": count}
            if len(header) < 110 or header[:6] not in (b"070701", b"070702"):
                return {"error": "compressed or cut off, and neither lsinitramfs nor lsinitrd on this node"}
            size, length = int(header[54:62], 16), int(header[94:102], 16)
            name = stream.read(length).rstrip(b"\0").decode("utf-8", "replace")
            # Name and content each end on a multiple of four.
            stream.seek(-stream.tell() % 4, os.SEEK_CUR)
            stream.seek(size + -size % 4, os.SEEK_CUR)
            count += 1
            line = "-rw-r--r-- 1 root root %d 1970-01-01 %s\n" % (size, name)
            if re.search(INITRAMFS_LINES, line):
                lines.append(line)
            if name == "TRAILER!!!":
                skip_zeros(stream)  # another archive may follow


def skip_zeros(stream: Any) -> None:
    byte = b"\0"
    while byte == b"\0":
        byte = stream.read(1)
    stream.seek(-len(byte), os.SEEK_CUR)


def read_pci() -> Fact:
    """NVIDIA's devices on the PCI bus."""
    root = "/sys/bus/pci/devices"
    try:
        addresses = sorted(os.listdir(root))
    except OSError as error:
        return {"absent": True} if error.errno == errno.ENOENT else {"error": describe(error)}
    devices, unread = [], 0
    for address in addresses:
        device = {"address": address}
        for key in ("vendor", "class", "device"):
            device[key] = read_file(os.path.join(root, address, key), 64).get("text", "").strip()
        if not device["vendor"]:
            unread += 1
        elif device["vendor"] == "0x10de":
            try:
                device["driver"] = os.path.basename(os.readlink(os.path.join(root, address, "driver")))
            except OSError:
                device["driver"] = ""
            devices.append(device)
    return {"devices": devices[:256], "unread": unread}


def read_nvlink5() -> Fact:
    """Ports that manage NVLink 5 switches (HGX B200 and later): their VPD says SW_MNG."""
    ports = []
    for path in glob.glob("/sys/class/infiniband/*/device/vpd"):
        try:
            with open(path, "rb") as stream:
                if b"SW_MNG" in stream.read(4096):
                    ports.append(path.split("/")[4])
        except OSError as error:
            return {"error": describe(error)}
    return {"ports": sorted(ports)[:64]}


Process = collections.namedtuple("Process", "pid name state parent session age_s")


def read_process(pid: str) -> Process:
    """Raises OSError, ValueError or IndexError for a process that ends while we look."""
    with open("/proc/%s/stat" % pid, "rb") as stream:
        text = stream.read().decode("utf-8", "replace")
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    with open("/proc/uptime") as uptime:
        age = float(uptime.read().split()[0]) - int(rest[19]) / float(os.sysconf("SC_CLK_TCK"))
    return Process(int(pid), name, rest[0], int(rest[1]), int(rest[3]), round(age, 1))


def is_of_this_probe(process: Process) -> bool:
    """Each command of the probe leads a session of its own and is our child."""
    if os.getpid() in (process.pid, process.parent):
        return True
    try:
        return bool(read_process(str(process.session)).parent == os.getpid())
    except (OSError, ValueError, IndexError):
        return False


def read_processes() -> Fact:
    """Job steps, processes with a GPU open, and package managers or Ansible at work; none of the probe's own."""
    fact: Fact = {"steps": [], "gpu": [], "package": [], "unread": [], "scanned": 0}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            process = read_process(pid)
            with open("/proc/%s/cmdline" % pid, "rb") as stream:
                words = stream.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except (OSError, ValueError, IndexError):
            continue
        if is_of_this_probe(process):
            continue
        fact["scanned"] += 1
        name = process.name
        entry = {"pid": process.pid, "name": name, "state": process.state, "age_s": process.age_s}
        if name == "slurmstepd":
            fact["steps"].append(entry)
        if name in PACKAGE_PROGRAMS or ANSIBLE.search(words):
            fact["package"].append(dict(entry, words=words[:200]))
        if not words:
            continue  # a kernel thread
        try:
            opened = open_gpus(pid)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                fact["unread"].append(entry)
            continue
        if opened:
            fact["gpu"].append(dict(entry, devices=opened))
    for key in ("steps", "gpu", "package", "unread"):
        fact[key + "_count"] = len(fact[key])
        fact[key] = fact[key][:50]
    return fact


def open_gpus(pid: str) -> List[str]:
    found = set()
    folder = "/proc/%s/fd" % pid
    for number in os.listdir(folder):
        try:
            target = os.readlink(os.path.join(folder, number))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise
            continue
        if target.startswith("/dev/nvidia"):
            found.add(target)
    return sorted(found)[:16]


def find_stuck(program: str) -> List[int]:
    """Processes of this name that have been in D state for long: a second one would only join them."""
    stuck = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            process = read_process(pid)
        except (OSError, ValueError, IndexError):
            continue
        if process.name == program and process.state == "D" and process.age_s > NVIDIA_SMI_STUCK_AFTER_S:
            stuck.append(process.pid)
    return stuck


def ask_nvidia_smi(runner: Runner, deadline_s: float) -> Fact:
    """GPUs and their processes. One nvidia-smi at a time, and none once one hangs."""
    stuck = find_stuck("nvidia-smi")
    if stuck:
        return {"gpus": {"stuck": stuck}}
    columns = GPU_COLUMNS.split(",")
    dropped: List[str] = []
    while True:
        gpus = runner.run(["nvidia-smi", "--query-gpu=" + ",".join(columns), "--format=csv"], deadline_s)
        named = re.search(r'Field "([^"]+)" is not a valid field', gpus.get("out", "") + gpus.get("err", ""))
        if not named or named.group(1) not in columns:
            break
        columns.remove(named.group(1))
        dropped.append(named.group(1))
    gpus["dropped"] = dropped
    facts: Fact = {"gpus": gpus}
    if gpus.get("rc") == 0:
        facts["apps"] = runner.run(
            ["nvidia-smi", "--query-compute-apps=gpu_bus_id,pid,process_name", "--format=csv"], deadline_s
        )
        if dropped and facts["apps"].get("rc") == 0:
            facts["xml"] = runner.run(["nvidia-smi", "-q", "-x"], deadline_s)
    return facts


def read_lease(directory: str) -> Fact:
    """The lease and who runs a command under it now (holders of the lock, from /proc/locks)."""
    fact = read_file(os.path.join(directory, "lease.json"), 4096)
    try:
        inode = os.stat(os.path.join(directory, "lease.lock")).st_ino
        with open("/proc/locks") as locks:
            held = [line.split() for line in locks if " FLOCK " in line and "->" not in line]
        fact["holders"] = [int(words[4]) for words in held if words[5].rsplit(":", 1)[-1] == str(inode)]
    except OSError as error:
        if error.errno != errno.ENOENT:
            fact["holders_error"] = describe(error)
    except (ValueError, IndexError) as error:
        fact["holders_error"] = describe(error)
    return fact


def read_secure_boot() -> Fact:
    if not os.path.isdir("/sys/firmware/efi"):
        return {"efi": False}
    paths = glob.glob("/sys/firmware/efi/efivars/SecureBoot-*")
    if not paths:
        return {"efi": True, "absent": True}
    try:
        with open(paths[0], "rb") as stream:
            return {"efi": True, "hex": stream.read(16).hex()}
    except OSError as error:
        return {"efi": True, "error": describe(error)}


def read_free(path: str) -> Fact:
    try:
        status = os.statvfs(path)
    except OSError as error:
        return {"absent": True} if error.errno == errno.ENOENT else {"error": describe(error)}
    return {"free_bytes": status.f_bavail * status.f_frsize}


def read_matching(patterns: Tuple[str, ...], mention: str, limit: int = 4096) -> Fact:
    """Files of these patterns, by name; the text of those that mention a word."""
    files = {}
    for path in sorted(path for pattern in patterns for path in glob.glob(pattern))[:60]:
        fact = without_credentials(read_file(path, limit))
        if "text" in fact and not re.search(mention, fact["text"]):
            fact = {"unrelated": True}
        files[path] = fact
    return {"files": files}


def list_kept(directory: str) -> Fact:
    """Packages that the roles keep on the node for a way back: names of files, by role."""
    kept = {}
    for folder in glob.glob(os.path.join(glob.escape(directory), "*", "archives")):
        names = sorted(name for name in os.listdir(folder) if name.endswith((".deb", ".rpm")))
        kept[os.path.basename(os.path.dirname(folder))] = names[:1000]
    return {"roles": kept}


def list_libraries() -> Fact:
    """Versions of NVIDIA's userland as the names of its libraries tell them."""
    names = set()
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"):
        for library in ("libnvidia-ml.so.*", "libcuda.so.*"):
            names.update(glob.glob(os.path.join(folder, library)))
    return {"names": sorted(names)[:40]}


def tail_file(path: str, limit: int = 8192) -> Fact:
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - limit))
            return {"text": stream.read(limit).decode("utf-8", "replace")}
    except OSError as error:
        return {"absent": True} if error.errno == errno.ENOENT else {"error": describe(error)}


def tasks_of(parameters: Fact, runner: Runner) -> Dict[str, Tuple[float, Callable[[], Fact]]]:
    """Everything to read, by its path in the result, each with its own deadline."""
    tasks: Dict[str, Tuple[float, Callable[[], Fact]]] = {}

    def add(name: str, deadline_s: float, call: Callable[..., Fact], *arguments: Any) -> None:
        tasks[name] = (deadline_s, lambda: call(*arguments))

    for name, (argv, deadline_s, keep, tail) in COMMANDS.items():
        add("commands/" + name, deadline_s, runner.run, argv, deadline_s, keep, tail)
    for path in FILES:
        add("files/" + path.replace("/", "\0"), 5, read_file, path)
    for path in ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg"):
        add("files/" + path.replace("/", "\0"), 5, read_file, path, TEXT_LIMIT, GRUB_LINES)
    add("files/" + "/proc/keys".replace("/", "\0"), 5, read_file, "/proc/keys", 32768, " asymmetri ")
    modules = ["nvidia"] + [
        name for name in parameters.get("modules", []) if re.match(r"[A-Za-z0-9_][A-Za-z0-9_-]*$", str(name))
    ]
    kernels = list_kernels()
    for kernel in kernels:
        add("kernels/" + kernel, 10 * len(modules), read_kernel, runner, kernel, modules)
    for kernel in kernels[:2]:
        add("initramfs/" + kernel, 30, read_initramfs, runner, kernel)
    nvidia_smi_s = float(parameters.get("nvidia_smi_deadline_s", 45))
    add("nvidia_smi", 3 * nvidia_smi_s, ask_nvidia_smi, runner, nvidia_smi_s)
    add("boot", 5, list_boot)
    add("boot_entries", 5, read_matching, ("/boot/loader/entries/*.conf", "/boot/efi/loader/entries/*.conf"), ".", 2048)
    add("pci", 10, read_pci)
    add("nvlink5", 10, read_nvlink5)
    add("processes", 15, read_processes)
    add("lease", 5, read_lease, str(parameters.get("lease_directory", "/var/lib/fleetctl")))
    add("secure_boot", 5, read_secure_boot)
    add("libraries", 5, list_libraries)
    add("kept_packages", 5, list_kept, str(parameters.get("cache_directory", "/var/cache/fleetctl")))
    add("fabric_manager_log_file", 5, tail_file, "/var/log/fabricmanager.log")
    add("apt_preferences", 5, read_matching, ("/etc/apt/preferences", "/etc/apt/preferences.d/*"), "nvidia|cuda")
    add("apt_sources", 5, read_matching, ("/etc/apt/sources.list", "/etc/apt/sources.list.d/*"), "://")
    add("yum_repositories", 5, read_matching, ("/etc/yum.repos.d/*.repo",), "nvidia|cuda|doca|mellanox")
    for path in ("/var", "/boot"):
        add("free/" + path.replace("/", "\0"), 5, read_free, path)
    return tasks


def gather(tasks: Dict[str, Tuple[float, Callable[[], Fact]]]) -> Dict[str, Any]:
    """Do all tasks side by side; one that passes its deadline is left behind and reported as timed out."""
    facts: Dict[str, Any] = {}
    started = time.time()

    def do(name: str, call: Callable[[], Fact]) -> None:
        try:
            facts[name] = call()
        except Exception as error:
            facts[name] = {"error": describe(error)}

    threads = []
    for name, (deadline_s, call) in tasks.items():
        thread = threading.Thread(target=do, args=(name, call))
        thread.daemon = True
        thread.start()
        threads.append((name, deadline_s + 2 * AFTER_KILL_S, thread))
    for name, limit_s, thread in threads:
        thread.join(max(0.0, started + limit_s - time.time()))
        if name not in facts:
            facts[name] = {"timed_out": True}
    return {name: facts[name] for name in tasks}


def nest(flat: Dict[str, Any]) -> Fact:
    nested: Fact = {}
    for name, fact in flat.items():
        where = nested
        *folders, last = [part.replace("\0", "/") for part in name.split("/")]
        for folder in folders:
            where = where.setdefault(folder, {})
        where[last] = fact
    return nested


def bound(facts: Fact) -> str:
    """As JSON; whatever is longest is cut, and said to be, until the whole fits."""
    while True:
        text = json.dumps(facts, sort_keys=True)
        if len(text) <= OUTPUT_LIMIT:
            return text
        longest = max(texts_of(facts), key=lambda found: len(found[0][found[1]]))
        longest[0][longest[1]] = longest[0][longest[1]][: len(longest[0][longest[1]]) // 2]
        longest[0]["truncated"] = True


def texts_of(facts: Fact) -> List[Tuple[Fact, str]]:
    found: List[Tuple[Fact, str]] = []
    for key, value in facts.items():
        if isinstance(value, dict):
            found.extend(texts_of(value))
        elif isinstance(value, str):
            found.append((facts, key))
    return found


def main(parameters: Fact) -> None:
    started = time.time()
    path = parameters.get("path") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    facts = nest(gather(tasks_of(parameters, Runner(path))))
    system = os.uname()
    facts.update(
        {
            "schema": 1,
            "uid": os.geteuid(),
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "kernel": system.release,
            "machine": system.machine,
            "hostname": system.nodename,
            "time": started,
            "took_s": round(time.time() - started, 2),
        }
    )
    sys.stdout.write(bound(facts) + "\n")
    sys.stdout.flush()
    # An ordinary exit might wait for a thread or a child that never ends.
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(PARAMETERS))
