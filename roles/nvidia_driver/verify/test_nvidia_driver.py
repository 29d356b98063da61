"""Proof that the declared driver works. Read-only; a failure names the thing and says in one line what is wrong."""

import json
import re
from pathlib import Path

import pytest
import yaml

ROLE = Path(__file__).parents[1]
SMI_LIMIT_S = 60
CUDA_LIMIT_S = 120

# Faults of an application, not of the GPU: 13 graphics exception, 31 page fault, 43 stopped, 45 clean-up after it,
# 94 contained memory error (NVIDIA, "XID Errors").
APPLICATION_XIDS = {"13", "31", "43", "45", "94"}


# --- readings, each taken once


@pytest.fixture(scope="module")
def loaded(ask):
    """Banner of the loaded module, or an empty text."""
    answer = ask(["cat", "/proc/driver/nvidia/version"])
    return answer.out.partition("\n")[0] if answer.code == 0 else ""


@pytest.fixture(scope="module")
def nvml(ask):
    """{bus id: {"driver", "recovery"}} of every GPU that NVML shows. A stuck nvidia-smi is not asked a second time."""
    fields = ["pci.bus_id", "driver_version", "gpu_recovery_action"]
    answer = _ask_smi(ask, fields)
    if answer.code == 2 and "gpu_recovery_action" in answer.out + answer.err:  # older than the field
        answer = _ask_smi(ask, fields[:2])
    if answer.has_timed_out:
        pytest.fail(f"nvidia-smi: gpu-driver-unresponsive, no answer within {SMI_LIMIT_S} s", pytrace=False)
    if re.search(r"GPU is lost|Unable to determine the device handle", answer.words):
        pytest.fail(f"hardware: gpu lost: {answer.words}", pytrace=False)
    if answer.code != 0:
        pytest.fail(f"nvidia-smi: {answer.words}", pytrace=False)
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.out.splitlines() if line.strip()]
    return {short(row[0]): {"driver": row[1], "recovery": row[2] if len(row) > 2 else "None"} for row in rows}


def _ask_smi(ask, fields):
    return ask(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"], limit_s=SMI_LIMIT_S)


@pytest.fixture(scope="module")
def bus(ask):
    """Bus ids of NVIDIA's GPUs on the PCI bus, whatever the driver thinks of them."""
    answer = ask(["sh", "-c", "grep -H . /sys/bus/pci/devices/*/vendor /sys/bus/pci/devices/*/class"])
    assert answer.code == 0, f"pci: the bus can't be read: {answer.words}"
    facts = {}
    for line in answer.out.splitlines():
        path, _, value = line.rpartition(":")
        address, name = path.split("/")[-2:]
        facts.setdefault(address, {})[name] = value
    # 0x0300 VGA controller, 0x0302 3D controller
    return {a for a, f in facts.items() if f.get("vendor") == "0x10de" and f.get("class", "")[:6] in ("0x0300", "0x0302")}


@pytest.fixture(scope="module")
def family(ask):
    return "Debian" if ask(["dpkg-query", "--version"]).code == 0 else "RedHat"


@pytest.fixture(scope="module")
def packages(ask, family):
    """{name: (version, state, is_held)} of every package of the driver's set that is there."""
    if family == "Debian":
        # No pattern: that the command ran is seen by dpkg itself being listed.
        form = "${Package}|${Version}|${db:Status-Status}|${db:Status-Want}\\n"
        answer = ask(["dpkg-query", "--show", "--showformat", form])
        rows = [line.split("|") for line in answer.out.splitlines()]
        assert any(row[0] == "dpkg" for row in rows), f"packages: dpkg-query did not list them: {answer.words}"
    else:
        answer = ask(["rpm", "--query", "--all", "--queryformat", "%{NAME}|%{VERSION}|installed|\\n"])
        rows = [line.split("|") for line in answer.out.splitlines()]
        assert any(row[0] == "rpm" for row in rows), f"packages: rpm did not list them: {answer.words}"
        locks = ask(["cat", "/etc/dnf/plugins/versionlock.list"]).out
        rows = [[*row[:3], "hold" if f"{row[0]}-" in locks else "install"] for row in rows]
    names = re.compile("|".join(f"(?:{pattern})" for pattern in _role_vars(family)["_nvidia_driver_member_names"]))
    absent = ("not-installed", "config-files")
    return {row[0]: (row[1], row[2], row[3] == "hold") for row in rows if names.fullmatch(row[0]) and row[2] not in absent}


def _role_vars(family):
    return yaml.safe_load((ROLE / "vars" / f"{family}.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def kernel(ask, declared):
    """The kernel of the next boot: declared, else what the boot loader starts, else the newest, else the running one."""
    if declared["nvidia_driver_boot_kernel"]:
        return declared["nvidia_driver_boot_kernel"]
    listed = ask(["ls", "-1v", "/boot"]).out.splitlines()
    kernels = [name[len("vmlinuz-") :] for name in listed if re.match(r"vmlinuz-\d", name)]
    files = ["/etc/default/grub", "/boot/grub/grubenv", "/boot/grub2/grubenv"]
    grub = ask(["grep", "-shE", "^(GRUB_DEFAULT|saved_entry)=", *files]).out
    default = re.search(r"^GRUB_DEFAULT=(.*)$", grub, re.M)
    saved = re.search(r"^saved_entry=(.*)$", grub, re.M)
    entry = default.group(1) if default else "0"
    if "saved" in entry:
        entry = saved.group(1) if saved else "0"
    named = [name for name in kernels if name in entry]
    return (named or kernels or [ask(["uname", "-r"]).out.strip()])[-1]


def short(bus_id):
    """00000000:1B:00.0 of NVML is 0000:1b:00.0 of the kernel."""
    return bus_id.strip().lower()[-12:]


def upstream(version):
    return re.sub(r"^[0-9]+:|-[^-]*$", "", version)


def names(items):
    return ", ".join(sorted(items))


def owned_by_host(declared):
    return declared["nvidia_driver_owner"] == "host"


# --- what is loaded


def test_the_loaded_module_has_the_declared_version(loaded, declared):
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", loaded)
    assert found, "loaded module: no NVIDIA module is loaded"
    version = declared["nvidia_driver_version"]
    assert found.group(1) == version, f"loaded module: {found.group(1)} is loaded, {version} is declared"


def test_the_loaded_module_has_the_declared_flavour(loaded, declared):
    assert loaded, "loaded flavour: no NVIDIA module is loaded"
    found = "open" if "Open Kernel Module" in loaded else "proprietary"
    flavour = declared["nvidia_driver_flavour"]
    assert found == flavour, f"loaded flavour: the {found} module is loaded, {flavour} is declared"


def test_every_declared_module_is_loaded(ask, loaded, declared):
    if not owned_by_host(declared):
        return
    assert loaded, "modules: no NVIDIA module is loaded"
    wanted = declared["nvidia_driver_load_modules"]
    # A module that is still coming or going has that word there; one that is not loaded has no such file.
    missing = [m for m in wanted if ask(["cat", f"/sys/module/{m.replace('-', '_')}/initstate"]).out.strip() != "live"]
    told = re.findall(rf"\b(?:{'|'.join(missing).replace('-', '_')}): .*", ask(["dmesg"]).out) if missing else []
    assert not missing, "; ".join([f"modules: not loaded by this boot: {names(missing)}", *told[-1:]])


def test_nvml_works_and_is_of_the_declared_version(nvml, declared):
    assert nvml, "nvml: it shows no GPU"
    version = declared["nvidia_driver_version"]
    other = {gpu["driver"] for gpu in nvml.values()} - {version}
    assert not other, f"nvml: it says driver {names(other)}, {version} is declared"


# --- what is installed


def test_every_package_is_installed_at_the_declared_version(packages, family, declared):
    if not owned_by_host(declared):
        assert not packages, f"packages: the operator brings the driver, but the host has {names(packages)}"
        return
    assert packages, "packages: no driver package is installed"
    broken = [f"{name} is {state}" for name, (_, state, _) in packages.items() if state != "installed"]
    assert not broken, f"packages: {names(broken)}"
    judged = packages
    if family == "Debian" and declared["nvidia_driver_source"] == "distribution":
        own = re.compile(re.search(r"'(nvidia-.*?)'", _role_vars(family)["_nvidia_driver_independent"]).group(1))
        judged = {name: package for name, package in packages.items() if not own.fullmatch(name)}
    version = declared["nvidia_driver_version"]
    other = [f"{name} {package[0]}" for name, package in judged.items() if upstream(package[0]) != version]
    assert not other, f"packages: {version} is declared, but there is {names(other)}"


def test_every_package_is_held(packages, declared):
    if not owned_by_host(declared):
        assert not packages, f"holds: the operator brings the driver, but the host has {names(packages)}"
        return
    assert packages, "holds: no driver package is installed"
    recorded = declared.get("nvidia_driver_packages_held")
    expected = set(packages) if recorded is None else {name.partition(":")[0] for name in recorded}
    loose = [name for name in expected if name not in packages or not packages[name][2]]
    assert not loose, f"holds: not held: {names(loose)}"


def test_no_package_of_another_branch_is_left(packages, declared):
    branch = declared["nvidia_driver_version"].partition(".")[0]
    if owned_by_host(declared):
        assert packages, "leftovers: no driver package is installed"
    other = [name for name in packages if (found := re.search(r"-(\d{3})(?:-|$)", name)) and found.group(1) != branch]
    assert not other, f"leftovers: of another branch than {branch}: {names(other)}"


def test_the_module_for_the_next_boot_is_on_disk(ask, kernel, declared):
    if not owned_by_host(declared):
        return
    answer = ask(["modinfo", "-k", kernel, "nvidia"])
    assert answer.code == 0, f"module on disk: none for {kernel}, the kernel of the next boot: {answer.words}"
    found = dict(re.findall(r"^(version|license):\s+(.*)$", answer.out, re.M))
    version = declared["nvidia_driver_version"]
    assert found.get("version") == version, f"module on disk: {found.get('version')} for {kernel}, {version} is declared"
    # The kernel's MODULE_LICENSE of NVIDIA's two flavours.
    flavour = {"Dual MIT/GPL": "open", "NVIDIA": "proprietary"}.get(found.get("license"), found.get("license"))
    wanted = declared["nvidia_driver_flavour"]
    assert flavour == wanted, f"module on disk: the {flavour} one for {kernel}, {wanted} is declared"


# --- what the hardware says


def test_every_gpu_on_the_bus_is_in_nvml(nvml, bus, declared):
    count = declared["nvidia_driver_gpu_count"]
    if count is not None:
        assert len(bus) == count, f"hardware: gpu count: {len(bus)} on PCI, {count} declared"
    assert bus, "gpu count: no NVIDIA GPU on PCI"
    assert nvml, f"gpu count: {len(bus)} on PCI, none in NVML"
    missing = [f"0000{address}" for address in bus - set(nvml)]
    assert not missing, f"hardware: gpu count: {len(bus)} on PCI, {len(nvml)} in NVML, missing {names(missing)}"
    assert len(nvml) == len(bus), f"gpu count: {len(bus)} on PCI, {len(nvml)} in NVML"


def test_no_gpu_asks_for_recovery(nvml):
    assert nvml, "gpu state: NVML shows no GPU"
    # "None" where all is well; a field that this driver or GPU does not have is not an error.
    well = re.compile(r"none|\[?n/a\]?|\[not supported\]", re.I)
    asking = [f"0000{address} asks for {gpu['recovery']}" for address, gpu in nvml.items() if not well.fullmatch(gpu["recovery"])]
    assert not asking, f"hardware: gpu state: {names(asking)}"


def test_the_kernel_reported_no_xid_since_boot(ask):
    answer = ask(["dmesg"])
    assert answer.code == 0 and answer.out.strip(), f"xid: the kernel log can't be read: {answer.words}"
    found = re.findall(r"Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d+)", answer.out)
    bad = {f"Xid {number} on {address}" for address, number in found if number not in APPLICATION_XIDS}
    assert not bad, f"hardware: xid: {names(bad)}"


# --- what is to run


def test_the_persistence_daemon_runs_as_declared(ask, declared):
    if not owned_by_host(declared):
        return
    state = ask(["systemctl", "is-active", "nvidia-persistenced"]).out.strip()
    wanted = declared["nvidia_driver_persistence_daemon"]
    assert state, "persistence daemon: systemctl said nothing"
    assert (state == "active") == wanted, f"persistence daemon: {state}, declared {'active' if wanted else 'off'}"


@pytest.mark.active
def test_cuda_copies_to_every_gpu_and_back(ask, nvml):
    assert nvml, "cuda: NVML shows no GPU"
    script = (Path(__file__).parent / "cuda_copy.py").read_text(encoding="utf-8")
    answer = ask(["python3", "-c", script], limit_s=CUDA_LIMIT_S)
    assert not answer.has_timed_out, f"cuda: no answer within {CUDA_LIMIT_S} s"
    assert answer.code == 0, f"cuda: {answer.words}"
    gpus = {short(address): error for address, error in json.loads(answer.out)["gpus"].items()}
    failed = [f"{address}: {error}" for address, error in gpus.items() if error]
    assert len(failed) < len(gpus), f"cuda: it fails on every GPU, {names(failed)}"
    # Its siblings work with this driver: the GPU is suspect, not the driver.
    assert not failed, f"hardware: cuda: {names(failed)}"
    assert len(gpus) == len(nvml), f"cuda: it sees {len(gpus)} GPUs, NVML {len(nvml)}"
