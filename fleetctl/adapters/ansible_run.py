"""One run of ansible-playbook through ansible-runner: a fresh private directory, a recorded child, nothing left behind.

Blocking; the changer gives each run a thread of its own. What became of each node is read from the events alone
(ansible_events.py): ansible-runner 2.4.3 calls a play on an empty group successful, and its rc 254 is a timeout or a
cancel.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.adapters.quiet import end_everything_of, identity_of_process, runs_directory
from fleetctl.adapters.ssh_target import ssh_config
from fleetctl.errors import BadInput, FleetctlError
from fleetctl.model.fleet import Json, Node

_logger = logging.getLogger(__name__)

# The child writes who it is before it becomes ansible-playbook: a controller that comes later can find it.
# Fields 1 and 22 of proc_pid_stat(5), pid and start time, stay the same over exec.
_STUB = 'read -r line < /proc/$$/stat; printf "%s\\n" "$line" > "$1"; shift; exec "$@"'

# Settings of the caller's environment that would change what a run does, or where it says so.
_NOT_PASSED_ON = frozenset(
    {"ANSIBLE_STDOUT_CALLBACK", "ANSIBLE_LOG_PATH", "ANSIBLE_DISPLAY_ARGS_TO_STDOUT", "ANSIBLE_ROLES_PATH", "JOB_ID"}
)
_SSH_ARGS = "-o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=15 -o ServerAliveCountMax=4"


@dataclass(frozen=True, slots=True)
class AnsibleSettings:
    """Where Ansible finds things; the same for all runs of a site."""

    state_directory: Path
    inventory: tuple[Path, ...]
    playbooks: Path
    config: Path
    roles_path: tuple[Path, ...]
    """The site's own roles first."""


@dataclass(frozen=True, slots=True)
class RunOrder:
    """What one run does, and to which nodes."""

    playbook: str
    nodes: tuple[Node, ...]
    extra_vars: Mapping[str, Json]
    rollout: str
    epoch: int
    become: str
    """The command before which every privileged task is refused once the lease is no longer ours."""


def find_ansible_playbook() -> str:
    """The ansible-playbook of this installation; the one on PATH only where there is none beside our Python."""
    beside = Path(sys.executable).with_name("ansible-playbook")
    found = str(beside) if beside.is_file() else shutil.which("ansible-playbook")
    if not found:
        raise FleetctlError(f"ansible-playbook is neither beside {sys.executable} nor on PATH: reinstall fleetctl")
    return found


def run_playbook(
    order: RunOrder,
    settings: AnsibleSettings,
    on_event: Callable[[Mapping[str, Any]], None],
    is_cancelled: Callable[[], bool],
) -> str:
    """Run to the end; why it ended, in a few words. Every event goes to `on_event` in this thread, as it comes."""
    ident = uuid.uuid4().hex
    directory = runs_directory(settings.state_directory) / ident
    directory.mkdir(mode=0o700, parents=True)
    # Unix sockets have short paths (108 bytes), state directories may have long ones.
    sockets = Path(tempfile.mkdtemp(prefix="fleetctl-"))
    try:
        _record(directory, ident, sockets, order)
        return _run(order, settings, directory, sockets, ident, on_event, is_cancelled)
    finally:
        # Ansible's workers and its ssh masters are in sessions of their own: killing the group leaves them.
        end_everything_of(ident)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)


def _run(
    order: RunOrder,
    settings: AnsibleSettings,
    directory: Path,
    sockets: Path,
    ident: str,
    on_event: Callable[[Mapping[str, Any]], None],
    is_cancelled: Callable[[], bool],
) -> str:
    from ansible_runner.interface import init_runner

    extra_vars = _write(directory / "extra_vars.json", json.dumps(_extra_vars(order)))
    targets = _write_targets(directory, order.nodes)
    # Settings given as an argument are dropped when suppress_env_files is set (config/_base.py, prepare_env).
    _write(directory / "env" / "settings", json.dumps({"suppress_output_file": True, "pexpect_timeout": 1}))

    def take(event: dict[str, Any]) -> bool:
        on_event(event)
        # What is True here is also written to disk; this run's stats are all that anybody could ask for later.
        return event.get("event") == "playbook_on_stats"

    runner = init_runner(
        private_data_dir=str(directory),
        ident=ident,
        playbook=str(settings.playbooks / order.playbook),
        inventory=[*(str(path) for path in settings.inventory), str(targets)],
        cmdline=f"--extra-vars {shlex.quote(f'@{extra_vars}')}",
        forks=len(order.nodes),
        quiet=True,
        suppress_env_files=True,
        event_handler=take,
        cancel_callback=is_cancelled,
        status_handler=_drop_command_file(directory / "artifacts" / ident),
    )
    runner.config.env = _environment(runner.config.env, settings, directory, sockets, ident)
    playbook = find_ansible_playbook()
    runner.config.env["PATH"] = f"{Path(playbook).parent}:{runner.config.env.get('PATH', os.defpath)}"
    runner.config.command = ["sh", "-c", _STUB, "sh", str(directory / "child"), playbook, *runner.config.command[1:]]
    runner.run()
    if runner.status == "canceled":
        return "the run was cancelled"
    return f"Ansible's run ended ({runner.status}, exit code {runner.rc})"


def _drop_command_file(artifacts: Path) -> Callable[..., None]:
    """ansible-runner writes the whole environment to a file; it is gone before the child starts."""

    def on_status(status: Mapping[str, Any], **_: Any) -> None:
        if status.get("status") == "running":
            (artifacts / "command").unlink(missing_ok=True)

    return on_status


def _environment(
    seed: Mapping[str, str], settings: AnsibleSettings, directory: Path, sockets: Path, ident: str
) -> dict[str, str]:
    kept = {name: value for name, value in seed.items() if name not in _NOT_PASSED_ON}
    return kept | {
        "FLEETCTL_RUN": ident,
        "ANSIBLE_CONFIG": str(settings.config),
        "ANSIBLE_ROLES_PATH": ":".join(str(path) for path in settings.roles_path),
        "ANSIBLE_STDOUT_CALLBACK": "awx_display",
        # ansible-runner sets this to False unless it is set (config/_base.py, prepare_env).
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        # Without it no become, and so no lease, where the login is root already (plugins/action/__init__.py).
        "ANSIBLE_BECOME_ALLOW_SAME_USER": "True",
        "ANSIBLE_STRATEGY": "free",
        "ANSIBLE_ANY_ERRORS_FATAL": "False",
        "ANSIBLE_FORCE_HANDLERS": "False",
        "ANSIBLE_RUN_TAGS": "all",
        "ANSIBLE_SKIP_TAGS": "",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "ANSIBLE_LOCAL_TEMP": str(directory / "tmp"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(sockets),
    }


def _extra_vars(order: RunOrder) -> dict[str, Json]:
    return {
        **order.extra_vars,
        "fleetctl_hosts": [node.name for node in order.nodes],
        "ansible_become_method": "ansible.builtin.sudo",
        # Both names: of several that are set, the become plugin takes the last.
        "ansible_become_exe": order.become,
        "ansible_sudo_exe": order.become,
    }


def _write_targets(directory: Path, nodes: tuple[Node, ...]) -> Path:
    """A second inventory with nothing but the resolved targets: its host_vars outrank those of the site's inventory."""
    targets = directory / "targets"
    _write(targets / "hosts.json", json.dumps({"all": {"hosts": {node.name: None for node in nodes}}}))
    for node in nodes:
        if "/" in node.name or node.name.startswith("."):
            raise BadInput(f"{node.name!r} can't be the name of a node; mend it in the inventory")
        target = node.connection
        config = _write(directory / "ssh" / f"{node.name}.conf", ssh_config([(target.host, target)]))
        variables: dict[str, Json] = {
            "ansible_host": target.host,
            "ansible_ssh_args": _SSH_ARGS,
            "ansible_ssh_common_args": f"-F {shlex.quote(str(config))}",
            "ansible_ssh_extra_args": "",
            "ansible_host_key_checking": True,
            "ansible_ssh_host_key_checking": True,
        }
        if target.port != 22:
            variables |= {"ansible_port": target.port, "ansible_ssh_port": target.port}
        if target.user:
            variables |= {"ansible_user": target.user, "ansible_ssh_user": target.user}
        if target.identity_file:
            key = os.path.expanduser(target.identity_file)
            variables |= {"ansible_private_key_file": key, "ansible_ssh_private_key_file": key}
        _write(targets / "host_vars" / f"{node.name}.json", json.dumps(variables))
    return targets


def _record(directory: Path, ident: str, sockets: Path, order: RunOrder) -> None:
    """Who runs what, on disk before the child is started."""
    pid, started = identity_of_process(os.getpid())
    record = {
        "run": ident,
        "rollout": order.rollout,
        "epoch": order.epoch,
        "nodes": [node.name for node in order.nodes],
        "playbook": order.playbook,
        "host": socket.gethostname(),
        "controller": [pid, started],
        "sockets": str(sockets),
    }
    _write(directory / "run.json", json.dumps(record))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return path
