"""docs/capabilities.md says what the tests say: no row unknown, no page out of date."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import capabilities

ROOT = Path(__file__).resolve().parents[1]

TESTS = """
import pytest
from pytest import mark

pytestmark = [pytest.mark.row("a.1"), pytest.mark.filterwarnings("default")]

@mark.row("a.2", "a.3")
def test_two(): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.row("a.4"))])
def test_parameter(x): ...

@pytest.mark.row("a.5")
class TestThing:
    pytestmark = pytest.mark.row("a.6")

    @pytest.mark.row("a.5")
    def test_inside(self): ...

def helper(): ...
"""


def test_every_marked_row_is_known() -> None:
    groups = capabilities.read_groups(ROOT / "docs" / "rows.json")
    assert capabilities.unknown_rows(groups, capabilities.read_tests(ROOT)) == []


def test_the_page_is_up_to_date() -> None:
    run = check(ROOT)
    assert run.returncode == 0, run.stderr


def test_every_row_says_one_sentence() -> None:
    for group in capabilities.read_groups(ROOT / "docs" / "rows.json"):
        for row in group.rows:
            assert row.does.endswith("."), row
            assert row.does.count(". ") == 0, row
            assert len(row.does) > 30, row


def test_marks_are_found_wherever_they_stand() -> None:
    found = [(each, test.name) for each, test in capabilities.tests_in(TESTS, "tests/test_x.py")]
    assert found == [
        ("a.1", "test_two"),
        ("a.2", "test_two"),
        ("a.3", "test_two"),
        ("a.1", "test_parameter"),
        ("a.4", "test_parameter"),
        ("a.1", "TestThing::test_inside"),
        ("a.5", "TestThing::test_inside"),
        ("a.6", "TestThing::test_inside"),
    ]


def test_ids_must_be_written_out() -> None:
    with pytest.raises(ValueError, match="write the row ids out"):
        list(capabilities.tests_in("@pytest.mark.row(ID)\ndef test_x(): ...", "tests/test_x.py"))


def test_check_finds_an_old_page_and_an_unknown_row(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "tests").mkdir()
    rows = [{"id": "a.1", "does": "Shown | here."}, {"id": "a.2", "does": "Waits.", "optional": True}]
    (tmp_path / "docs" / "rows.json").write_text(json.dumps({"groups": [{"title": "A", "rows": rows}]}))
    test = tmp_path / "tests" / "test_x.py"
    test.write_text("import pytest\n@pytest.mark.row('a.1')\ndef test_x(): ...\n")

    missing = check(tmp_path)
    assert (missing.returncode, "out of date" in missing.stderr) == (1, True)

    groups = capabilities.read_groups(tmp_path / "docs" / "rows.json")
    page = capabilities.page(groups, capabilities.read_tests(tmp_path))
    assert "| a.1 | Shown \\| here. | [test_x.py::test_x](../tests/test_x.py) |" in page
    assert page.endswith("| a.2 | Waits. (optional) |\n")
    (tmp_path / "docs" / "capabilities.md").write_text(page)
    assert check(tmp_path).returncode == 0

    test.write_text("import pytest\n@pytest.mark.row('a.1', 'a.9')\ndef test_x(): ...\n")
    unknown = check(tmp_path)
    assert unknown.returncode == 1
    assert "test_x names the row 'a.9'" in unknown.stderr


def check(root: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tools" / "capabilities.py"
    command = [sys.executable, str(script), "--check", "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
