"""Evaluations and comparisons as files; and the data of a run, with the splits that the run was trained on."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from vitrail.data.manifest import Manifest
from vitrail.data.reading import read_data
from vitrail.data.samples import Dataset
from vitrail.data.scan import fingerprint
from vitrail.errors import ImageError, InputError, MissingExtraError
from vitrail.evaluation.comparison import Comparison
from vitrail.evaluation.evaluate import chosen
from vitrail.evaluation.figures import write_figures
from vitrail.evaluation.report import Report, build, comparison_page
from vitrail.evaluation.results import Evaluation
from vitrail.images import Preprocess
from vitrail.inference import Runtime
from vitrail.opened import reason


def data_for(checkpoint: str, data: str, classes: Sequence[str]) -> Dataset:
    """The pictures to judge a checkpoint by: those named, or those of the run it comes from.

    A checkpoint of a run knows which pictures it was trained on: they are marked as such, by name in the run's own
    data and by their content anywhere else, so that they are not mistaken for new ones.
    """
    folder = run_of(checkpoint)
    if folder is None:
        if not data:
            raise InputError(f"{checkpoint} is not of a run, so it does not know its data: name the pictures")
        return read_data(data, classes=classes)
    options = json.loads((folder / "config.json").read_text("utf-8"))["options"]
    own = not data or _place(data) == _place(str(options["data"]))
    source, pattern = (data or str(options["data"])), (options["pattern"] if own else None)
    dataset = read_data(source, pattern=pattern, classes=classes)
    known = Manifest.from_json((folder / "data.json").read_text("utf-8")).entries
    if own:
        splits = {each.name: each.split for each in known}
        marks = [splits.get(each.name, each.split) for each in dataset.samples]
    else:
        splits = {each.digest: "train" for each in known if each.split in ("train", "val")}
        marks = [
            splits.get(_digest(image), each.split) for image, each in zip(dataset.images, dataset.samples, strict=True)
        ]
    return _marked(dataset, marks)


def data_for_both(first: str, second: str, data: str, classes: Sequence[str]) -> Dataset:
    """The pictures to compare two checkpoints by: what either was trained on or chosen by is marked as such."""
    ranks = {"train": 2, "val": 1}
    one, other = (data_for(each, data, classes) for each in (first, second))
    marks = [
        max(a.split, b.split, key=lambda split: ranks.get(split, 0))
        for a, b in zip(one.samples, other.samples, strict=True)
    ]
    return _marked(one, marks)


def _marked(dataset: Dataset, splits: Sequence[str]) -> Dataset:
    pairs = zip(dataset.samples, splits, strict=True)
    return replace(dataset, samples=tuple(each._replace(split=split) for each, split in pairs))


def _place(source: str) -> str:
    return source if source.startswith("vitrail:") else os.path.realpath(source)


def _digest(image: Any) -> str:
    try:
        return fingerprint(image)[1]
    except OSError:  # it will be found unreadable later
        return ""


def run_of(checkpoint: str) -> Path | None:
    """The run's folder that a checkpoint lies in, if it does."""
    path = Path(checkpoint)
    folder = path if path.is_dir() else path.parent
    return folder if (folder / "config.json").is_file() and (folder / "data.json").is_file() else None


def write_evaluation(
    evaluation: Evaluation, folder: Path, runtime: Runtime, dataset: Dataset, command: str
) -> list[Path]:
    """report.html, predictions.csv, evaluation.json and figures."""
    picture = pictures_of(evaluation, runtime.preprocess, dataset)
    report = Report(title="Evaluation", command=command, evaluation=evaluation, pictures=picture)
    files = {
        "report.html": build(report),
        "predictions.csv": predictions_table(evaluation),
        "evaluation.json": json.dumps(evaluation.to_dict(), indent=1) + "\n",
    }
    written = _write(folder, files)
    with suppress(MissingExtraError):  # the report has charts of its own
        written += write_figures(folder / "figures", [], evaluation, [], picture)
    return written


def write_comparison(
    found: Comparison, folder: Path, runtime: Runtime, dataset: Dataset, names: tuple[str, str], command: str
) -> list[Path]:
    """comparison.html and comparison.json."""
    picture = pictures_of(found.a, runtime.preprocess, dataset)
    page = comparison_page(found, picture, names, command)
    return _write(folder, {"comparison.html": page, "comparison.json": json.dumps(found.to_dict(), indent=1) + "\n"})


def pictures_of(evaluation: Evaluation, preprocess: Preprocess, dataset: Dataset) -> Any:
    """A function from a row of an evaluation to its picture, as the network saw it; None if it cannot be read."""
    part = chosen(dataset, evaluation.split)[1] if evaluation.split != "unsplit" else dataset
    place = {each.name: row for row, each in enumerate(part.samples)}

    def picture(row: int) -> Image.Image | None:
        try:
            return preprocess.view(part.images[place[evaluation.names[row]]])
        except ImageError:
            return None

    return picture


def predictions_table(evaluation: Evaluation) -> str:
    """CSV, a row a picture: what it is, what the network says, and how sure it is."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["path", "split", "truth", "said", "probability"])
    classes = evaluation.classes
    for row, name in enumerate(evaluation.names):
        target, found = evaluation.targets[row], evaluation.probabilities[row]
        if evaluation.task == "one":
            truth, said = classes[int(target)], classes[int(found.argmax())]
            writer.writerow([name, evaluation.split, truth, said, f"{found.max():.6f}"])
        else:
            cuts = [each.threshold if each.threshold is not None else 0.5 for each in evaluation.per_class]
            marked = [place for place, cut in enumerate(cuts) if found[place] >= cut]
            truth = "|".join(classes[place] for place, mark in enumerate(target) if mark)
            said = "|".join(classes[place] for place in marked)
            writer.writerow([name, evaluation.split, truth, said, "|".join(f"{found[each]:.6f}" for each in marked)])
    return text.getvalue()


def _write(folder: Path, files: dict[str, str]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {reason(error)}") from error
    return [folder / name for name in files]
