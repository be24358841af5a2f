"""The charts and images of a report as PNG files, for slides and papers; needs the extra `figures`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from vitrail.evaluation.results import Evaluation
from vitrail.evaluation.scoring import label_names
from vitrail.evaluation.sections import Images, class_bars, named, readable
from vitrail.evaluation.training_sections import Row, learning_charts
from vitrail.reporting.charts import Bar, bars, reliability
from vitrail.reporting.image_sheets import captioned_sheet
from vitrail.reporting.matrix_charts import confusion
from vitrail.reporting.shapes import cut_text
from vitrail.reporting.svg import Chart, chart_row, check_png, image_chart, save_chart

WORST: Final = 12
SEEN: Final = 9


def write_figures(
    folder: Path,
    history: Sequence[Row] = (),
    evaluation: Evaluation | None = None,
    seen: Sequence[tuple[Image.Image, str]] = (),
    images: Images | None = None,
) -> list[Path]:
    """Everything there is something to draw of, each as a PNG file in the folder; the files written."""
    check_png()
    learning = learning_charts(history, "single-label" if evaluation is None else evaluation.task)
    charts = {"curves": chart_row([learning.loss, learning.scores]), "lr": learning.rate}
    sheets: dict[str, Image.Image | None] = {}
    if evaluation is not None and len(evaluation):
        charts |= evaluation_charts(evaluation)
        if images is not None:
            sheets["worst"] = worst_sheet(evaluation, images)
            charts["prediction"] = first_prediction(evaluation, images)
    sheets["batch"] = batch_sheet(seen)
    folder.mkdir(parents=True, exist_ok=True)
    files = [save_chart(chart, folder / f"{name}.png") for name, chart in charts.items() if chart]
    for name, image in sheets.items():
        if image is not None:
            files.append(folder / f"{name}.png")
            image.save(files[-1], optimize=True)
    return files


def evaluation_charts(evaluation: Evaluation) -> dict[str, Chart]:
    """Charts of an evaluation by the names of their files."""
    charts = {}
    if evaluation.confusion is not None:
        matrix, classes = evaluation.confusion, evaluation.classes
        charts["confusion"] = confusion(matrix, classes, title="Confusion, numbers of images")
        title = "Confusion, percent of each true class"
        charts["confusion-normalised"] = confusion(matrix, classes, normalised=True, title=title)
    charts["reliability"] = reliability(evaluation.bins, "Stated confidence and accuracy")
    charts["per-class"] = class_bars(evaluation)
    return charts


def worst_sheet(evaluation: Evaluation, images: Images) -> Image.Image | None:
    """The worst errors with what they are and what was predicted; nothing where no image can be shown."""
    missed = {each.row: each for each in evaluation.worst}
    tiles = []
    for row, image in islice(readable(images, missed), WORST):
        truth, predicted = cut_text(named(missed[row].truth), 20), cut_text(named(missed[row].predicted), 14)
        sure = "" if math.isnan(missed[row].probability) else f", {100 * missed[row].probability:.0f} %"
        tiles.append((image, f"{truth}\npredicted {predicted}{sure}"))
    return captioned_sheet(tiles, "Worst errors", columns=4) if tiles else None


def batch_sheet(seen: Sequence[tuple[Image.Image, str]]) -> Image.Image | None:
    """Nine images as the network sees them, with their labels."""
    tiles = [(image, cut_text(label, 24)) for image, label in seen[:SEEN]]
    return captioned_sheet(tiles, "What the network sees", columns=3) if tiles else None


def prediction_chart(
    image: Image.Image, labels: Sequence[str], probabilities: Sequence[float], truth: Sequence[str] = ()
) -> Chart:
    """One image and its likeliest classes as bars; the truth, if given, in green."""
    title = f"truth: {cut_text(named(truth), 24)}" if truth else "the image"
    shares = [
        Bar(label, share, colour="green" if label in truth else "blue")
        for label, share in zip(labels, probabilities, strict=True)
    ]
    return chart_row(
        [image_chart(image.convert("RGB"), title, 200), bars(shares, "probability", "Most probable classes")]
    )


def first_prediction(evaluation: Evaluation, images: Images) -> Chart:
    """The answer for the first image that can be shown: not a chosen one."""
    for row, image in readable(images, range(len(evaluation))):
        shares = evaluation.probabilities[row]
        best = np.argsort(-shares, kind="stable")[:5]
        truth = label_names(evaluation.targets[row], evaluation.classes)
        return prediction_chart(image, [evaluation.classes[each] for each in best], shares[best].tolist(), truth)
    return Chart()
