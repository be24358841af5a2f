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
LINE = re.compile(r"^In `([\w/.]+)`, after `([^`]+)`:\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGE = re.compile(r"^In `([\w/.]+)`, `([^`]+)` becomes `([^`]+)`\.$", re.MULTILINE)
THEN = re.compile(r"^Then:\n\n```python no-run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """One thing to add: what is written, what is put in where, and what holds afterwards."""

    title: str
    files: list[tuple[str, str]]
    lines: list[tuple[str, str, str]]  # where, after which line, what
    changes: list[tuple[str, str, str]]  # where, what, into what
    then: str


def sections(page: str) -> list[Section]:
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    return [
        Section(
            part.partition("\n")[0],
            FILE.findall(part),
            LINE.findall(part),
            CHANGE.findall(part),
            "".join(THEN.findall(part)),
        )
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


def extended(section: Section, folder: Path) -> Path:
    """A copy of the package with what a section adds to it."""
    package = folder / "vitrail"
    shutil.copytree(ROOT / "src" / "vitrail", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in section.files:
        assert not (package / name).exists(), name
        (package / name).write_text(text, "utf-8")
    for name, after, text in section.lines:
        before = (package / name).read_text("utf-8")
        assert before.count(f"{after}\n") == 1, f"{name} holds {after!r} {before.count(after)} times"
        (package / name).write_text(before.replace(f"{after}\n", f"{after}\n{text}"), "utf-8")
    for name, old, new in section.changes:
        before = (package / name).read_text("utf-8")
        assert before.count(old) == 1, f"{name} holds {old!r} {before.count(old)} times"
        (package / name).write_text(before.replace(old, new), "utf-8")
    return folder


def run_then(section: Section, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", section.then]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("title", SECTIONS)
def test_what_the_page_adds_works_and_nothing_like_it_did_before(title: str, tmp_path: Path) -> None:
    section = SECTIONS[title]
    run = run_then(section, extended(section, tmp_path / "source"), tmp_path / "with")
    assert run.returncode == 0, run.stderr
    assert run_then(section, ROOT / "src", tmp_path / "without").returncode != 0
