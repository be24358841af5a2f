"""Evaluations as files: a row for every image in the table, and images found by name."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ImageError, InputError
from vitrail.evaluation import evaluation_of
from vitrail.evaluation.report_files import images_of, predictions_table
from vitrail.evaluation.results import Score, Unlike
from vitrail.images import Preprocess
from vitrail.reporting.html_page import write_files

CLASSES = ("ape", "bee")


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_a_row_for_every_image_with_its_likeliest_class() -> None:
    """Not only of those that are wrong; a comma in a name stays in its cell."""
    logits = np.log(np.array([[0.75, 0.25], [0.4, 0.6], [0.1, 0.9]]))
    found = evaluation_of(logits, np.array([0, 0, 1]), ["a,1.png", "b.png", "c.png"], CLASSES, split="val", resamples=0)
    assert rows_of(predictions_table(found)) == [
        ["path", "split", "truth", "predicted", "probability", "confident", "unlike"],
        ["a,1.png", "val", "ape", "ape", "0.750000", "yes", ""],
        ["b.png", "val", "ape", "bee", "0.600000", "yes", ""],
        ["c.png", "val", "bee", "bee", "0.900000", "yes", ""],
    ]


def test_answers_that_are_not_confident_and_images_unlike_the_training_ones_are_marked() -> None:
    """The minimum counts as reached by what is equal to it."""
    logits = np.array([[0.0, 4.0], [0.4, 0.0], [0.0, 0.0]])
    found = evaluation_of(logits, np.array([0, 0, 1]), list("xyz"), CLASSES, reject=0.55, resamples=0)
    unlike = Unlike(Score(2 / 3, 0.2, 0.9), 0.05, np.array([True, False, True]))
    rows = rows_of(predictions_table(replace(found, unlike=unlike)))[1:]
    assert [row[5:] for row in rows] == [["yes", "yes"], ["yes", "no"], ["no", "yes"]]
    equal = replace(found, reject=0.5)
    assert [row[5:] for row in rows_of(predictions_table(equal))[1:]] == [["yes", ""]] * 3


def test_of_several_labels_none_that_is_likely_enough_is_not_confident() -> None:
    logits = np.array([[2.0, -1.0], [-1.0, -2.0]])
    found = evaluation_of(logits, np.eye(2), ["x", "y"], CLASSES, "multi-label", resamples=0)
    assert [row[5] for row in rows_of(predictions_table(found))[1:]] == ["yes", "no"]


@pytest.mark.parametrize("thresholds, said", [(None, ["ape|bee", "", "bee"]), ((0.9, 0.2), ["bee", "bee", "bee"])])
def test_several_labels_are_said_from_their_thresholds_on(
    thresholds: tuple[float, float] | None, said: list[str]
) -> None:
    shares = np.array([[0.8, 0.7], [0.3, 0.4], [0.1, 0.5]])
    targets = np.array([[1, 1], [0, 0], [1, 0]])
    logits = np.log(shares / (1 - shares))
    found = evaluation_of(logits, targets, list("xyz"), CLASSES, "multi-label", thresholds=thresholds, resamples=0)
    rows = rows_of(predictions_table(found))[1:]
    assert [row[2] for row in rows] == ["ape|bee", "", "ape"]
    assert [row[3] for row in rows] == said
    for row, each in zip(rows, shares, strict=True):
        names = [CLASSES.index(name) for name in row[3].split("|") if name]
        assert row[4] == "|".join(f"{each[name]:.6f}" for name in names)


def test_images_are_found_by_name_in_the_split_that_was_looked_at(tmp_path: Path) -> None:
    """Three of four belong to the split, one of these was skipped and one cannot be read any more."""
    paths = [tmp_path / f"{place}.png" for place in range(4)]
    for place, path in enumerate(paths):
        Image.new("RGB", (8, 8), (60 * place, 0, 0)).save(path)
    samples = tuple(Sample(path.name, ("ape",), "train" if path is paths[0] else "test") for path in paths)
    dataset = Dataset("here", samples, paths, CLASSES)
    names = ["3.png", "2.png", "1.png"]
    found = evaluation_of(np.eye(2)[[0, 0, 0]], np.zeros(3, int), names, CLASSES, split="test", resamples=0)
    paths[1].write_bytes(b"no image")
    image = images_of(found, Preprocess(size=8, crop=1.0), dataset)
    assert [image(row).getpixel((4, 4)) for row in (0, 1)] == [(180, 0, 0), (120, 0, 0)]
    with pytest.raises(ImageError, match="1.png"):
        image(2)


def test_images_of_a_report_are_whole_and_reduced(tmp_path: Path) -> None:
    """A wide photograph of which the network sees the middle, 8x8 pixels of it."""
    Image.new("RGB", (960, 480), (9, 8, 7)).save(tmp_path / "a.png")
    dataset = Dataset("here", (Sample("a.png", ("ape",), "test"),), [tmp_path / "a.png"], CLASSES)
    found = evaluation_of(np.eye(2)[[0]], np.zeros(1, int), ["a.png"], CLASSES, split="test", resamples=0)
    assert images_of(found, Preprocess(size=8, crop=1.0), dataset)(0).size == (320, 160)


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    written = write_files(tmp_path / "new", {"a.json": json.dumps({"n": 1}), "b.txt": "caf\udce9"})
    assert [each.read_bytes() for each in written] == [b'{"n": 1}', b"caf\xe9"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"):
        write_files(tmp_path / "file", {"a.json": "{}"})
