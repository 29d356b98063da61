"""A YAML file read strictly: one mapping, no key twice, and the line of each key remembered for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fleetctl.errors import BadInput

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The mapping of one file; `lines` gives the line number (from 1) of each key path."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int]

    def place(self, key: KeyPath) -> str:
        """ "file:line" of the key, or of the nearest key around it."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines[key]}" if key else str(self.path)


def read_yaml(path: Path, error: type[BadInput]) -> YamlFile:
    """Read `path`; anything but one mapping without repeated keys is an `error` that names file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise error(f"{path} can't be read: {getattr(exc, 'strerror', None) or exc}") from exc
    return parse_yaml(text, path, error)


def parse_yaml(text: str, path: Path, error: type[BadInput]) -> YamlFile:
    """As read_yaml, for text that was read from `path`."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return YamlFile(path, {}, {})
        if not isinstance(root, yaml.MappingNode):
            raise error(f"{path}:1 must hold keys and values (like `key: value`)")
        lines: dict[KeyPath, int] = {}
        _note_lines(root, (), lines, frozenset(), path, error)
        values = loader.construct_document(root)
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise error(f"{place} is not valid YAML: {_problem_of(exc)}") from exc
    except (ValueError, TypeError, RecursionError) as exc:
        # A timestamp such as 2026-13-45, a mapping as a key, brackets nested a thousand deep.
        raise error(f"{path} holds a value that YAML can't express: {exc}") from exc
    finally:
        if loader is not None:
            loader.dispose()
    unnamed = [key for key in values if not isinstance(key, str)]
    if unnamed:
        raise error(f"{path} has the key {unnamed[0]!r}, which is not a word: quote it, or remove it")
    return YamlFile(path, values, lines)


def _problem_of(exc: yaml.YAMLError) -> str:
    return getattr(exc, "problem", None) or getattr(exc, "reason", None) or str(exc)


def _note_lines(
    node: yaml.Node,
    at: KeyPath,
    lines: dict[KeyPath, int],
    around: frozenset[int],
    path: Path,
    error: type[BadInput],
) -> None:
    if id(node) in around:
        raise error(f"{path}:{node.start_mark.line + 1} refers to itself: remove the alias")
    around |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            _note_lines(item, (*at, index), lines, around, path, error)
    elif isinstance(node, yaml.MappingNode):
        own: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            name = str(key.value)
            if key.tag != "tag:yaml.org,2002:merge":
                if name in own:
                    raise error(f"{path}:{line} gives {name} a second time (first in line {own[name]}): remove one")
                own[name] = line
            lines[(*at, name)] = line
            _note_lines(value, (*at, name), lines, around, path, error)
