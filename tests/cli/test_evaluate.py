"""The verb evaluate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from cli.command_line import Line
from vitrail.cli import evaluate
from vitrail.evaluation import Score


def test_the_weakest_classes_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [SimpleNamespace(name=f"c{n}", count=n, precision=0.5, recall=0.5, f1=n / 10) for n in (3, 1, 6, 4, 2, 5)]
    evaluate.show_scores(SimpleNamespace(scores={"top1": Score(0.5, 0.4, 0.6)}, per_class=rows, skipped=("a",)))
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[3:]] == ["c1", "c2", "c3", "c4", "c5"]
    assert "0.5000" in said.out
    assert "1 images could not be read" in said.err


def test_what_is_left_out_is_told_a_line_a_kind(vit: Line, file: Path, tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    for name in ("cat", "[dog]", "cow"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.fromarray(dice.integers(0, 256, (32, 32, 3), np.uint8)).save(tmp_path / name / f"{number}.png")
        (tmp_path / name / "page.jpg").write_text("<!doctype html>")
    (tmp_path / "cat/gone.png").symlink_to(tmp_path / "never.png")
    (tmp_path / "cat/notes.txt").touch()
    said = vit("evaluate", file, tmp_path)
    assert said.code == 0
    assert said.err.splitlines()[:3] == [
        "vitrail: left out: 1 broken link: cat/gone.png",
        "vitrail: left out: 1 not an image (.txt): cat/notes.txt",
        "vitrail: 3 images cannot be read (not an image that can be read: it seems to be a web page, not an image: "
        "the download went wrong): [dog]/page.jpg, cat/page.jpg, cow/page.jpg",
    ]
