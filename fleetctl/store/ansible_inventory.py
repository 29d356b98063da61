"""The one call of the ansible-inventory command, and what its answer rests on."""

from __future__ import annotations

import configparser
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.errors import InventoryError
from fleetctl.store.content import ansible_config, find_content
from fleetctl.store.places import find_broken_yaml

# Ansible parses every file of an inventory directory; these are ours.
_OUR_FILES = r"^fleet\.ya?ml$"
_VAULT = b"$ANSIBLE_VAULT;"
_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one inventory directory, read once.

    `digest` changes with anything that a file inventory's answer rests on. `is_dynamic`: a script or a plugin is
    among the files, so the answer may change while they don't.
    """

    directory: Path
    digest: str
    is_dynamic: bool
    vaulted: tuple[Path, ...]
    """Files that are encrypted as a whole."""


def read_source(directory: Path, environ: Mapping[str, str]) -> Source:
    """Read every file of the inventory directory."""
    digest = hashlib.sha256()
    digest.update(importlib.metadata.version("ansible-core").encode())
    digest.update(json.dumps(sorted(item for item in environ.items() if item[0].startswith("ANSIBLE_"))).encode())
    if (config := ansible_config(environ)) and config.is_file():
        digest.update(str(config).encode() + config.read_bytes())
    vaulted: list[Path] = []
    is_dynamic = False
    for path in _files(directory):
        try:
            content = path.read_bytes()
        except OSError as exc:
            raise InventoryError(f"{path} can't be read: {exc.strerror}") from exc
        digest.update(f"{path.relative_to(directory)}\0{len(content)}\0".encode() + content)
        if content.startswith(_VAULT):
            vaulted.append(path)
        is_dynamic = is_dynamic or _is_dynamic(path, content, directory)
    return Source(directory, digest.hexdigest(), is_dynamic, tuple(vaulted))


def _files(directory: Path) -> Iterator[Path]:
    """Every file below, in a fixed order, through links as Ansible follows them; hidden ones are none of Ansible's."""
    for root, directories, names in os.walk(directory, followlinks=True):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(root, name)


def _is_dynamic(path: Path, content: bytes, directory: Path) -> bool:
    inside = path.relative_to(directory).parts[:-1]
    if "group_vars" in inside or "host_vars" in inside:
        # A lookup asks something outside of the inventory each time it is rendered.
        return b"lookup(" in content or b"query(" in content or b"q(" in content
    is_plugin = path.suffix in (".yml", ".yaml") and (content.startswith(b"plugin:") or b"\nplugin:" in content)
    return is_plugin or os.access(path, os.X_OK) or b"lookup(" in content


def ansible_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Ansible reads an inventory for us.

    A file that no plugin can read is an error: half an inventory is a smaller fleet than the one declared. Facts that
    an earlier play cached are left out: they are observed, not declared.
    """
    config = ansible_config(environ)
    own = {
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
        "ANSIBLE_INVENTORY_IGNORE_REGEX": ",".join([_OUR_FILES, *_ignored_by_site(environ, config)]),
        "ANSIBLE_CACHE_PLUGIN": "memory",
        "ANSIBLE_INVENTORY_EXPORT": "false",
        # Whatever is printed is logged, and the listing may hold secrets.
        "ANSIBLE_LOG_PATH": "/dev/null",
        "ANSIBLE_NOCOLOR": "true",
        "ANSIBLE_VERBOSITY": "0",
        "PYTHONWARNINGS": "ignore",
    }
    return {**environ, **own, **({"ANSIBLE_CONFIG": str(config)} if config else {})}


# Variable, the environment's name for it, and its section and key in ansible.cfg (ansible/plugins/connection/ssh.py).
_CONNECTION_SETTINGS = (
    ("ansible_user", "ANSIBLE_REMOTE_USER", "defaults", "remote_user"),
    ("ansible_port", "ANSIBLE_REMOTE_PORT", "defaults", "remote_port"),
    ("ansible_private_key_file", "ANSIBLE_PRIVATE_KEY_FILE", "defaults", "private_key_file"),
    ("ansible_ssh_args", "ANSIBLE_SSH_ARGS", "ssh_connection", "ssh_args"),
    ("ansible_ssh_common_args", "ANSIBLE_SSH_COMMON_ARGS", "ssh_connection", "ssh_common_args"),
    ("ansible_ssh_extra_args", "ANSIBLE_SSH_EXTRA_ARGS", "ssh_connection", "ssh_extra_args"),
    ("ansible_host_key_checking", "ANSIBLE_HOST_KEY_CHECKING", "defaults", "host_key_checking"),
    ("ansible_ssh_host_key_checking", "ANSIBLE_SSH_HOST_KEY_CHECKING", "ssh_connection", "host_key_checking"),
)


def connection_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Connection variables that hold for hosts which don't set them: the environment, else ansible.cfg."""
    path = ansible_config(environ)
    config = _read_config(path)
    found: dict[str, str] = {}
    for variable, name, section, key in _CONNECTION_SETTINGS:
        value = environ.get(name) or config.get(section, key, fallback=None)
        if value:
            found[variable] = value
            if key == "private_key_file" and name not in environ and path:
                # A path in ansible.cfg is meant from where that file is.
                found[variable] = str(path.parent.absolute() / os.path.expanduser(value))
    return found


def _ignored_by_site(environ: Mapping[str, str], config: Path | None) -> list[str]:
    """The patterns the site set itself: the environment variable replaces what ansible.cfg says, so both are kept."""
    text = environ.get("ANSIBLE_INVENTORY_IGNORE_REGEX")
    if text is None:
        read = _read_config(config)
        text = read.get("defaults", "inventory_ignore_patterns", fallback="")
        text = read.get("inventory", "ignore_patterns", fallback=text)
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def _read_config(config: Path | None) -> configparser.RawConfigParser:
    # The same dialect as ansible.config.manager: no interpolation, comments after ;
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",))
    if config and config.is_file():
        try:
            parser.read(config, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as exc:
            raise InventoryError(f"{config} can't be read: {exc}") from exc
    return parser


def command(name: str) -> str:
    """A command of the virtual environment that runs us, whatever PATH says."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise InventoryError(f"{path} is missing: install ansible-core into the environment of fleetctl")
    return str(path)


def run_ansible_inventory(source: Source, environ: Mapping[str, str]) -> str:
    """What `ansible-inventory --list` prints: every host with all its variables, in Ansible's own precedence.

    The text may hold secrets of encrypted files: keep it in memory.
    """
    argv = [command("ansible-inventory"), "-i", str(source.directory), "--list"]
    argv += ["--playbook-dir", str(find_content().playbooks)]
    try:
        run = subprocess.run(
            argv,
            env=ansible_environment(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InventoryError(f"{source.directory}: ansible-inventory gave no answer in {_TIMEOUT_S} s") from None
    if run.returncode != 0:
        broken = find_broken_yaml(source.directory)
        raise InventoryError(broken or f"{source.directory}: {_complaint(run.stderr)}{_next_step(run.stderr, source)}")
    return run.stdout


def _complaint(stderr: str) -> str:
    """The lines in which Ansible says what is wrong, in one line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    wrong = [line.partition("]: ")[2] for line in lines if line.startswith(("[ERROR]", "[WARNING]"))]
    return "; ".join(dict.fromkeys(wrong or lines[-1:])) or "ansible-inventory failed without a word"


def _next_step(stderr: str, source: Source) -> str:
    if "no vault secrets found" in stderr or "Decryption failed" in stderr:
        files = ", ".join(str(path.relative_to(source.directory)) for path in source.vaulted)
        return f" (encrypted: {files}): set ANSIBLE_VAULT_PASSWORD_FILE, or vault_password_file in ansible.cfg"
    return f": `ansible-inventory -i {source.directory} --list` shows more"


def parse_listing(text: str, source: Source) -> Mapping[str, Any]:
    """The JSON of --list as plain data."""
    try:
        listing = json.loads(text)
        listing["_meta"]["hostvars"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InventoryError(f"{source.directory}: ansible-inventory printed no listing ({exc})") from exc
    return listing  # type: ignore[no-any-return]  # shape checked above
