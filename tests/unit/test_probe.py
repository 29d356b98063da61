"""The probe, run for real as it runs on nodes: fed to a Python on standard input, beside real processes."""

from __future__ import annotations

import ast
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fleetctl.components import registry
from fleetctl.parse.node import read_node
from fleetctl.probe import probe
from tests.unit.healthy_node import HOST_VARS
from tests.unit.python_3_6 import PYTHON_3_6

PROBE = Path(__file__).parents[2] / "fleetctl" / "probe" / "probe.py"
LEASE = PROBE.with_name("lease.py")
OFFERS = PROBE.with_name("offers.py")
PYTHONS = [sys.executable, *([PYTHON_3_6] if PYTHON_3_6 else [])]
FREEZER = Path("/sys/fs/cgroup/freezer")

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc on this machine")

Tools = Callable[[Mapping[str, str]], str]


def oldest_python() -> str:
    """Python 3.6 where it is at hand, as on RHEL 8; else the one that runs the tests."""
    return PYTHONS[-1]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Writes programs (name to shell text) that the probe finds in place of the machine's; answers with their PATH."""

    def write(programs: Mapping[str, str]) -> str:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, text in programs.items():
            program = folder / name
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        return f"{folder}:/usr/bin:/bin"

    return write


def run_probe(python: str | None = None, **parameters: Any) -> dict[str, Any]:
    text = PROBE.read_text().replace('PARAMETERS = "{}"', f"PARAMETERS = {json.dumps(parameters)!r}", 1)
    said = subprocess.run(
        [python or oldest_python(), "-"], input=text, capture_output=True, text=True, timeout=120, check=True
    )
    lines = said.stdout.splitlines()
    assert len(lines) == 1, said.stdout[:500]
    facts: dict[str, Any] = json.loads(lines[0])
    return facts


@pytest.mark.parametrize("python", PYTHONS)
def test_a_machine_without_any_nvidia_part_gives_a_whole_answer(python: str, tools: Tools) -> None:
    facts = run_probe(python, path=tools({}))
    assert facts["schema"] == 1
    assert facts["nvidia_smi"]["gpus"]["missing"] is True
    assert facts["files"]["/proc/driver/nvidia/version"] == {"absent": True}
    assert facts["kernel"] == os.uname().release
    node = read_node(facts)
    assert node.boot_id.is_known
    assert node.package_processes.kind == "value"
    for component in registry.load().values():
        declared, observed = component.declared(HOST_VARS), component.observed(facts)
        assert component.compare(declared, observed) or component.name == "fabric_manager"


def test_python_3_6_was_really_used() -> None:
    if PYTHON_3_6 is None:
        pytest.skip("no Python 3.6 on this machine: the probe was run with the tests' own Python only")
    assert run_probe(path="/nonexistent")["python"].startswith("3.6.")


def test_all_programs_are_written_for_python_3_6_and_the_standard_library() -> None:
    for program in (PROBE, LEASE, OFFERS):
        tree = ast.parse(program.read_text(), feature_version=(3, 6))
        names = {
            (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]  # type: ignore[union-attr]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        assert names <= sys.stdlib_module_names, program.name
        assert program.read_text().isascii(), "goes through a node's locale"


def test_the_packages_that_roles_keep_are_named_by_role(tmp_path: Path) -> None:
    archives = tmp_path / "nvidia_driver" / "archives"
    (archives / "partial").mkdir(parents=True)
    for name in ("b_1%3a2-1_amd64.deb", "a-1-1.x86_64.rpm", "lock", "partial/c_1_all.deb"):
        (archives / name).touch()
    facts = run_probe(path="/nonexistent", cache_directory=str(tmp_path))
    assert facts["kept_packages"] == {"roles": {"nvidia_driver": ["a-1-1.x86_64.rpm", "b_1%3a2-1_amd64.deb"]}}
    facts = run_probe(path="/nonexistent", cache_directory=str(tmp_path / "absent"))
    assert facts["kept_packages"] == {"roles": {}}


def test_parameters_are_data_whatever_they_hold() -> None:
    nasty = "\"); import os; os._exit(3) #\n'\\ \u2028 \U0001f600"
    facts = run_probe(path="/nonexistent", lease_directory=nasty, modules=["nvidia_fs", "; rm -rf /", "-k"])
    assert facts["lease"] == {"absent": True}
    (kernel,) = [facts["kernels"][name] for name in facts["kernels"] if name == os.uname().release]
    assert set(kernel["modules"]) == {"nvidia", "nvidia_fs"}


def test_commands_run_side_by_side_and_each_has_its_own_deadline(tools: Tools) -> None:
    path = tools({"dkms": "sleep 2; echo nvidia/1.0: added", "mokutil": "sleep 2", "nv-fabricmanager": "sleep 2"})
    started = time.monotonic()
    facts = run_probe(path=path)
    assert time.monotonic() - started < 5.5
    assert facts["commands"]["dkms_status"]["out"] == "nvidia/1.0: added\n"


def test_a_command_that_hangs_is_killed_with_its_children_and_reported(tools: Tools, tmp_path: Path) -> None:
    mark = tmp_path / "child"
    path = tools({"nvidia-smi": f"trap '' TERM; sleep 600 & echo $! > {mark}; echo begun; wait"})
    facts = run_probe(path=path, nvidia_smi_deadline_s=1)
    gpus = facts["nvidia_smi"]["gpus"]
    assert gpus["timed_out"] is True
    assert gpus["out"] == "begun\n"
    assert "rc" not in gpus
    assert "apps" not in facts["nvidia_smi"], "no second nvidia-smi after one that hangs"
    child = int(mark.read_text())
    assert not Path(f"/proc/{child}").exists() or "State:\tZ" in Path(f"/proc/{child}/status").read_text()


def test_a_grandchild_that_keeps_the_pipe_open_does_not_hold_the_probe(tools: Tools) -> None:
    path = tools({"nv-fabricmanager": "sleep 30 & echo Fabric Manager version is : 580.95.05"})
    started = time.monotonic()
    facts = run_probe(path=path)
    assert facts["commands"]["fabric_manager_version"]["rc"] == 0
    assert time.monotonic() - started < 10


@pytest.fixture
def frozen_cgroup(tmp_path: Path) -> Iterator[Path]:
    """Processes in it can be made uninterruptible: SIGKILL does not end them until they are thawed."""
    group = FREEZER / f"fleetctl-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no freezer of cgroup v1 that we may use, so no process in D state can be made: {error}")
    yield group
    (group / "freezer.state").write_text("THAWED")
    for _ in range(100):
        pids = (group / "tasks").read_text().split()
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        if not pids:
            break
        time.sleep(0.05)
    group.rmdir()


@pytest.mark.case("A12")
def test_a_child_that_can_not_be_killed_is_left_alone(tools: Tools, frozen_cgroup: Path) -> None:
    freeze = f"echo $$ > {frozen_cgroup}/tasks; echo FROZEN > {frozen_cgroup}/freezer.state; sleep 100"
    started = time.monotonic()
    facts = run_probe(path=tools({"nvidia-smi": freeze}), nvidia_smi_deadline_s=1)
    assert time.monotonic() - started < 10
    gpus = facts["nvidia_smi"]["gpus"]
    assert gpus["timed_out"] is True
    state = Path(f"/proc/{gpus['pid']}/stat").read_text().rpartition(") ")[2][0]
    assert state == "D", "the child really could not be killed"


@pytest.mark.case("A12")
def test_no_second_nvidia_smi_is_started_beside_one_that_is_stuck(
    tools: Tools, frozen_cgroup: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    path = tools({"nvidia-smi": f"echo $$ >> {started}; sleep 100"})
    program = path.partition(":")[0] + "/nvidia-smi"
    stuck = subprocess.Popen([program], stdin=subprocess.DEVNULL)
    while not started.exists():
        time.sleep(0.01)
    (frozen_cgroup / "tasks").write_text(str(stuck.pid))
    (frozen_cgroup / "freezer.state").write_text("FROZEN")
    text = PROBE.read_text().replace("NVIDIA_SMI_STUCK_AFTER_S = 20", "NVIDIA_SMI_STUCK_AFTER_S = 0", 1)
    text = text.replace('PARAMETERS = "{}"', f"PARAMETERS = {json.dumps({'path': path})!r}", 1)
    time.sleep(0.1)
    said = subprocess.run([oldest_python(), "-"], input=text, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(said.stdout)["nvidia_smi"]["gpus"] == {"stuck": [stuck.pid]}
    assert started.read_text().split() == [str(stuck.pid)]
    (frozen_cgroup / "freezer.state").write_text("THAWED")
    stuck.kill()
    stuck.wait()


def test_columns_that_an_older_nvidia_smi_does_not_know_are_left_out_and_asked_for_as_xml(tools: Tools) -> None:
    script = """
    case "$*" in
      *gpu_recovery_action*) echo 'Field "gpu_recovery_action" is not a valid field to query.'; exit 2;;
      *fabric.state*) echo 'Field "fabric.state" is not a valid field to query.'; exit 2;;
      *--query-gpu*) echo 'index, driver_version'; echo '0, 535.161.08';;
      *--query-compute-apps*) echo 'gpu_bus_id, pid, process_name';;
      *-q*-x*) echo '<nvidia_smi_log></nvidia_smi_log>';;
    esac"""
    facts = run_probe(path=tools({"nvidia-smi": script}))["nvidia_smi"]
    assert facts["gpus"]["dropped"] == ["gpu_recovery_action", "fabric.state"]
    assert facts["gpus"]["out"] == "index, driver_version\n0, 535.161.08\n"
    assert facts["xml"]["rc"] == 0


def test_long_output_is_cut_and_the_whole_stays_bounded(tools: Tools) -> None:
    flood = "yes 0123456789012345678901234567890123456789 | head -c 20000000"
    programs = ("dkms", "mokutil", "nv-fabricmanager", "grubby", "apt-mark", "dpkg")
    text = PROBE.read_text().replace("OUTPUT_LIMIT = 1024 * 1024", "OUTPUT_LIMIT = 100 * 1024", 1)
    path = json.dumps({"path": tools(dict.fromkeys(programs, flood))})
    text = text.replace('PARAMETERS = "{}"', f"PARAMETERS = {path!r}", 1)
    said = subprocess.run([oldest_python(), "-"], input=text, capture_output=True, text=True, timeout=60, check=True)
    assert len(said.stdout) < 101 * 1024
    facts = json.loads(said.stdout)
    assert facts["commands"]["dkms_status"]["truncated"] is True


def test_only_lines_that_matter_are_kept_and_all_are_counted(tools: Tools) -> None:
    lines = "ii \tbash\tamd64\t5.2\nhi \tnvidia-utils-580\tamd64\t580.95.05-1\niF \tbroken\tall\t1\nrc \tgone\tall\t1\n"
    facts = run_probe(path=tools({"dpkg-query": f"printf '{lines}'"}))
    ran = facts["commands"]["dpkg_list"]
    assert ran["lines"] == 4
    assert "bash" not in ran["out"]
    assert "nvidia-utils-580" in ran["out"]
    assert "broken" in ran["out"]


def functions() -> dict[str, Any]:
    """The probe's own functions, without running it."""
    code = PROBE.read_text().partition('if __name__ == "__main__":')[0]
    names: dict[str, Any] = {}
    exec(compile(code, "probe.py", "exec"), names)
    return names


def member(name: str, size: int) -> bytes:
    """One member of a cpio archive of the kernel's form ("newc")."""
    numbers = [1, 0o100644, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name) + 1, 0]
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
    return head + b"\0" * (-len(head) % 4) + b"x" * size + b"\0" * (-size % 4)


def test_an_initramfs_is_read_without_any_tool_where_it_is_not_compressed(tmp_path: Path) -> None:
    first = member("kernel/x86/microcode/a.bin", 7) + member("TRAILER!!!", 0)
    second = member("usr/lib/modules/K/updates/dkms/nvidia.ko", 1301) + member("bin/sh", 3) + member("TRAILER!!!", 0)
    image = tmp_path / "initrd.img"
    image.write_bytes(first + b"\0" * (-len(first) % 512) + second + b"\0" * 200)
    fact = functions()["list_plain_cpio"](str(image))
    assert fact["out"] == "-rw-r--r-- 1 root root 1301 1970-01-01 usr/lib/modules/K/updates/dkms/nvidia.ko\n"
    assert fact["lines"] == 5
    for broken in (first + second[:-40], first + b"\x28\xb5\x2f\xfd" + b"zstd" * 9, b""):
        image.write_bytes(broken)
        assert "error" in functions()["list_plain_cpio"](str(image))


def test_credentials_in_package_sources_stay_on_the_node() -> None:
    names = functions()
    text = "deb https://user:secret@repo.example/ubuntu noble main\n"
    assert names["without_credentials"]({"text": text}) == {"text": "deb https://***@repo.example/ubuntu noble main\n"}


def test_the_probes_own_commands_are_not_taken_for_work(tools: Tools) -> None:
    facts = run_probe(path=tools(dict.fromkeys(("dpkg", "dkms", "rpm"), "sleep 0.6")))
    assert facts["processes"]["package"] == []


def test_a_package_manager_and_a_job_step_at_work_are_seen(tools: Tools, tmp_path: Path) -> None:
    path = tools({"apt-get": "sleep 30; :", "slurmstepd": "sleep 30; :"})
    folder = Path(path.partition(":")[0])
    running = [subprocess.Popen([folder / name]) for name in ("apt-get", "slurmstepd")]
    try:
        time.sleep(0.3)
        facts = run_probe(path=path)
    finally:
        for process in running:
            process.kill()
            process.wait()
    node = read_node(facts)
    assert f"apt-get ({running[0].pid})" in node.package_processes.get()
    assert running[1].pid in [entry["pid"] for entry in facts["processes"]["steps"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device node")
def test_a_process_with_a_gpu_open_is_seen(tools: Tools) -> None:
    device = Path("/dev/nvidia99")
    os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    try:
        with device.open("rb") as opened, subprocess.Popen(["sleep", "60"], stdin=opened) as holder:
            try:
                facts = run_probe(path=tools({}))
            finally:
                holder.kill()
    finally:
        device.unlink()
    found = {entry["pid"]: entry["devices"] for entry in facts["processes"]["gpu"]}
    assert found[holder.pid] == ["/dev/nvidia99"]


def test_who_runs_a_command_under_the_lease_is_seen(tmp_path: Path) -> None:
    lease = [sys.executable, str(LEASE), "--directory", str(tmp_path)]
    subprocess.run([*lease, "take", "r-1", "c", "1", "n"], check=True, capture_output=True)
    assert read_node(run_probe(path="/nonexistent", lease_directory=str(tmp_path))).package_processes.get() == ()
    with subprocess.Popen([*lease, "exec", "r-1", "1", "--", "sleep", "60"]) as guarded:
        try:
            time.sleep(0.5)
            facts = run_probe(path="/nonexistent", lease_directory=str(tmp_path))
        finally:
            guarded.terminate()
    (word,) = read_node(facts).package_processes.get()
    assert word.startswith("command under the lease")
    found = read_node(facts).lease.get()
    assert (found.rollout, found.controller, found.epoch, found.nonce) == ("r-1", "c", 1, "n")


def test_what_a_child_writes_just_before_it_ends_is_never_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that is not scheduled for a moment after it saw empty pipes, as on a busy machine."""
    look = select.select
    looks = 0

    def dawdle(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        found = look(*arguments)
        if looks == 1:
            time.sleep(0.4)
        return found

    monkeypatch.setattr(select, "select", dawdle)
    said = probe.Runner("/usr/bin:/bin").run(["sh", "-c", "sleep 0.2; echo all of it"], 10)
    assert (said["rc"], said["out"]) == (0, "all of it\n")
