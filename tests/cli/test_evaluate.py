"""The verb evaluate."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cli.command_line import Line
from vitrail.cli import evaluate
from vitrail.cli.terminal import SOME_UNREADABLE
from vitrail.evaluation import Score


def test_the_weakest_classes_come_first_and_metrics_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [SimpleNamespace(name=f"c{n}", count=n, precision=0.5, recall=0.25, f1=n / 10) for n in (3, 1, 6, 4, 2, 5)]
    scores = {"top1": Score(0.5, 0.4, 0.6), "ece": Score(0.031, 0.02, 0.05), "loss": Score(0.4567, 0.4, 0.5)}
    evaluate.show_scores(SimpleNamespace(scores=scores, per_class=rows, caveat=""))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[:5] == [
        "value 95 % interval",
        "accuracy 50.0 % 40.0 to 60.0 %",
        "calibration error 3.1 % 2.0 to 5.0 %",
        "loss 0.457 0.400 to 0.500",
        "weakest classes images precision recall F1",
    ]
    assert lines[5] == "c1 1 50.0 % 25.0 % 10.0 %"
    assert [line.split()[0] for line in lines[5:]] == ["c1", "c2", "c3", "c4", "c5"]


def test_unreadable_images_are_counted_and_end_with_their_code(
    vit: Line, photos: Path, start: Path, tmp_path: Path
) -> None:
    said = vit("evaluate", start, _renamed(photos, tmp_path), "--split", "all")
    assert said.code == SOME_UNREADABLE
    assert "61 images of " in said.out
    assert said.err.splitlines()[-1] == "vitrail: 1 image could not be read; the others are done"
    told = vit("evaluate", start, tmp_path / "photos", "--split", "all", "--json")
    assert (told.code, told.json["n"], len(told.json["skipped"])) == (SOME_UNREADABLE, 61, 1)
    said = vit("compare", start, start, tmp_path / "photos", "--split", "all")
    assert (said.code, said.err.count("broken.png")) == (SOME_UNREADABLE, 1)
    (tmp_path / "photos" / "a" / "broken.png").unlink()
    assert vit("evaluate", start, tmp_path / "photos", "--split", "all").code == 0


def test_a_folder_that_may_not_be_read_is_told_and_seen_from_the_exit_code(
    vit: Line, start: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _renamed(photos, tmp_path)
    (tmp_path / "photos" / "a" / "broken.png").unlink()
    (tmp_path / "photos" / "a" / "private").mkdir()
    scandir = os.scandir

    def forbidden(path: Any) -> Any:
        if str(path).rstrip("/").endswith("private"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    for words in (("evaluate", start), ("compare", start, start), ("audit",)):
        said = vit(*words, tmp_path / "photos")
        assert said.code == SOME_UNREADABLE, said
        assert "left out: 1 folder that cannot be read: a/private" in said.out + said.err


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
    assert said.code == SOME_UNREADABLE
    assert said.err.splitlines()[:3] == [
        "vitrail: left out: 1 broken link: cat/gone.png",
        "vitrail: left out: 1 file that is not an image (.txt): cat/notes.txt",
        "vitrail: 3 images cannot be read (not an image that can be read: it seems to be a web page, not an image: "
        "the download went wrong): [dog]/page.jpg, cat/page.jpg, cow/page.jpg",
    ]


def _renamed(photos: Path, tmp_path: Path) -> Path:
    """The same images in folders named after the classes of the network."""
    for old, new in (("red", "a"), ("green", "b"), ("blue", "c")):
        shutil.copytree(photos / old, tmp_path / "photos" / new)
    return tmp_path / "photos"
