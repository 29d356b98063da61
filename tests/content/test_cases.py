"""Every case from the field that is declared covered has a test, and every test that is listed is one that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.cases import COVERED, covered, covers_of, disagreements

ROOT = Path(__file__).parents[2]

# What pytest itself makes of the markers: path::name, without parameters, and the ids of each test.
COLLECT = """
import pytest
class Told:
    def pytest_collection_finish(self, session):
        for item in session.items:
            for mark in item.iter_markers("case"):
                print("case", item.nodeid.partition("[")[0], *mark.args)
raise SystemExit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "tests"], plugins=[Told()]))
"""


def test_every_declared_case_has_a_test_and_every_case_of_a_test_is_declared() -> None:
    assert list(disagreements(covered(ROOT), covers_of(ROOT))) == []


def test_what_is_listed_is_what_pytest_runs() -> None:
    told = subprocess.run([sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    rows = [line.split()[1:] for line in told.stdout.splitlines() if line.startswith("case ")]
    collected = {(case, test) for test, *cases in rows for case in cases}
    listed = {(case, place) for case, places in covers_of(ROOT).items() for place in places}
    assert {(case, place) for case, place in listed if "::" in place} <= collected
    # An entry of a data file counts by the test that reads it: it must bear its id there.
    assert {case for case, _ in listed} == {case for case, _ in collected}
    read = {case for case, test in collected if (case, test) not in listed}
    assert {case for case, place in listed if "::" not in place} == read


def made(root: Path, test: str, *, data: str = "[]", declared: str = "[A06]") -> Path:
    """A project with one test file, one data file, and what it declares."""
    (root / "tests/cases/tool").mkdir(parents=True)
    (root / "tests/test_x.py").write_text(test)
    (root / "tests/cases/tool/x.yaml").write_text(data)
    (root / COVERED).write_text(declared)
    return root


MARKED = 'import pytest\n\n@pytest.mark.slow\n@pytest.mark.case("A06", "G16")\ndef test_a(): pass\n'
DATA = '- {id: A06, case: a GPU named A40, text: "M60"}\n- {id: A06, text: x}\n- {case: no id, jobs: [{id: "7"}]}\n'


def test_markers_and_data_files_are_listed_and_comments_are_not(tmp_path: Path) -> None:
    root = made(tmp_path, MARKED + '\ndef test_b(): "A07"  # A08, A40\n', data=DATA)
    assert covers_of(root) == {
        "A06": ("tests/test_x.py::test_a", "tests/cases/tool/x.yaml"),
        "G16": ("tests/test_x.py::test_a",),
    }
    assert list(disagreements(covered(root), covers_of(root))) == [
        "G16 is not declared in tests/cases/covered.yaml: add it, or mend the id in tests/test_x.py::test_a"
    ]


def test_a_marker_of_a_module_is_on_each_of_its_tests(tmp_path: Path) -> None:
    text = (
        'import pytest\npytestmark = [pytest.mark.slow, pytest.mark.case("A06")]\ndef test_a(): pass\ndef b(): pass\n'
    )
    assert covers_of(made(tmp_path, text)) == {"A06": ("tests/test_x.py::test_a",)}


def test_a_case_that_loses_its_last_test_is_told(tmp_path: Path) -> None:
    root = made(tmp_path, MARKED, declared="[A06, G16, M07]")
    assert list(disagreements(covered(root), covers_of(root))) == [
        "M07 is declared in tests/cases/covered.yaml and has no test any more"
    ]


@pytest.mark.parametrize(
    ("test", "data", "words"),
    [
        (MARKED.replace("A06", "A6"), "[]", "'A6' is no id of a case"),
        (MARKED.replace("A06", "Z01"), "[]", "'Z01' is no id of a case"),
        (MARKED.replace('"A06"', "A06"), "[]", "test_x.py:4: None is no id of a case"),
        (MARKED.replace('"A06", "G16"', ""), "[]", "test_x.py:4: a case marker takes ids"),
        (MARKED.replace("test_a", "make_a"), "[]", "test_x.py:4: a case marker belongs above a test"),
        ('import pytest\nslow = pytest.mark.case("A06")\n', "[]", "test_x.py:2: a case marker belongs above"),
        (MARKED, "[{id: A6}]", "x.yaml: 'A6' is no id of a case"),
        (MARKED, "[{case: G16}]", "`case: G16`: an id is written `id:`"),
    ],
)
def test_an_id_that_would_not_be_listed_is_refused(tmp_path: Path, test: str, data: str, words: str) -> None:
    root = made(tmp_path, test, data=data)
    with pytest.raises(SystemExit, match=words):
        covers_of(root)
