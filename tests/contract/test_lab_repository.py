"""The lab's apt repository and the packages in it, installed by the real apt in a real Debian that boots.

Needs root, podman (with runc where cgroups are not unified), mmdebstrap, gcc, apt-utils and gpg. The first run makes a
base tar under ~/.cache/fleetctl-lab-test from the machine's own Debian mirror; later runs need no network.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fleetctl.errors import FleetctlError
from fleetctl.lab.engine import Engine
from fleetctl.lab.packages.table import kernel_slug, next_kernel, packages
from fleetctl.lab.repository import Repository, build_repository, missing_tools, open_repository, withdraw

pytestmark = pytest.mark.contract

KERNEL = os.uname().release
CACHE = Path.home() / ".cache" / "fleetctl-lab-test"
BASE_PACKAGES = "systemd,systemd-sysv,python3,kmod,ca-certificates"
IMAGE = f"pkgtest-{os.getpid()}"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
NEWER = next_kernel(KERNEL)

# What a job does with a GPU, on every GPU; exits with CUDA's own error number.
CUDA_PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def must(error):
    if error:
        sys.exit(f"CUDA error {error}")
must(cuda.cuInit(0))
count = ctypes.c_int()
must(cuda.cuDeviceGetCount(ctypes.byref(count)))
for number in range(count.value):
    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    must(cuda.cuDeviceGet(ctypes.byref(device), number))
    must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    sent, came = ctypes.create_string_buffer(b"%d" % number, 64), ctypes.create_string_buffer(64)
    must(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64)))
    must(cuda.cuMemcpyHtoD_v2(pointer, sent, ctypes.c_size_t(64)))
    must(cuda.cuMemcpyDtoH_v2(came, pointer, ctypes.c_size_t(64)))
    assert came.raw == sent.raw
    must(cuda.cuMemFree_v2(pointer))
    must(cuda.cuCtxDestroy_v2(context))
print(count.value, "GPUs work")
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A Debian that boots, with the repository at /repo."""

    engine: Engine
    name: str

    def attempt(self, command: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        return self.engine.inside(self.name, ["sh", "-c", command], timeout_s=timeout_s)

    def run(self, command: str) -> str:
        done = self.attempt(command)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def apt(self, arguments: str) -> str:
        return self.run(f"DEBIAN_FRONTEND=noninteractive apt-get -qq -y {arguments} 2>&1")

    def fault(self, kind: str, argument: str = "") -> None:
        self.run(f"printf '%s' '{argument}' > /etc/lab-gpu/faults/{kind}")

    def reboot(self) -> None:
        self.engine.podman("restart", "--time", "3", self.name)
        self.wait_until_up()

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 30
        state = ""
        while time.monotonic() < deadline:
            state = self.attempt("systemctl is-system-running --wait").stdout.strip()
            if state in ("running", "degraded"):
                return
            time.sleep(0.1)
        pytest.fail(f"the node did not come up within 30 s: {state}")

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        return self.engine.inside(self.name, ["python3", "-c", program])

    def versions(self) -> dict[str, str]:
        """The truths about one driver, each from its own place."""
        return {
            "loaded": self.run("cat /sys/module/nvidia/version"),
            "on disk": self.run("modinfo -F version nvidia"),
            "fabric manager": self.run("nv-fabricmanager --version").rpartition(" ")[2],
            "libraries": self.run("readlink /usr/lib/*/libnvidia-ml.so.1").partition(".so.")[2],
        }


def _missing() -> list[str]:
    missing = [] if os.geteuid() == 0 else ["root"]
    missing += [tool for tool in ("podman", "mmdebstrap") if shutil.which(tool) is None]
    return missing + missing_tools()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    if missing_tools():
        pytest.skip(f"needs {', '.join(missing_tools())}")
    return build_repository(tmp_path_factory.mktemp("repository") / "lab", KERNEL)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    if _missing():
        pytest.skip(f"needs {', '.join(_missing())}")
    return Engine(tmp_path_factory.mktemp("engine") / "containers.conf")


def _base_tar() -> Path:
    tar = CACHE / f"bookworm-{BASE_PACKAGES.replace(',', '_')}.tar"
    if not tar.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = tar.with_suffix(f".{os.getpid()}")
        options = ["--format=tar", "--variant=apt", f"--include={BASE_PACKAGES}", "bookworm", str(part)]
        subprocess.run(["mmdebstrap", "--quiet", *options], check=True, timeout=600)
        part.rename(tar)
    return tar


def _start(engine: Engine, repository: Repository, image: str, name: str) -> Node:
    options = ["--systemd=always", "--network=none", "--cap-add=SYS_ADMIN,SYS_BOOT,MKNOD", "--hostname=node"]
    engine.podman("run", "-d", "--name", name, *options, "-v", f"{repository.public}:/repo:ro", image, "/sbin/init")
    node = Node(engine, name)
    node.wait_until_up()
    return node


@pytest.fixture(scope="module")
def image(engine: Engine, repository: Repository) -> Iterator[str]:
    """A node that runs 570, freshly booted once."""
    engine.podman("import", "--quiet", str(_base_tar()), f"{IMAGE}-base", timeout_s=300)
    node = _start(engine, repository, f"{IMAGE}-base", f"{IMAGE}-first")
    try:
        source = repository.source("file:/repo", "/repo/nvidia-archive-keyring.asc")
        node.run(f"rm -f /etc/apt/sources.list && cat > /etc/apt/sources.list.d/nvidia.sources <<'END'\n{source}END")
        node.run("echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/speed")  # a thrown-away disk needs no fsync
        node.apt("update")
        slug = kernel_slug(KERNEL)
        node.apt(f"install lab-gpu-hardware linux-image-{slug} linux-headers-{slug}")
        node.apt("install nvidia-driver-pinning-570.195.03")
        node.apt("install nvidia-open-570 nvidia-fabricmanager-570")
        engine.podman("commit", "--quiet", "--pause=false", node.name, IMAGE, timeout_s=300)
        yield IMAGE
    finally:
        engine.attempt("rm", "--force", "--time", "0", node.name)
        engine.attempt("rmi", "--force", IMAGE, f"{IMAGE}-base")


@pytest.fixture
def node(engine: Engine, repository: Repository, image: str, request: pytest.FixtureRequest) -> Iterator[Node]:
    name = f"{IMAGE}-{abs(hash(request.node.name)) % 10**8}"
    try:
        yield _start(engine, repository, image, name)
    finally:
        engine.attempt("rm", "--force", "--time", "0", name)


def to_580(node: Node) -> str:
    """Install the whole closure of 580.95.05, as the pinning package of NVIDIA wants it done."""
    node.apt("install nvidia-driver-pinning-580.95.05")
    return node.apt("install nvidia-open-580 nvidia-fabricmanager")


def test_the_repository_is_signed_and_holds_every_package_of_the_table(repository: Repository) -> None:
    dists = repository.public / "dists" / repository.suite
    subprocess.run(["gpg", "--version"], check=True, capture_output=True)
    key = repository.directory / "key.gpg"
    subprocess.run(["gpg", "--yes", "--dearmor", "-o", str(key), str(repository.key_file)], check=True)
    subprocess.run(["gpgv", "--keyring", str(key), str(dists / "InRelease")], check=True, capture_output=True)
    architecture = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True)
    wanted = {(package.name, package.version) for package in packages(KERNEL, architecture.stdout.strip())}
    assert {(offer.name, offer.version) for offer in repository.offers} == wanted
    assert open_repository(repository.directory) == repository
    private = repository.directory / "private"
    assert private.stat().st_mode & 0o077 == 0
    assert (private / "key.asc").stat().st_mode & 0o077 == 0


def test_a_tampered_index_and_an_unknown_key_are_refused(node: Node) -> None:
    # NVIDIA's key is the only one trusted: a package list that was changed after signing is not used.
    node.run("cp -a /repo /tampered && sed -i s,/repo$,/tampered, /etc/apt/sources.list.d/nvidia.sources")
    node.apt("update")
    index = "/tampered/dists/stable/main/binary-*/Packages"
    node.run(f"rm {index}.gz && sed -i 's/^Version: 610.43.02/Version: 610.43.03/' {index}")
    refused = node.attempt("rm -rf /var/lib/apt/lists/*; apt-get update")
    assert refused.returncode == 100
    assert "unexpected size" in refused.stderr or "Hash Sum mismatch" in refused.stderr
    node.run("sed -i 's,/tampered,/repo,; /^Signed-By/d' /etc/apt/sources.list.d/nvidia.sources")
    refused = node.attempt("rm -rf /var/lib/apt/lists/*; apt-get update")
    assert refused.returncode == 100
    assert "is not signed" in refused.stderr


def test_what_is_loaded_changes_only_at_the_next_boot(node: Node) -> None:
    assert set(node.versions().values()) == {"570.195.03"}
    assert "8 GPUs work" in node.python(CUDA_PROGRAM).stdout
    to_580(node)

    between = node.versions()
    assert between.pop("loaded") == "570.195.03"
    assert set(between.values()) == {"580.95.05"}
    smi = node.attempt("nvidia-smi")
    assert (smi.returncode, smi.stdout) == (18, MISMATCH)
    assert "CUDA error 803" in node.python(CUDA_PROGRAM).stderr
    assert node.attempt("systemctl is-active nvidia-fabricmanager").stdout == "failed\n"
    log = node.run("tail -n 1 /var/log/fabricmanager.log")
    assert "interface version 580.95.05 don't match with driver version 570.195.03. Please update" in log
    assert node.attempt("systemctl is-active nvidia-persistenced").stdout == "failed\n"
    assert "this boot has its driver" in node.attempt("/usr/lib/lab-gpu/boot").stderr
    assert "Operation refused" in node.attempt("systemctl restart lab-gpu-boot").stderr
    assert node.run("cat /sys/module/nvidia/version") == "570.195.03"

    node.reboot()
    assert set(node.versions().values()) == {"580.95.05"}
    assert "8 GPUs work" in node.python(CUDA_PROGRAM).stdout
    query = "--query-gpu=driver_version,fabric.state,fabric.status,persistence_mode --format=csv,noheader"
    assert node.run(f"nvidia-smi {query} | sort | uniq -c").split(maxsplit=1) == [
        "8",
        "580.95.05, Completed, Success, Enabled",
    ]
    assert node.run("dkms status") == f"nvidia/580.95.05, {KERNEL}, {os.uname().machine}: installed"
    assert node.run("systemctl --failed --no-legend") == ""


def test_the_suffix_goes_at_590_and_comes_back_on_the_way_down(node: Node) -> None:
    to_580(node)
    node.apt("install nvidia-driver-pinning-590.48.01")
    said = node.apt("install nvidia-open nvidia-fabricmanager")
    assert "Removing nvidia-dkms-580-open (580.95.05-0ubuntu1)" in said
    node.reboot()
    assert set(node.versions().values()) == {"590.48.01"}
    installed = node.run("dpkg-query -W -f '${db:Status-Abbrev} ${Package}=${Version}\\n' '*nvidia*' | grep ^ii")
    assert "libnvidia-compute=590.48.01-0ubuntu1" in installed
    # As in the field: firmware of an old branch is in nobody's way and stays, waiting for autoremove.
    assert [line.split()[1] for line in installed.splitlines() if "-580" in line or "-570" in line] == [
        "nvidia-firmware-570=570.195.03-0ubuntu1",
        "nvidia-firmware-580=580.95.05-0ubuntu1",
    ]

    node.apt("install nvidia-driver-pinning-570.195.03")
    back = "nvidia-open-570 nvidia-fabricmanager-570 nvidia-modprobe=570.195.03-0ubuntu1"
    refused = node.attempt(f"apt-get -y install {back}")
    assert "Packages were downgraded and -y was used without --allow-downgrades." in refused.stderr
    node.apt(f"install --allow-downgrades {back}")
    node.reboot()
    assert set(node.versions().values()) == {"570.195.03"}
    assert "8 GPUs work" in node.python(CUDA_PROGRAM).stdout
    assert node.run("dpkg --audit") == ""


def test_apt_does_what_it_does_in_the_field(node: Node) -> None:
    # A meta package alone: its dependencies are `>=`, so everything below it drifts to the newest of its branch.
    node.apt("purge nvidia-driver-pinning-570.195.03")
    drift = node.run("apt-get -s install nvidia-open-580=580.82.07-0ubuntu1")
    assert "Inst nvidia-driver-580-open (580.95.05-0ubuntu1" in drift
    assert "Inst nvidia-persistenced (610.43.02-1ubuntu1" in drift
    # Held packages of the old branch: refused, with apt's misleading sentence.
    node.run("apt-mark hold $(dpkg-query -W -f '${Package}\\n' '*nvidia*570*')")
    held = node.attempt("apt-get -s install nvidia-open-580")
    assert held.returncode == 100
    assert "pkgProblemResolver::Resolve generated breaks, this may be caused by held packages" in held.stderr
    node.run("apt-mark unhold $(apt-mark showhold)")
    # The proprietary flavour takes the open one's place, at the same version and under the same DKMS name.
    node.apt("install cuda-drivers-570")
    assert node.run("modinfo -F license nvidia") == "NVIDIA"
    node.reboot()
    assert "NVIDIA UNIX x86_64 Kernel Module  570.195.03 " in node.run("cat /proc/driver/nvidia/version").replace(
        os.uname().machine, "x86_64"
    )
    # From the distribution's archive: 570 by name, another build of another branch by content.
    node.run("sed -i 's/^Components.*/& multiverse/' /etc/apt/sources.list.d/nvidia.sources")
    node.apt("update")
    node.apt("install nvidia-fabricmanager-570=570.211.01-0ubuntu0.24.04.1")
    assert node.run("dpkg-query -W -f '${Version}' nvidia-fabricmanager-570").startswith("570.211.01")
    assert node.run("nv-fabricmanager --version") == "Fabric Manager version is : 580.173.02"
    assert node.attempt("systemctl is-active nvidia-fabricmanager").stdout == "failed\n"


def test_a_kernel_update_without_headers_leaves_the_next_boot_without_a_module(node: Node) -> None:
    slug = kernel_slug(NEWER)
    node.apt(f"install linux-image-{slug}")
    assert node.run("grep -m 1 linux.*vmlinuz /boot/grub/grub.cfg").split()[1] == f"/boot/vmlinuz-{NEWER}"
    assert node.attempt(f"modinfo -k {NEWER} nvidia").returncode == 1
    node.apt(f"install linux-headers-{slug}")
    assert node.run(f"modinfo -k {NEWER} -F version nvidia") == "570.195.03"
    assert f"nvidia/570.195.03, {NEWER}, {os.uname().machine}: installed" in node.run("dkms status")
    node.apt(f"purge linux-image-{slug} linux-headers-{slug}")
    assert NEWER not in node.run("cat /boot/grub/grub.cfg")


def test_faults_of_an_install_leave_what_they_say(node: Node) -> None:
    node.fault("install-fails", "590.48.01")
    node.fault("dkms-fails", "580.95.05")
    said = to_580(node)
    assert f"Error! Bad return status for module build on kernel: {KERNEL} ({os.uname().machine})" in said
    assert node.run("dpkg --audit") == ""
    assert node.run("dpkg-query -W -f '${db:Status-Abbrev}' nvidia-dkms-580-open").strip() == "ii"
    assert node.run("dkms status") == "nvidia/580.95.05: added"
    assert node.attempt("modinfo nvidia").returncode == 1
    node.reboot()
    smi = node.attempt("nvidia-smi")
    assert smi.returncode == 9
    assert smi.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    assert "CUDA error 100" in node.python(CUDA_PROGRAM).stderr

    node.apt("install nvidia-driver-pinning-590.48.01")
    failed = node.attempt("DEBIAN_FRONTEND=noninteractive apt-get -y install nvidia-open")
    assert failed.returncode == 100
    assert "Sub-process /usr/bin/dpkg returned an error code (1)" in failed.stderr
    assert node.attempt("dpkg --configure -a").returncode == 1
    node.run("rm /etc/lab-gpu/faults/install-fails")
    node.fault("half-configured")
    assert node.attempt("dpkg --configure -a").returncode == 1
    assert "nvidia-dkms-open" in node.run("dpkg --audit")
    node.run("dpkg --configure -a")
    assert node.run("dpkg --audit") == ""
    assert node.run("modinfo -F version nvidia") == "590.48.01"


def test_faults_of_a_boot_show_where_the_real_ones_do(node: Node) -> None:
    node.fault("gpu-missing", "5")
    node.fault("xid", "79")
    node.fault("wrong-module", "570.133.20")
    node.reboot()
    assert node.run("cat /sys/module/nvidia/version") == "570.133.20"
    assert node.run("modinfo -F version nvidia") == "570.195.03"
    assert node.attempt("nvidia-smi").returncode == 18
    node.run("rm /etc/lab-gpu/faults/wrong-module")
    node.reboot()
    on_the_bus = node.run("cat /sys/bus/pci/devices/*/class | grep -c 0x0302")
    assert (on_the_bus, node.run("nvidia-smi -L | wc -l")) == ("8", "7")
    assert "00000000:BB:00.0" not in node.run("nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader")
    assert "7 GPUs work" in node.python(CUDA_PROGRAM).stdout
    log = node.run("dmesg -T")
    assert "NVRM: GPU 0000:bb:00.0: RmInitAdapter failed!" in log
    assert "NVRM: Xid (PCI:0000:19:00.0): 79," in log

    node.run("systemctl stop nvidia-fabricmanager")
    assert "CUDA error 802" in node.python(CUDA_PROGRAM).stderr
    assert node.run("nvidia-smi -q | grep -c 'State  .*: In Progress'") == "7"
    node.fault("nvidia-smi-hangs")
    assert node.attempt("timeout --kill-after 1 1 nvidia-smi").returncode == 137


@pytest.mark.case("E06")
def test_a_module_built_against_another_stack_is_refused_by_the_next_boot_alone(node: Node) -> None:
    """What was loaded before stays loaded: only a boot shows it, in /sys/module and in the kernel's log."""
    state = "cat /sys/module/nvidia_peermem/initstate || echo absent"
    node.run("echo nvidia-peermem > /etc/modules-load.d/lab-test.conf")
    node.reboot()
    assert node.run(state) == "live"
    node.fault("module-refused", "nvidia-peermem")
    assert node.run(state) == "live"
    node.reboot()
    assert node.run(state) == "absent"
    assert node.run("cat /sys/module/nvidia/initstate") == "live"
    assert "nvidia_peermem: disagrees about version of symbol" in node.run("dmesg")
    node.run("rm /etc/lab-gpu/faults/module-refused /etc/modules-load.d/lab-test.conf")


def test_a_program_on_a_gpu_is_seen(node: Node) -> None:
    node.run("exec 3<>/dev/nvidia2; nvidia-smi --query-compute-apps=pid,process_name --format=csv > /seen; exec 3>&-")
    header, *rows = node.run("cat /seen").splitlines()
    assert header == "pid, process_name"
    assert any(row.endswith(", sh") for row in rows)
    assert node.run("nvidia-smi --query-compute-apps=pid --format=csv,noheader") == ""
    tree = ElementTree.fromstring(node.run("nvidia-smi -q -x"))
    assert [gpu.findtext("fabric/state") for gpu in tree.findall("gpu")] == ["Completed"] * 8
    wrong = node.attempt("nvidia-smi --query-gpu=colour --format=csv")
    assert (wrong.returncode, wrong.stdout.splitlines()[0]) == (2, 'Field "colour" is not a valid field to query.')


def test_a_withdrawn_version_is_gone_from_the_index_and_the_rest_still_signed(
    tmp_path: Path, repository: Repository
) -> None:
    copied = shutil.copytree(repository.directory, tmp_path / "lab")
    fewer = withdraw(open_repository(copied), "570.195.03")
    assert {offer.upstream for offer in repository.offers} - {offer.upstream for offer in fewer.offers} == {
        "570.195.03"
    }
    assert not list(fewer.public.glob("pool/*/*570.195.03-*"))
    with pytest.raises(FleetctlError, match=r"570\.195\.03 is not in the repository"):
        withdraw(fewer, "570.195.03")
    key = tmp_path / "key.gpg"
    subprocess.run(["gpg", "--yes", "--dearmor", "-o", str(key), str(fewer.key_file)], check=True)
    signed = fewer.public / "dists" / fewer.suite / "InRelease"
    subprocess.run(["gpgv", "--keyring", str(key), str(signed)], check=True, capture_output=True)


def test_a_directory_that_holds_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FleetctlError, match="choose another directory"):
        build_repository(tmp_path, KERNEL)
    assert (tmp_path / "thesis.txt").exists()
