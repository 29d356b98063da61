"""Lists the tests of each case from the field: python tools/cases.py [--json]

A test says which cases it covers with @pytest.mark.case("A06"), an entry of a data file under tests/cases with
`id: A06`. Both are read from the text; nothing is imported, and what comments say does not count.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import yaml

ROOT = Path(__file__).resolve().parents[1]
CASE_ID = re.compile(r"[A-N][0-9]{2}")
"""A section of the list of cases, and a number in it."""
COVERED = Path("tests/cases/covered.yaml")

Covers = Mapping[str, tuple[str, ...]]
"""Id of a case to its tests (path::name) and data files, each named once."""


def covers_of(root: Path) -> Covers:
    """What covers each case, sorted. SystemExit names the place of a marker or an id that can't be read."""
    found: dict[str, list[str]] = {}
    for case, place in [*marked_tests(root), *data_files(root)]:
        found.setdefault(case, []).append(place)
    return {case: tuple(dict.fromkeys(places)) for case, places in sorted(found.items())}


def marked_tests(root: Path) -> Iterator[tuple[str, str]]:
    """(id, path::name) of every marker on a test that pytest would collect, or on its whole module."""
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        name = path.relative_to(root).as_posix()
        of_module = [mark for node in tree.body if _is_pytestmark(node) for mark in ast.walk(node) if _is_marker(mark)]
        seen = {id(mark) for mark in of_module}
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                marks = [mark for mark in node.decorator_list if _is_marker(mark)]
                seen.update(id(mark) for mark in marks)
                yield from ((case, f"{name}::{node.name}") for m in [*of_module, *marks] for case in _ids_of(m, name))
        for mark in ast.walk(tree):
            if _is_marker(mark) and id(mark) not in seen:
                raise SystemExit(f"{name}:{mark.lineno}: a case marker belongs above a test, or into pytestmark")


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pytestmark"]


def _is_marker(node: ast.AST) -> TypeGuard[ast.Call]:
    """True for pytest.mark.case(...)."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case"


def _ids_of(mark: ast.Call, name: str) -> list[str]:
    given = [argument.value if isinstance(argument, ast.Constant) else None for argument in mark.args]
    if not given or mark.keywords:
        raise SystemExit(f"{name}:{mark.lineno}: a case marker takes ids, as in pytest.mark.case('A06')")
    return [_checked(case, f"{name}:{mark.lineno}") for case in given]


def data_files(root: Path) -> Iterator[tuple[str, str]]:
    """(id, path) of every entry of a data file that has an id."""
    for path in sorted((root / "tests" / "cases").glob("*/*.yaml")):
        name = path.relative_to(root).as_posix()
        for entry in _entries(yaml.safe_load(path.read_text(encoding="utf-8"))):
            if CASE_ID.fullmatch(str(entry.get("case"))):
                raise SystemExit(f"{name}: `case: {entry['case']}`: an id is written `id:`, `case:` is for words")
            if "id" in entry:
                yield _checked(entry["id"], name), name


def _entries(document: Any) -> Iterable[Mapping[str, Any]]:
    """A data file is a list of entries, or holds one as `cases`."""
    entries: Iterable[Mapping[str, Any]] = document["cases"] if isinstance(document, dict) else document
    return entries


def _checked(case: object, where: str) -> str:
    if not (isinstance(case, str) and CASE_ID.fullmatch(case)):
        raise SystemExit(f"{where}: {case!r} is no id of a case: a letter from A to N and two digits")
    return case


def covered(root: Path) -> tuple[str, ...]:
    """The cases that are declared to have a test."""
    return tuple(_checked(case, str(COVERED)) for case in yaml.safe_load((root / COVERED).read_text(encoding="utf-8")))


def disagreements(declared: Iterable[str], covers: Covers) -> Iterator[str]:
    """Where the declared cases and the tests are not the same, in one line each."""
    for case in sorted(set(declared) - set(covers)):
        yield f"{case} is declared in {COVERED} and has no test any more"
    for case in sorted(set(covers) - set(declared)):
        yield f"{case} is not declared in {COVERED}: add it, or mend the id in {', '.join(covers[case])}"


def main() -> int:
    covers = covers_of(ROOT)
    if "--json" in sys.argv[1:]:
        print(json.dumps(covers, indent=2))
    else:
        for case, places in covers.items():
            print(case, "\n     ".join(places), sep="  ")
    problems = list(disagreements(covered(ROOT), covers))
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
