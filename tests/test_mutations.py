"""The list of faults fits the code, and the program that tries them says caught only where a test failed."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def mutations() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stress_mutations", ROOT / "stress" / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stress_mutations"] = module
    spec.loader.exec_module(module)
    return module


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of the tests in a file, those of a class with its name before them."""
    names = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        names |= {node.name} if isinstance(node, ast.FunctionDef) else set()
        names |= {f"{node.name}::{each.name}" for each in inner if isinstance(each, ast.FunctionDef)}  # type: ignore[union-attr]
    return frozenset(names)


def test_every_fault_fits_the_code_as_it_is(mutations: ModuleType) -> None:
    for fault in mutations.read_faults():
        text = (ROOT / fault.file).read_text("utf-8")
        assert text.count(fault.line) == 1, f"{fault.name}: {fault.file} holds its line {text.count(fault.line)} times"
        assert fault.becomes != fault.line, fault.name
        assert fault.tests, fault.name
        for test in fault.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).is_file(), f"{fault.name}: no {file}"
            assert not name or name.partition("[")[0] in names_in(file), f"{fault.name}: no {test}"


def test_faults_are_spread_over_all_rooms(mutations: ModuleType) -> None:
    faults = mutations.read_faults()
    assert len(faults) >= 200
    rooms = Counter(Path(fault.file).parts[2] for fault in faults if fault.file.startswith("src/vitrail/"))
    folders = {path.name for path in (ROOT / "src" / "vitrail").iterdir() if (path / "__init__.py").is_file()}
    assert folders <= rooms.keys()
    assert min(rooms[folder] for folder in folders) >= 10


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of two functions and one test."""
    tmp_path = tmp_path / "tree"
    (tmp_path / "src").mkdir(parents=True)
    (tmp_path / "src" / "vitrail.py").write_text("")  # what is tried must be the copy's own
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef double(a):\n    return 2 * a\n")
    (tmp_path / "test_sums.py").write_text("from sums import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    return tmp_path


def test_caught_survived_and_broken(mutations: ModuleType, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (tree / "sums.py").read_text()
    copy = mutations.Copy(tree)
    fault = mutations.Fault(
        name="sums/minus", file="sums.py", line="a + b", becomes="a - b", tests=("test_sums.py::test_add",)
    )
    found = copy.try_fault(fault)
    assert (found.verdict, found.detail) == ("caught", "test_sums.py::test_add")
    assert (tree / "sums.py").read_text() == before  # taken out again
    unseen = replace(fault, line="2 * a", becomes="3 * a")
    assert copy.try_fault(unseen).verdict == "SURVIVED"
    for changes in (
        {"line": "return", "becomes": "yield"},  # stands twice
        {"becomes": "a +"},  # no Python
        {"becomes": "a + b"},  # no change
        {"tests": ("test_sums.py::test_gone",)},  # no such test: nothing was shown
        {"file": "gone.py"},
        {"line": "def add", "becomes": "def subtract"},  # the test cannot even be collected
    ):
        assert copy.try_fault(replace(fault, **changes)).verdict == "BROKEN", changes
    monkeypatch.setattr(mutations, "SECONDS", 1)
    endless = copy.try_fault(replace(fault, becomes="max(0 for _ in iter(int, 1))"))
    assert (endless.verdict, endless.detail) == ("caught", "no end within 1 s")
    monkeypatch.undo()
    (tree / "src" / "vitrail.py").unlink()  # an installed one would be imported, and nothing shown
    assert copy.try_fault(fault).verdict == "BROKEN"
    copy.close()
    assert (tree / "sums.py").read_text() == before


def test_tests_of_a_file_stay_together(mutations: ModuleType) -> None:
    parts = mutations.by_file(["a.py::x", "a.py::y", "b.py", "c.py::z"], 2)
    assert parts == [["a.py::x", "a.py::y", "c.py::z"], ["b.py"]]


def test_names_and_samples(mutations: ModuleType) -> None:
    values: dict[str, Any] = {"file": "a.py", "line": "a", "becomes": "b", "tests": ("t",)}
    faults = [mutations.Fault(name=f"{room}/{number}", **values) for room in "ab" for number in range(10)]
    names = [fault.name for fault in mutations.chosen(faults, ["a/1", "b/2"], None, 0)]
    assert names == ["a/1", "b/2"]
    assert len(mutations.chosen(faults, ["a/"], None, 0)) == 10
    first, again, other = (mutations.chosen(faults, [], 5, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 5
    with pytest.raises(SystemExit, match="no fault is called 'c'"):
        mutations.chosen(faults, ["c"], None, 0)
