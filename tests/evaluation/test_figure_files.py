"""Figures: files that hold what they should, where it should stand."""

from __future__ import annotations

import io
import math
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import ImageError, MissingExtraError
from vitrail.evaluation.figure_files import (
    batch_sheet,
    evaluation_charts,
    prediction_chart,
    worst_sheet,
    write_figures,
)
from vitrail.evaluation.results import Evaluation
from vitrail.evaluation.scoring import evaluation_of
from vitrail.evaluation.training_sections import learning_charts
from vitrail.reporting.style import LIGHT
from vitrail.reporting.svg import Chart, chart_row, png_bytes

Array = np.ndarray[Any, Any]
CLASSES = ("ant", "bee", "cat")
COLOURS = [(250, 10 + 20 * place, 240 - 25 * place) for place in range(9)]


def made(matrix: list[list[int]], classes: tuple[str, ...] = CLASSES) -> Evaluation:
    """An evaluation with this confusion."""
    pairs = [(truth, said) for truth, row in enumerate(matrix) for said, count in enumerate(row) for _ in range(count)]
    targets = np.array([truth for truth, _ in pairs])
    logits = np.full((len(pairs), len(classes)), -1.0)
    logits[np.arange(len(pairs)), [said for _, said in pairs]] = 1.0
    return evaluation_of(logits, targets, None, classes, resamples=0)


HISTORY = [
    *({"event": "step", "step": step, "loss": 3 / step, "lr": 1e-3 * step} for step in range(1, 41)),
    *(
        {"event": "epoch", "epoch": n, "step": 10 * n, "loss": 2 / n, "val_loss": 2.2 / n, "val_score": 1 - 0.7 / n}
        for n in range(1, 5)
    ),
]


def tile(row: int) -> Image.Image:
    return Image.new("RGB", (16, 16), COLOURS[row % 9])


def opened(path: Path) -> Array:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def drawn(chart: Chart) -> Array:
    with Image.open(io.BytesIO(png_bytes(chart.svg()))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def faint(name: str, opacity: float) -> tuple[int, ...]:
    """A colour of charts over their paper."""
    ink, paper = (tuple(int(LIGHT[key][at : at + 2], 16) for at in (1, 3, 5)) for key in (name, "paper"))
    return tuple(round(opacity * one + (1 - opacity) * other) for one, other in zip(ink, paper, strict=True))


def where(page: Array, colour: str | tuple[int, ...], near: int = 0) -> Array:
    """Rows and columns of the pixels of a colour (n, 2)."""
    wanted = tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5)) if isinstance(colour, str) else colour
    return np.argwhere((np.abs(page - wanted) <= near).all(axis=-1))


@pytest.mark.row("EVA.3")
def test_every_figure_is_written_and_shows_something(tmp_path: Path) -> None:
    evaluation = made([[8, 2, 0], [1, 9, 0], [0, 3, 7]])
    seen = [(tile(place), CLASSES[place % 3]) for place in range(9)]
    files = write_figures(tmp_path / "new" / "figures", HISTORY, evaluation, seen, tile)
    assert [each.name for each in files] == [
        "curves.png",
        "lr.png",
        "confusion.png",
        "confusion-normalised.png",
        "reliability.png",
        "per-class.png",
        "prediction.png",
        "worst.png",
        "batch.png",
    ]
    for each in files:
        page = opened(each)
        assert min(page.shape[:2]) > 200
        assert page.std() > 8, each.name
    assert sorted(files[0].parent.iterdir()) == sorted(files)


@pytest.mark.row("EVA.3")
def test_curves_fall_and_rise_as_their_values_do() -> None:
    loss, scores, _ = learning_charts(HISTORY)
    page = drawn(chart_row([loss, scores]))[56:-90]  # between titles and legends
    half = page.shape[1] // 2
    for part, falls in ((where(page[:, :half], LIGHT["blue"]), True), (where(page[:, half:], LIGHT["ruby"]), False)):
        assert len(part) > 200
        left, right = part[part[:, 1].argmin()], part[part[:, 1].argmax()]
        assert (left[0] < right[0]) == falls


@pytest.mark.row("EVA.3")
def test_the_batch_is_a_grid_of_three_by_three_in_order() -> None:
    seen = [(tile(place), f"label {place}") for place in range(12)]
    page = np.asarray(batch_sheet(seen)).astype(int)
    centres = np.array([where(page, colour).mean(axis=0) for colour in COLOURS]).reshape(3, 3, 2)
    assert (np.diff(centres[..., 0], axis=0) > 50).all()
    assert (np.diff(centres[..., 1], axis=1) > 50).all()
    assert np.ptp(centres[..., 0], axis=1).max() < 2
    assert np.ptp(centres[..., 1], axis=0).max() < 2


@pytest.mark.row("EVA.3")
def test_a_prediction_shows_the_image_and_bars_as_long_as_the_probabilities() -> None:
    page = drawn(prediction_chart(tile(4), ["ant", "bee", "cat"], [0.6, 0.3, 0.1], ["bee"]))
    blue, green = where(page, faint("blue", 0.55), 2), where(page, faint("green", 0.55), 2)
    assert where(page, COLOURS[4])[:, 1].max() < 0.4 * page.shape[1] < blue[:, 1].min()
    top, bottom = blue[blue[:, 0] < green[:, 0].min()], blue[blue[:, 0] > green[:, 0].max()]
    lengths = [float(np.ptp(each[:, 1])) for each in (top, green, bottom)]
    assert lengths[0] / lengths[1] == pytest.approx(2, rel=0.03)
    assert lengths[1] / lengths[2] == pytest.approx(3, rel=0.06)


@pytest.mark.parametrize(("truth", "said"), [(0, 0), (0, 2), (2, 0), (1, 2)])
def test_the_strongest_cell_of_a_confusion_stands_at_truth_and_answer(truth: int, said: int) -> None:
    matrix = [[1] * 3 for _ in range(3)]
    matrix[truth][said] = 20
    page = drawn(evaluation_charts(made(matrix))["confusion"])
    strong = where(page, LIGHT["blue" if truth == said else "ruby"], 2)
    weak = np.concatenate([where(page, faint(name, 0.3), 3) for name in ("blue", "ruby")])  # 0.1 + 0.9 sqrt(1 / 20)
    field = np.concatenate([strong, weak])
    low, high = field.min(axis=0), field.max(axis=0)
    spot = (strong.mean(axis=0) - low) / (high - low) * 3
    assert np.floor(spot).tolist() == [truth, said]


def test_a_normalised_confusion_is_strong_where_a_class_is_lost() -> None:
    evaluation = made([[30, 10, 0], [0, 30, 10], [2, 0, 0]])
    page = drawn(evaluation_charts(evaluation)["confusion-normalised"])
    strong = where(page, LIGHT["ruby"], 2)
    right = where(page, faint("blue", 0.88), 3)  # three quarters of a class
    assert strong[:, 0].mean() > right[:, 0].max()  # the third row
    assert strong[:, 1].mean() < right[:, 1].mean()  # the first column


def test_bars_of_classes_start_with_the_weakest() -> None:
    page = drawn(evaluation_charts(made([[9, 1, 0], [5, 5, 0], [0, 0, 10]]))["per-class"])
    lengths = (np.abs(page - faint("blue", 0.55)).max(axis=-1) <= 2).sum(axis=1)
    common = Counter(lengths[lengths > 20].tolist()).most_common(3)
    bars = sorted((length for length, _ in common), key=lengths.tolist().index)  # from the top
    assert [each / max(bars) for each in bars] == pytest.approx([0.625, 0.75, 1.0], abs=0.02)


def test_the_worst_errors_are_those_of_the_evaluation() -> None:
    evaluation = made([[4, 0, 0], [3, 1, 0], [0, 0, 5]])
    page = np.asarray(worst_sheet(evaluation, tile)).astype(int)
    shown = {row for row in range(9) if len(where(page, COLOURS[row])) > 1000}
    assert shown == {each.row for each in evaluation.worst} == {4, 5, 6}


def test_the_learning_rate_rises_with_its_steps() -> None:
    line = where(drawn(learning_charts(HISTORY).rate), LIGHT["amber"])
    left, right = line[line[:, 1].argmin()], line[line[:, 1].argmax()]
    assert left[0] - right[0] > 200


def test_only_what_there_is_is_drawn(tmp_path: Path) -> None:
    assert write_figures(tmp_path) == []
    holes = [{"event": "epoch", "epoch": 1, "step": 1, "loss": math.nan}, {"event": "step", "step": 1, "lr": None}]
    assert write_figures(tmp_path, holes) == []

    def gone(row: int) -> Image.Image:
        raise ImageError(f"{row} cannot be read")

    files = write_figures(tmp_path, [], made([[2, 0], [1, 1]], ("a", "b")), images=gone)
    assert [each.stem for each in files] == ["confusion", "confusion-normalised", "reliability", "per-class"]


def test_several_labels_have_no_confusion(tmp_path: Path) -> None:
    targets = np.array([[1, 0], [1, 1], [0, 1], [0, 0]])
    evaluation = evaluation_of(2.0 * targets - 1 + [[0.5, -2]], targets, task="multi-label", resamples=0)
    files = write_figures(tmp_path, [], evaluation, images=tile)
    assert [each.stem for each in files] == ["reliability", "per-class", "prediction", "worst"]


def test_names_are_never_formulas_and_missing_signs_no_warnings(tmp_path: Path) -> None:
    names = (r"$\frac{$", "日本語", "\u202e\x00" + 60 * "long ")
    evaluation = made([[2, 1, 0], [0, 2, 1], [1, 0, 2]], names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = write_figures(tmp_path, [], evaluation, [(tile(0), names[0])], tile)
    assert len(files) == 7


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[figures\]'"):
        write_figures(tmp_path / "figures", HISTORY)
    assert not (tmp_path / "figures").exists()
