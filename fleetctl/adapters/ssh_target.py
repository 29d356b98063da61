"""One node's SSH target, resolved once: for asyncssh as arguments, for ssh (Ansible, testinfra) as configuration.

What a target leaves open comes from ~/.ssh/config and the agent, with ssh's own rules. Host keys are always checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleetctl.errors import BadInput
from fleetctl.model.fleet import Connection

_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"


@dataclass(frozen=True, slots=True)
class Route:
    known_hosts: tuple[str, ...]
    hops: str


def read_route(target: Connection) -> Route:
    import asyncssh

    try:
        options: Any = asyncssh.SSHClientConnectionOptions(host=target.host, **login_to(target))
    except asyncssh.ConfigParseError as error:
        raise BadInput(f"the SSH configuration can't be read: {error}; mend ~/.ssh/config") from error
    # None is asyncssh's word for "do not check" ("UserKnownHostsFile none" says so): it is never taken for an answer.
    known_hosts = [target.known_hosts] if target.known_hosts else list(options.known_hosts or ["~/.ssh/known_hosts"])
    hops = target.proxy_jump or (options.tunnel if isinstance(options.tunnel, str) else "")
    if hops.lower() == "none" or target.host in (read_hop(hop, "").host for hop in hops.split(",")):
        hops = ""  # as ssh does: no jump host stands before itself ("Host *" with ProxyJump)
    return Route(tuple(os.path.expanduser(path) for path in (*known_hosts, _SYSTEM_KNOWN_HOSTS)), hops)


def login_to(target: Connection) -> dict[str, Any]:
    """Where and who, for asyncssh; what the target leaves open comes from ~/.ssh/config, the agent and default keys."""
    # Read by asyncssh only if it is told of them, and the system's never.
    configuration = [
        path for path in (Path("~/.ssh/config").expanduser(), Path("/etc/ssh/ssh_config")) if path.is_file()
    ]
    login: dict[str, Any] = {"config": configuration, "kbdint_auth": False, "password_auth": False}
    if target.port != 22:
        login["port"] = target.port
    if target.user:
        login["username"] = target.user
    if target.identity_file:
        # The agent is asked for this one identity alone: a full agent uses up the server's MaxAuthTries.
        identity = Path(os.path.expanduser(target.identity_file))
        public = identity.with_name(identity.name + ".pub")
        login["client_keys"] = [str(identity)]
        if public.is_file():
            login["agent_identities"] = [str(public)]
            login["ignore_encrypted"] = True
        else:
            login["agent_path"] = None
    return login


def read_hop(text: str, before: str) -> Connection:
    """A jump host as ssh writes it: [user@]host[:port]."""
    user, _, address = text.strip().rpartition("@")
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit() and (host.startswith("[") or ":" not in host):
        return Connection(host.strip("[]"), int(port), user or None, proxy_jump=before or None)
    return Connection(address.strip("[]"), user=user or None, proxy_jump=before or None)


def ssh_config(targets: Iterable[tuple[str, Connection]], control_directory: str = "") -> str:
    """Text for `ssh -F`: a block per alias, then what holds for jump hosts too, then the user's and the system's own.

    ssh takes the first value that it finds for each option.
    """
    lines: list[str] = []
    known_hosts: list[str] = []
    for alias, target in targets:
        lines += [f"Host {_word(alias)}", f"  HostName {_word(target.host)}"]
        if target.port != 22:
            lines.append(f"  Port {target.port}")
        if target.user:
            lines.append(f"  User {_word(target.user)}")
        if target.identity_file:
            lines += [f"  IdentityFile {_path(target.identity_file)}", "  IdentitiesOnly yes"]
        if target.known_hosts:
            known_hosts.append(_path(target.known_hosts))
            lines.append(f"  UserKnownHostsFile {known_hosts[-1]}")
        if target.proxy_jump:
            lines.append(f"  ProxyJump {_word(target.proxy_jump)}")
    lines += ["Host *", "  BatchMode yes", "  StrictHostKeyChecking yes", "  UpdateHostKeys no"]
    if control_directory:
        lines += [
            "  ControlMaster auto",
            "  ControlPersist 60s",
            f"  ControlPath {_path(control_directory)}/%C",
        ]
    lines += ["Include ~/.ssh/config", "Include /etc/ssh/ssh_config"]
    if known_hosts:
        # Jump hosts may stand in the fleet's file as well as in the user's.
        both = " ".join(dict.fromkeys([*known_hosts, "~/.ssh/known_hosts"]))
        lines += ["Host *", f"  UserKnownHostsFile {both}"]
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    """A name as it may stand in an ssh configuration: no blank, quote, pattern or leading dash."""
    if not re.fullmatch(r"[A-Za-z0-9_@:.,%\[\]+][A-Za-z0-9_@:.,%\[\]+-]*", text):
        raise BadInput(f"{text!r} can't be a host, user or jump host for ssh; mend it in the inventory")
    return text


def _path(text: str) -> str:
    path = os.path.expanduser(text)
    if not path.isprintable() or '"' in path or "\\" in path:
        raise BadInput(f"{text!r} can't be a path for ssh; mend it in the inventory")
    return '"' + path.replace("%", "%%") + '"'
