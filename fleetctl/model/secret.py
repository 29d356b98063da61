"""What must be neither kept nor shown: values of variables that a secret's name, and texts that give one away."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from fleetctl.model.fleet import HostVars, Json

HIDDEN = "********"

# A shorter value is an ordinary word as well ("no", "lab"): hiding it everywhere would hide everything.
_SHORTEST = 4
_LONG_LINE = 16

_WORD = r"(?:pass(?:word|wd|phrase)|secret|token|credentials?|api_?key|access_?key|private_?key)"
_NAME = re.compile(rf"{_WORD}|(?:^|[_.-])pass(?:$|[_.-])|community_string", re.IGNORECASE)
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"',;&]+)"""
_SIGN = r"\s{0,8}[:=]\s{0,8}"
# Every repetition is bounded, or ends where it can't begin again: a node may print a line of any length.
_TEXTS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # Authorization: Bearer x
    (re.compile(rf"(authorization[\"']?{_SIGN}[\"']?(?:\w{{1,20}}\s)?){_VALUE}", re.IGNORECASE), rf"\g<1>{HIDDEN}"),
    # password=x, "api_key": "x", --token x; a blank alone only after dashes, else prose would be hidden
    (re.compile(rf"({_WORD}\w{{0,40}}[\"']?{_SIGN}){_VALUE}", re.IGNORECASE), rf"\g<1>{HIDDEN}"),
    (re.compile(rf"((?<![\w-])--[\w-]{{0,40}}{_WORD}\s){_VALUE}", re.IGNORECASE), rf"\g<1>{HIDDEN}"),
    # scheme://user:x@host, and a token in the user's place
    (re.compile(r"(\w://[^/\s:@]*:)[^/\s]+(?=@)"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(\w://)[^/\s:@]{20,}(?=@)"), rf"\g<1>{HIDDEN}"),
)


def is_secret_name(name: str) -> bool:
    return _NAME.search(name) is not None


def secrets_in(variables: HostVars) -> tuple[str, ...]:
    """Values of variables whose names say that they are secret, and whatever is inside such a variable; longest first,
    since one may be part of another.
    """
    found: set[str] = set()
    for value in _secret_values(variables, inside=False):
        found.add(value)
        # What a tool prints of a key is often one line of it.
        found.update(line.strip() for line in value.splitlines() if len(line.strip()) >= _LONG_LINE)
    return tuple(sorted((value for value in found if len(value) >= _SHORTEST), key=lambda value: (-len(value), value)))


def scrub(text: str, secrets: Sequence[str] = ()) -> str:
    """The text with the known secrets hidden, in the order given, and with what has the form of one."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    for pattern, hidden in _TEXTS:
        text = pattern.sub(hidden, text)
    return text


def scrub_data(value: Json, secrets: Sequence[str] = (), *, inside: bool = False) -> Json:
    """The same for plain data; `inside`: it belongs to a name that is secret."""
    if isinstance(value, Mapping):
        return {
            scrub(key, secrets): scrub_data(item, secrets, inside=inside or is_secret_name(key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [scrub_data(item, secrets, inside=inside) for item in value]
    if inside and value is not None and not isinstance(value, bool):
        return HIDDEN
    return scrub(value, secrets) if isinstance(value, str) else value


def _secret_values(value: Json, *, inside: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secret_values(item, inside=inside or is_secret_name(str(key)))
    elif isinstance(value, list):
        for item in value:
            yield from _secret_values(item, inside=inside)
    elif inside and isinstance(value, str):
        yield value
