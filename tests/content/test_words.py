"""Names say what DESIGN section 2 says, and no file knows the machine that it was written on."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for path in (ROOT / "fleetctl").rglob("*.py") if "_content" not in path.parts)

NOUNS = {"desired", "actual", "manager", "helper", "helpers", "util", "utils"}
# As the first word of a function's name; a process of an operating system is a thing that has a name.
VERBS = {"heal", "fix", "process", "handle"}
NVIDIAS_NAME = re.compile(r"fabric_?manager")
# A home, root's or another's, and where this project happened to be checked out.
PRIVATE_PATH = re.compile(rb"(?<![\w.~/-])/(?:root|work|home/(?!fleet\b|researcher\b|admin\b)[a-z]\w*|Users/\w+)/")


def means_too_little(name: str) -> bool:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    words = NVIDIAS_NAME.sub("", snake).strip("_").split("_")
    return bool(NOUNS & set(words)) or words[0] in VERBS or "batch_size" in snake


def named(module: Path) -> Iterator[str]:
    yield module.stem
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not {".git", ".venv"} & set(path.parts)]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_uses_a_word_that_means_too_little(module: Path) -> None:
    bad = sorted({name for name in named(module) if means_too_little(name)})
    assert not bad, f"{module.name}: {', '.join(bad)}"


def test_no_file_names_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in tracked_files()
        for match in PRIVATE_PATH.finditer(path.read_bytes())
        if path != Path(__file__)
    ]
    assert not found
