"""What the tests stand on: what they say without fixtures, and which examples they try."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hypothesis

ROOT = Path(__file__).resolve().parents[1]


def test_without_fixtures_the_last_line_says_how_many_tests_were_left_out(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/data/test_folders.py",
        "-k",
        "real",
    ]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"VITRAIL_FIXTURES": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    *_, counted, last = ran.stdout.strip().splitlines()
    assert "1 skipped" in counted
    assert last == "left out for want of the fixtures that CONTRIBUTING.md speaks of: 1 tests"


def test_properties_are_tried_on_the_same_examples_every_time() -> None:
    seen: list[list[int]] = []

    @hypothesis.given(hypothesis.strategies.integers())
    def noted(number: int) -> None:
        seen[-1].append(number)

    for _ in range(2):
        seen.append([])
        noted()
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 20
