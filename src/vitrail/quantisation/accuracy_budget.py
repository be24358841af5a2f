"""Images split to calibrate, to choose and to report; and what a runtime loses against the eager network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vitrail.checks import join_limited
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import InputError
from vitrail.evaluation.comparison import comparison_of
from vitrail.evaluation.evaluator import Data, evaluate, fitted, opened
from vitrail.evaluation.results import Evaluation, Score
from vitrail.images import Source
from vitrail.inference import Runtime, predict
from vitrail.quantisation.range_calibration import FEWEST
from vitrail.reporting.html_page import counted
from vitrail.types import ProgressCallback

CALIBRATE = 256  # images that ranges are taken from, at most
CHOOSE = 2000  # images that a choice is judged by, at most


class CalibrationSplit(NamedTuple):
    """Three lots of images; where the data has no test images, those that chose also report."""

    calibration: Dataset
    choosing: Dataset
    reporting: Dataset
    words: str  # which images did what


class BudgetResult(NamedTuple):
    """A runtime on images: right answers, what it lost against the network it was made from, and agreement."""

    accuracy: Score
    drop: Score  # points lost, below zero where it gained
    agreement: float  # share of images with the same answer
    images: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "accuracy": self.accuracy._asdict(),
            "drop": self.drop._asdict(),
            "agreement": self.agreement,
            "images": self.images,
        }


@dataclass(frozen=True, eq=False)
class Judge:
    """Compares any runtime with the one that all of them are made from, image by image."""

    baseline: Evaluation
    images: Dataset
    batch: int = 32

    @classmethod
    def by(cls, runtime: Runtime, images: Dataset, batch: int = 32, done: ProgressCallback | None = None) -> Judge:
        """Answers of the runtime itself, to compare others with."""
        return cls(evaluate(runtime, images, split="all", batch=batch, resamples=0, done=done), images, batch)

    def __call__(self, runtime: Runtime, done: ProgressCallback | None = None) -> BudgetResult:
        return self.of(evaluate(runtime, self.images, split="all", batch=self.batch, resamples=0, done=done))

    def of(self, answers: Evaluation) -> BudgetResult:
        """The verdict on answers that are there already."""
        both = comparison_of(self.baseline, answers)
        drop = Score(*(100 * each for each in both.difference))
        count = len(both.a)
        name = "top1" if answers.task == "single-label" else "exact"
        return BudgetResult(both.b.scores[name], drop, 1 - len(both.differing) / count, count)


def points(lost: float) -> str:
    """A loss in words: 0.50 points lost, 1.25 points gained."""
    return f"{abs(lost):.2f} points {'gained' if round(lost, 2) < 0 else 'lost'}"


def split_for_calibration(data: Data, runtime: Runtime, seed: int = 0) -> CalibrationSplit:
    """Training images calibrate, validation images choose, test images report, as far as the data has them."""
    dataset = fitted(opened(data, (runtime,), "all"), runtime)
    if not len(dataset):
        raise InputError(f"{dataset.source} has no images to calibrate on")
    dice = np.random.default_rng(seed)
    splits = dataset.splits
    loose = [row for row, each in enumerate(dataset.samples) if not each.split]
    if "train" in splits and (len(splits) > 1 or loose):
        calibration = dataset.part("train")
        choose = "val" if "val" in splits else "test" if "test" in splits else "new"
        report = "test" if "test" in splits else choose
        lots = {"new": dataset.select(loose), **{each: dataset.part(each) for each in splits}}
        choosing, reporting = lots[choose], lots[report]
        words = f"calibrated on train, chosen by {choose} images, reported on {report}"
    elif "test" in splits and "val" in splits:  # test images only report
        choosing, reporting = dataset.part("val"), dataset.part("test")
        order = dice.permutation(len(choosing))
        calibration = choosing.select(np.sort(order[: _share(len(order))]))
        words = "calibrated on a part of val, chosen by val images, reported on test"
    else:
        order = dice.permutation(len(dataset))
        first = _share(len(order))
        calibration = dataset.select(np.sort(order[:first]))
        choosing = reporting = dataset.select(np.sort(order[first:]))
        seen = ", all of them seen in training" if splits == ("train",) else ""
        words = f"{first} images calibrated, the other {len(order) - first} chose and report{seen}"
    calibration = _some(calibration, CALIBRATE, dice)
    _check(calibration)
    same = choosing is reporting
    choosing = _some(choosing, CHOOSE, dice)
    return CalibrationSplit(calibration, choosing, choosing if same else _some(reporting, 5 * CHOOSE, dice), words)


def self_labelled(runtime: Runtime, images: Sequence[Source]) -> Dataset:
    """Images without labels, with the answers of the network itself for labels: accuracy is then agreement."""
    if runtime.task != "single-label":
        raise InputError("a network of several labels is not judged by its own answers: give images with labels")
    if not len(images):
        raise InputError("no images to calibrate on")
    found = predict(runtime, images, top=1)
    samples = tuple(Sample(each.path, each.labels[:1]) for each in found)
    return Dataset("the network's own answers", samples, list(images), runtime.classes)  # type: ignore[arg-type]


def _share(count: int) -> int:
    """How many of so many images calibrate: a quarter, or a few where they are few."""
    return max(min(CALIBRATE, count // 4), min(FEWEST, count // 2))


def _some(data: Dataset, most: int, dice: np.random.Generator) -> Dataset:
    if len(data) <= most:
        return data
    return data.select(np.sort(dice.permutation(len(data))[:most]))


def _check(calibration: Dataset) -> None:
    """Images that would give ranges of too little."""
    if len(calibration) < FEWEST:
        raise InputError(
            f"{calibration.source} has {counted(len(calibration), 'image')} to calibrate on, expected at least "
            f"{FEWEST}: ranges taken from so few would be too narrow"
        )
    shown = sorted({label for each in calibration.samples for label in each.labels})
    if len(shown) == 1 and len(calibration.classes) > 1:
        raise InputError(
            f"{calibration.source}: all images to calibrate on are of one class ({join_limited(shown)}), of "
            f"{len(calibration.classes)}: give images of the other classes too, or the ranges will not hold for them"
        )
