"""Which nodes are meant: Ansible's host patterns, folded names such as gpu[001-016], and @groups."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleetctl.errors import SelectionError
from fleetctl.model.names import fold
from fleetctl.parse.slurm_hostlist import expand_hostlist
from fleetctl.store.problems import suggest

# As ansible.inventory.manager: pattern[3], pattern[-1], pattern[2:5], pattern[2:]. [2-5], which Ansible reads with a
# warning, and numbers with zeros in front are names here: gpu[001-016] must never mean members of a group gpu.
_SUBSCRIPT = re.compile(r"(?P<base>.+)\[(?:(?P<one>-?(?:0|[1-9]\d*))|(?P<first>\d+):(?P<last>\d*))\]", re.ASCII)
_FOLDED = re.compile(r"[^\[\]~*?!]*(?:\[[\d,-]*\][^\[\]*?]*)+", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostPatterns:
    """The names that patterns may speak of: hosts in inventory order, and groups with all their hosts.

    `elsewhere` are names that exist but are not to be selected, each with the reason.
    """

    hosts: Mapping[str, None]
    groups: Mapping[str, Sequence[str]]
    elsewhere: Callable[[str], str] = field(default=lambda _: "")

    def match(self, pattern: str) -> list[str]:
        """Names that `pattern` selects: unions first, then &intersections, then !exclusions, as in Ansible.

        Unlike in Ansible a term that matches nothing is a SelectionError: a misspelt name must not shrink a fleet.
        """
        terms = split_pattern(pattern)
        chosen: dict[str, None] = {}
        positive = [term for term in terms if term[0] not in "!&"] or ["all"]
        for term in positive:
            chosen.update(dict.fromkeys(self._match_term(term)))
        for term in terms:
            if term[0] == "&":
                found = set(self._match_term(term[1:]))
                chosen = {name: None for name in chosen if name in found}
        for term in terms:
            if term[0] == "!":
                found = set(self._match_term(term[1:]))
                chosen = {name: None for name in chosen if name not in found}
        return list(chosen)

    def _match_term(self, term: str) -> Sequence[str]:
        if not term:
            raise SelectionError("a ! or & stands alone in the node pattern: write a name behind it")
        if term in self.hosts:
            return [term]
        if term in ("all", "*"):
            return list(self.hosts)
        if term[0] == "@":
            return self._group(term[1:])
        if term[0] == "~":
            return self._search(term)
        if _FOLDED.fullmatch(term):
            return self._folded(term)
        found = self._wild(term)
        if found is None:
            raise SelectionError(self._unknown(term))
        return found

    def _group(self, name: str) -> Sequence[str]:
        if name == "all":
            return list(self.hosts)
        if name not in self.groups:
            raise SelectionError(f"there is no group {name}{suggest(name, self.groups)} in the inventory")
        return self.groups[name]

    def _search(self, term: str) -> Sequence[str]:
        try:
            regex = re.compile(term[1:])
        except re.error as exc:
            raise SelectionError(f"{term} is no regular expression: {exc}") from exc
        return self._require(term, self._matching(regex.match))

    def _wild(self, term: str) -> Sequence[str] | None:
        """What a name or a glob stands for, in Ansible's way, subscript and all; None: nothing."""
        if found := _SUBSCRIPT.fullmatch(term):
            members = self._wild(found["base"])
            return None if members is None else _subscripted(term, members, found)
        if term == "all":
            return list(self.hosts)
        if term in self.groups:
            return self.groups[term]
        if term in self.hosts:
            return [term]
        if any(letter in term for letter in "*?["):
            return self._matching(re.compile(fnmatch.translate(term)).match) or None
        return None

    def _matching(self, matches: Callable[[str], object]) -> list[str]:
        found: dict[str, None] = {}
        for group, members in self.groups.items():
            if matches(group):
                found.update(dict.fromkeys(members))
        found.update({host: None for host in self.hosts if matches(host)})
        return list(found)

    def _folded(self, term: str) -> Sequence[str]:
        """gpu[001-016]: names. group[3]: a member of a group, if there is no such name. Both: refused."""
        read = expand_hostlist(term)
        names = read.value or ()
        unknown = [name for name in names if name not in self.hosts]
        subscript = _SUBSCRIPT.fullmatch(term)
        members = self._wild(term) if subscript and subscript["base"] in ("all", *self.groups) else None
        if names and not unknown:
            if members is not None and set(members) != set(names):
                raise SelectionError(
                    f"{term} is the node {fold(names)}, and also a member of a group ({fold(members)}): "
                    "write the name of the one that is meant"
                )
            return names
        if members is not None:
            return members
        if not read.is_known:
            raise SelectionError(read.reason)
        raise SelectionError(self._unknown(*unknown))

    def _require(self, term: str, found: Sequence[str]) -> Sequence[str]:
        if not found:
            raise SelectionError(f"{term} matches no node and no group of the inventory")
        return found

    def _unknown(self, *names: str) -> str:
        for name in names:
            if reason := self.elsewhere(name):
                return reason
        known = (*self.groups, *self.hosts)
        shown = fold(names) if not any(letter in names[0] for letter in "*?[") else names[0]
        return f"{shown} is neither a node nor a group of the inventory{suggest(names[0], known)}"


def _subscripted(term: str, members: Sequence[str], found: re.Match[str]) -> Sequence[str]:
    if found["one"] is not None:
        index = int(found["one"])
        if not -len(members) <= index < len(members):
            raise SelectionError(f"{term}: {found['base']} has only {len(members)} members, the first is [0]")
        return [members[index]]
    last = int(found["last"]) if found["last"] else len(members) - 1
    chosen = members[int(found["first"]) : last + 1]
    if not chosen:
        raise SelectionError(f"{term}: {found['base']} has only {len(members)} members, the first is [0]")
    return chosen


def split_pattern(pattern: str) -> list[str]:
    """The terms of a pattern: between commas, or, where there is none, colons; never within brackets."""
    if not pattern.strip():
        raise SelectionError("the node pattern is empty: name nodes or groups, or leave the option out")
    depth, pieces, colons = 0, [""], [""]
    for letter in pattern:
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise SelectionError(f"{pattern}: brackets do not match")
        for separator, parts in ((",", pieces), (":", colons)):
            if letter == separator and depth == 0:
                parts.append("")
            else:
                parts[-1] += letter
    if depth:
        raise SelectionError(f"{pattern}: brackets do not match")
    # A regular expression may hold colons.
    terms = colons if len(pieces) == 1 and not pattern.lstrip().startswith(("~", "!~", "&~")) else pieces
    cleaned = [term.strip() for term in terms]
    if not all(cleaned):
        raise SelectionError(f"{pattern}: a name is missing between two separators")
    return cleaned


def members_of(groups: Mapping[str, Sequence[str]], hosts: Iterable[str]) -> dict[str, Sequence[str]]:
    """The groups with only those of their members that are among `hosts`; groups left empty stay, to be named."""
    kept = set(hosts)
    return {group: tuple(name for name in members if name in kept) for group, members in groups.items()}
