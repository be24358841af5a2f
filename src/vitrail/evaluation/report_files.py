"""Evaluations and comparisons as files."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from PIL import Image

from vitrail.data.samples import Dataset
from vitrail.errors import MissingExtraError
from vitrail.evaluation.comparison import Comparison
from vitrail.evaluation.evaluator import chosen
from vitrail.evaluation.figure_files import write_figures
from vitrail.evaluation.report import Report, build, comparison_page
from vitrail.evaluation.results import Evaluation
from vitrail.evaluation.sections import Images
from vitrail.images import Preprocess, Source
from vitrail.inference import Runtime
from vitrail.reporting.html_page import write_files

SIDE: Final = 320  # pixels of an image in a report


def write_evaluation(
    evaluation: Evaluation, folder: Path, runtime: Runtime, dataset: Dataset, command: str
) -> list[Path]:
    """report.html, predictions.csv, evaluation.json and figures."""
    image = images_of(evaluation, runtime.preprocess, dataset)
    report = Report(title="Evaluation", command=command, evaluation=evaluation, images=image)
    files = {
        "report.html": build(report),
        "predictions.csv": predictions_table(evaluation),
        "evaluation.json": json.dumps(evaluation.to_dict(), indent=1) + "\n",
    }
    written = write_files(folder, files)
    with suppress(MissingExtraError):  # the report has charts of its own
        written += write_figures(folder / "figures", [], evaluation, [], image)
    return written


def write_comparison(
    comparison: Comparison, folder: Path, runtime: Runtime, dataset: Dataset, names: tuple[str, str], command: str
) -> list[Path]:
    """comparison.html and comparison.json."""
    image = images_of(comparison.a, runtime.preprocess, dataset)
    page = comparison_page(comparison, image, shorter(*names), command)
    plain = json.dumps(comparison.to_dict(), indent=1) + "\n"
    return write_files(folder, {"comparison.html": page, "comparison.json": plain})


def shorter(first: str, second: str) -> tuple[str, str]:
    """Two paths by their last parts: as few as tell them apart."""
    parts = [Path(each).parts for each in (first, second)]
    for count in range(1, min(map(len, parts)) + 1):
        one, other = (str(Path(*each[-count:])) for each in parts)
        if one != other:
            return one, other
    return first, second


def images_of(evaluation: Evaluation, preprocess: Preprocess, dataset: Dataset) -> Images:
    """A function from a row of an evaluation to its image, whole but reduced, so that a person can judge it."""
    part = chosen(dataset, evaluation.split)[1] if evaluation.split != "unsplit" else dataset
    rows = {each.name: row for row, each in enumerate(part.samples)}

    def image_of(row: int) -> Image.Image:
        return reduced_image(part.images[rows[evaluation.names[row]]], preprocess)

    return image_of


def reduced_image(source: Source, preprocess: Preprocess) -> Image.Image:
    """An image for a page: whole, and no larger than a person needs to judge it."""
    image = preprocess.full_image(source).copy()
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return image


def predictions_table(evaluation: Evaluation) -> str:
    """CSV, a row an image: what it is, what the network says, how sure it is, and whether it is unlike the others."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["path", "split", "truth", "predicted", "probability", "confident", "unlike"])
    classes, minimum = evaluation.classes, 0.0 if evaluation.reject is None else evaluation.reject
    signs = None if evaluation.unlike is None else evaluation.unlike.images
    for row, name in enumerate(evaluation.names):
        target, shares = evaluation.targets[row], evaluation.probabilities[row]
        marks = ["yes" if shares.max() >= minimum else "no", "" if signs is None else "yes" if signs[row] else "no"]
        if evaluation.task == "single-label":
            truth, predicted = classes[int(target)], classes[int(shares.argmax())]
            writer.writerow([name, evaluation.split, truth, predicted, f"{shares.max():.6f}", *marks])
        else:
            cuts = [each.threshold if each.threshold is not None else 0.5 for each in evaluation.per_class]
            marked = [number for number, cut in enumerate(cuts) if shares[number] >= cut]
            truth = "|".join(classes[number] for number, mark in enumerate(target) if mark)
            predicted = "|".join(classes[number] for number in marked)
            written = "|".join(f"{shares[each]:.6f}" for each in marked)
            if not marked:
                marks[0] = "no"
            writer.writerow([name, evaluation.split, truth, predicted, written, *marks])
    return text.getvalue()
