"""docs/extending.md carried out to the letter: its files and lines go into a copy of the package, its examples run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
FILE = re.compile(r"^File `([\w/.]+)`:\n\n```python no-run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^In `([\w/.]+)`, after `([^`]+)`:\n\n```python no-run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THEN = re.compile(r"^Then:\n\n```python no-run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """One thing to add: what is written, what is put in where, and what holds afterwards."""

    title: str
    files: list[tuple[str, str]]
    lines: list[tuple[str, str, str]]
    then: str


def sections(page: str) -> list[Section]:
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return [
        Section(part.partition("\n")[0], FILE.findall(part), LINE.findall(part), "".join(THEN.findall(part)))
        for part in parts
    ]


SECTIONS = {section.title: section for section in sections(PAGE)}


def test_the_page_tells_of_every_kind_of_thing() -> None:
    assert list(SECTIONS) == [
        "An explanation method",
        "A weights family",
        "A position kind",
        "An export target",
        "A recipe",
    ]
    for section in SECTIONS.values():
        assert section.then, section.title
        assert section.files or section.lines, section.title


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with everything on the page added to it."""
    source = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "src" / "vitrail", source / "vitrail", ignore=shutil.ignore_patterns("__pycache__"))
    for section in SECTIONS.values():
        for name, text in section.files:
            assert not (source / "vitrail" / name).exists(), name
            (source / "vitrail" / name).write_text(text, "utf-8")
        for name, after, text in section.lines:
            path = source / "vitrail" / name
            before = path.read_text("utf-8")
            assert before.count(f"{after}\n") == 1, f"{name} holds {after!r} {before.count(after)} times"
            path.write_text(before.replace(f"{after}\n", f"{after}\n{text}"), "utf-8")
    return source


@pytest.mark.parametrize("title", SECTIONS)
def test_what_the_page_adds_works(title: str, extended: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(extended)}
    command = [sys.executable, "-W", "error:::vitrail", "-c", SECTIONS[title].then]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("title", SECTIONS)
def test_it_would_not_work_without(title: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SECTIONS[title].then]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode != 0
