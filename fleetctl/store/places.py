"""Where in an inventory's files a thing stands: for messages only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from pathlib import Path

_AT_MOST = 3
_COMMENT = re.compile(r"(?:^|\s)[#;]")


def find_places(variable: str, directory: Path, groups: Set[str], hosts: Set[str]) -> list[str]:
    """ "file:line" of each place that gives `variable` to one of these groups or hosts; the first few.

    A search in the text: where a script or a plugin gives the variable, there is no place to be found.
    """
    given = re.compile(rf"""(?:^|[\s{{,])["']?{re.escape(variable)}["']?\s*[:=]""")
    found: list[str] = []
    for path in _candidates(directory, groups, hosts):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        name = path.relative_to(directory)
        found += [f"{name}:{number}" for number, line in enumerate(lines, 1) if given.search(_COMMENT.split(line)[0])]
    return found if len(found) <= _AT_MOST else [*found[:_AT_MOST], "..."]


def find_broken_yaml(directory: Path) -> str:
    """ "file:line is not valid YAML: why" of the first such file, or an empty text; Ansible often says no place."""
    import yaml

    for path in sorted(directory.rglob("*")):
        in_vars = "group_vars" in path.parts or "host_vars" in path.parts
        if not path.is_file() or not (path.suffix in (".yml", ".yaml") or (in_vars and not path.suffix)):
            continue
        try:
            for _ in yaml.compose_all(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader):
                pass
        except yaml.MarkedYAMLError as exc:
            line = exc.problem_mark.line + 1 if exc.problem_mark else 1
            return f"{path}:{line} is not valid YAML: {exc.problem}"
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
            return f"{path} can't be read: {exc}".splitlines()[0]
    return ""


def _candidates(directory: Path, groups: Set[str], hosts: Set[str]) -> Iterator[Path]:
    yield from sorted(path for path in directory.glob("*") if path.is_file() and path.name != "fleet.yml")
    for kind, names in (("group_vars", groups | {"all"}), ("host_vars", hosts)):
        for entry in sorted((directory / kind).glob("*")):
            if entry.name in names or entry.stem in names:
                yield from sorted(path for path in entry.rglob("*") if path.is_file()) if entry.is_dir() else [entry]
