"""Ansible's connection variables -> Connection. What can't be carried over is refused, never dropped in silence."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from fleetctl.model.fleet import Connection, HostVars, Json

# Names and order from ansible/plugins/connection/ssh.py: where several are set, the last holds.
_HOST = ("ansible_host", "ansible_ssh_host")
_PORT = ("ansible_port", "ansible_ssh_port")
_USER = ("ansible_user", "ansible_ssh_user")
_KEY = ("ansible_private_key_file", "ansible_ssh_private_key_file")
_ARGS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
_CHECKING = ("ansible_host_key_checking", "ansible_ssh_host_key_checking")

CONNECTION_VARIABLES = frozenset((*_HOST, *_PORT, *_USER, *_KEY, *_ARGS, *_CHECKING, "ansible_connection"))

# ssh options that change neither whom we reach nor whether we believe them.
_NEUTRAL = re.compile(
    "addkeystoagent|batchmode|ciphers|compression|connectionattempts|connecttimeout|control(master|path|persist)|"
    "escapechar|forward(agent|x11)|gssapi(authentication|delegatecredentials)|hostkeyalgorithms|identitiesonly|"
    "kbdinteractiveauthentication|kexalgorithms|loglevel|macs|numberofpasswordprompts|passwordauthentication|"
    "preferredauthentications|pubkey(acceptedalgorithms|authentication)|requesttty|"
    "serveralive(countmax|interval)|tcpkeepalive|updatehostkeys|visualhostkey"
)
_NEUTRAL_FLAGS = ("-4", "-6", "-A", "-C", "-K", "-T", "-a", "-k", "-q", "-t", "-tt", "-v", "-vv", "-vvv", "-x")
_WITH_VALUE = "-BDEFIJLQRSWbceilmopw"


class Untranslatable(ValueError):
    """Why a variable can't become part of a Connection, with the next step."""


def connection_of(name: str, variables: HostVars) -> Connection:
    """How the inventory says that `name` is reached. Raises Untranslatable for what fleetctl can't follow."""
    kind = variables.get("ansible_connection", "ssh")
    if kind not in ("ssh", "smart", "ansible.builtin.ssh"):
        raise Untranslatable(
            f"ansible_connection is {kind}: fleetctl reaches nodes over ssh; leave it out, or narrow `nodes`"
        )
    for variable in _CHECKING:
        if str(variables.get(variable, True)).lower() in ("false", "no", "0", "off", "n", "f"):
            raise Untranslatable(
                f"{variable} is off: fleetctl always checks host keys; remove it, add the keys to known_hosts"
            )
    host = _text(variables, _HOST) or name
    if host.startswith("-"):
        raise Untranslatable(f"ansible_host {host} starts with a dash: that is no address")
    connection = Connection(host)
    told: set[str] = set()
    for option, value, source in _options(variables):
        # ssh keeps the first value that it is given for an option.
        if option not in told:
            told.add(option)
            connection = _follow(connection, option, value, source)
    return connection


def _options(variables: HostVars) -> Iterator[tuple[str, str, str]]:
    """(option, value, variable) in the order in which Ansible's ssh plugin (_build_command) hands them to ssh."""
    yield from _words(variables, "ansible_ssh_args")
    for option, names in (("port", _PORT), ("identityfile", _KEY), ("user", _USER)):
        if value := _text(variables, names):
            yield option, value, names[0]
    yield from _words(variables, "ansible_ssh_common_args")
    yield from _words(variables, "ansible_ssh_extra_args")


def _text(variables: HostVars, names: tuple[str, ...]) -> str:
    found = ""
    for name in names:
        value: Json = variables.get(name)
        if value is not None:
            if isinstance(value, bool | list | dict):
                raise Untranslatable(f"{name} must be text")
            found = str(value)
    return found


def _number(text: str, name: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or not 0 < int(text) < 65536:
        raise Untranslatable(f"{name} {text} is no port number")
    return int(text)


def _path(path: str | None) -> str | None:
    return os.path.expanduser(path) if path else None


def _words(variables: HostVars, variable: str) -> Iterator[tuple[str, str, str]]:
    text = _text(variables, (variable,))
    return ((option, value, variable) for option, value in _parse_args(text, variable)) if text else iter(())


@lru_cache(maxsize=1000)  # ten thousand hosts have the same few
def _parse_args(text: str, variable: str) -> tuple[tuple[str, str], ...]:
    """The options of an ssh command line; flags that change nothing for us are left out."""
    try:
        words = shlex.split(text)
    except ValueError as exc:
        raise Untranslatable(f"{variable} can't be split into words: {exc}") from exc
    letters = {"-J": "proxyjump", "-p": "port", "-l": "user", "-i": "identityfile"}
    found: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        if word in _NEUTRAL_FLAGS:
            continue
        flag, value = word[:2], word[2:]
        if not word.startswith("-") or flag[1:] not in _WITH_VALUE:
            raise Untranslatable(f"{variable}: fleetctl does not know ssh's {word}; put it into ~/.ssh/config")
        value = value or next(rest, "")
        if flag == "-o":
            key, sign, setting = value.partition("=")
            if not sign:
                key, _, setting = value.partition(" ")
            found.append((key.strip().lower(), setting.strip().strip('"')))
        elif flag in letters:
            found.append((letters[flag], value))
        else:
            raise Untranslatable(f"{variable}: fleetctl does not know ssh's {flag}; put it into ~/.ssh/config")
    return tuple(found)


def _follow(connection: Connection, option: str, value: str, variable: str) -> Connection:
    if _NEUTRAL.fullmatch(option):
        return connection
    if option == "stricthostkeychecking":
        if value.lower() in ("no", "off", "false"):
            raise Untranslatable(f"{variable} turns host key checks off: remove it, add the keys to known_hosts")
        return connection
    if option == "proxycommand":
        return replace(connection, proxy_jump=_jump_of(value, variable))
    if option not in _FIELDS:
        raise Untranslatable(f"{variable}: fleetctl does not know ssh's option {option}; put it into ~/.ssh/config")
    return _FIELDS[option](connection, value, variable)


def _known_hosts(connection: Connection, value: str, variable: str) -> Connection:
    if value in ("/dev/null", "none"):
        raise Untranslatable(f"{variable} turns host key checks off (UserKnownHostsFile {value}): name a real file")
    if len(value.split()) > 1:
        raise Untranslatable(f"{variable} names several known hosts files: name one")
    return replace(connection, known_hosts=_path(value))


_FIELDS: Mapping[str, Callable[[Connection, str, str], Connection]] = {
    "userknownhostsfile": _known_hosts,
    "proxyjump": lambda connection, value, _: replace(connection, proxy_jump=None if value == "none" else value),
    "port": lambda connection, value, variable: replace(connection, port=_number(value, variable)),
    "user": lambda connection, value, _: replace(connection, user=value),
    "identityfile": lambda connection, value, _: replace(connection, identity_file=_path(value)),
}


def _jump_of(command: str, variable: str) -> str:
    """The jump host of `ssh -W %h:%p HOST`; other commands can't be followed by every adapter."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    hosts = [word for word in words[1:] if not word.startswith("-") and word != "%h:%p"]
    flags = {word for word in words[1:] if word.startswith("-")}
    if words[:1] == ["ssh"] and "%h:%p" in words and flags <= {"-W", "-q"} and len(hosts) == 1:
        return hosts[0]
    raise Untranslatable(f"{variable}: only ProxyCommand `ssh -W %h:%p HOST` can be followed; use ProxyJump")
