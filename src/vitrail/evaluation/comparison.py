"""compare: two runtimes on the same images -> Comparison, with a paired test of whether the difference is chance."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.classes import differing
from vitrail.errors import InputError
from vitrail.evaluation.evaluator import Data, evaluate, opened
from vitrail.evaluation.intervals import LEVELS, RESAMPLES
from vitrail.evaluation.results import Evaluation, Score, plainly
from vitrail.evaluation.scoring import correct_answers, evaluation_of, label_names, predictions_of, surest
from vitrail.evaluation.seen_images import data_for_both
from vitrail.inference import Runtime
from vitrail.inference.recognisers import as_runtime
from vitrail.reporting.html_page import counted
from vitrail.reporting.metric_names import METRICS, metric_name, metric_value
from vitrail.reporting.object_card import Card
from vitrail.types import Array, Device, ProgressCallback


class Differing(NamedTuple):
    """An image of which the two say different things."""

    row: int
    name: str
    truth: tuple[str, ...]
    predicted_a: tuple[str, ...]
    predicted_b: tuple[str, ...]
    probability_a: float  # given to what it predicted
    probability_b: float
    right_a: bool
    right_b: bool


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two networks on the same images. Right means the class, or for several labels every one of them."""

    a: Evaluation
    b: Evaluation
    both_right: int
    only_a: int
    only_b: int
    both_wrong: int
    p_value: float  # exact McNemar test: how likely so large a difference is if neither is better
    difference: Score  # share of right answers, a minus b, with the interval of a paired bootstrap
    differing: tuple[Differing, ...]

    @property
    def caveat(self) -> str:
        """What limits the comparison: one of the two was trained on these images, or chosen by them."""
        if self.a.caveat == self.b.caveat:
            return self.a.caveat
        return " ".join(f"{name}: {each.caveat}" for name, each in (("A", self.a), ("B", self.b)) if each.caveat)

    def card(self) -> Card:
        """What it says of itself in a REPL and a notebook."""
        value, low, high = (100 * each for each in self.difference)
        scores = [
            (metric_name(key), f"A {metric_value(key, score.value)}, B {metric_value(key, self.b.scores[key].value)}")
            for key, score in self.a.scores.items()
            if key in METRICS and not key.endswith(("precision", "recall"))
        ]
        rows = (
            (
                "A - B",
                f"{value:+.1f} percentage points (95 % interval {low:+.1f} to {high:+.1f}); p = {self.p_value:.3g}",
            ),
            ("right", f"both {self.both_right}, only A {self.only_a}, only B {self.only_b}, neither {self.both_wrong}"),
            ("caveat", self.caveat),
            *scores,
        )
        return Card(f"Comparison: {counted(len(self.a), 'image')} of {self.a.source} ({self.a.split})", rows)

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with both evaluations whole."""
        counts = {name: getattr(self, name) for name in ("both_right", "only_a", "only_b", "both_wrong")}
        rest = {
            "p_value": self.p_value,
            "difference": self.difference._asdict(),
            "differing": [each._asdict() for each in self.differing],
        }
        plain: dict[str, Any] = plainly({"n": len(self.a), "caveat": self.caveat or None, **counts, **rest})
        return plain | {"a": self.a.to_dict(), "b": self.b.to_dict()}


def compare(
    a: Runtime | str | os.PathLike[str],
    b: Runtime | str | os.PathLike[str],
    data: Data,
    *,
    split: str = "",
    batch: int = 64,
    threads: int = 2,
    done: ProgressCallback | None = None,
    progress: bool | None = None,
    device: Device | None = None,
) -> Comparison:
    """Two runtimes (checkpoints, exported files), with the same classes in any order, on images with known labels.

    An image that one of them cannot read counts for neither. `done` is told of each image twice. Of runs that are
    given by their paths it is known which images they were trained on: the others are taken.

    - a: a Checkpoint, an exported file or any runtime, or the path of one, or a run's folder.
    - b: the other.
    - data: a folder, table or Dataset.
    - split: "test", "val", "train" or "all"; "": test if there is one, else val.
    - batch: images in a batch.
    - threads: threads that read images.
    - done: a function that hears how many more images are done.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never.
    - device: where both compute, such as "auto", "cpu", "cuda:1" or "mps"; None: where each lies, of paths "auto".
    """
    one, other = (as_runtime(each, device) for each in (a, b))
    check_alike(one, other)
    if isinstance(a, str | os.PathLike) and isinstance(b, str | os.PathLike) and isinstance(data, str | os.PathLike):
        data = data_for_both(a, b, data, one.classes)
    dataset = opened(data, (one, other), split)
    evaluate_alike = partial(evaluate, data=dataset, split=split, batch=batch, threads=threads, done=done)
    return comparison_of(*(evaluate_alike(each, progress=progress) for each in (one, other)))


def check_alike(a: Runtime, b: Runtime) -> None:
    """Refuse two that do not answer the same question."""
    if a.task != b.task:
        raise InputError(f"expected two networks for the same task, got {a.task!r} and {b.task!r} labels an image")
    if set(a.classes) != set(b.classes):
        raise InputError(
            f"expected two networks with the same classes, got others in the second: {differing(a.classes, b.classes)}"
        )


def comparison_of(a: Evaluation, b: Evaluation) -> Comparison:
    """Two evaluations of the same images, compared image by image."""
    shared = set(a.names) & set(b.names)
    if not shared:
        raise InputError(f"{a.source} and {b.source} have no image in common: compare on the same data")
    a, b = _only(a, shared), _only(b, shared)
    if a.names != b.names:
        raise InputError(f"{a.source} and {b.source} list their images in another order: compare on the same data")
    first, second = correct_answers(a), correct_answers(b)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    return Comparison(
        a=a,
        b=b,
        both_right=int((first & second).sum()),
        only_a=only_a,
        only_b=only_b,
        both_wrong=int((~first & ~second).sum()),
        p_value=mcnemar(only_a, only_b),
        difference=difference(only_a, only_b, len(a)),
        differing=_differing(a, b, first, second),
    )


def mcnemar(only_a: int, only_b: int) -> float:
    """The exact two-sided p-value: heads and tails of a fair coin at least as uneven as this."""
    total, fewer = only_a + only_b, min(only_a, only_b)
    down = np.arange(fewer)
    steps = np.cumprod((fewer - down) / (total - fewer + down + 1.0))  # each term below, as a share of the highest
    highest = math.comb(total, fewer) / 2**total
    return float(min(1.0, 2 * highest * (1 + steps.sum())))


def difference(only_a: int, only_b: int, count: int, resamples: int = RESAMPLES, seed: int = 0) -> Score:
    """Share of right answers, a minus b: images are drawn in pairs, so only those that one alone got right matter."""
    shares = np.array([only_a, only_b, count - only_a - only_b]) / count
    drawn = np.random.default_rng(seed).multinomial(count, shares, resamples)
    low, high = np.quantile((drawn[:, 0] - drawn[:, 1]) / count, LEVELS)
    return Score((only_a - only_b) / count, float(low), float(high))


def _only(evaluation: Evaluation, names: set[str]) -> Evaluation:
    """The evaluation of these images alone."""
    rows = [row for row, name in enumerate(evaluation.names) if name in names]
    if len(rows) == len(evaluation):
        return evaluation
    thresholds = [each.threshold for each in evaluation.per_class if each.threshold is not None]
    return evaluation_of(
        evaluation.logits[rows],
        evaluation.targets[rows],
        [evaluation.names[row] for row in rows],
        evaluation.classes,
        evaluation.task,
        evaluation.temperature,
        thresholds or None,
        evaluation.reject,
        evaluation.source,
        evaluation.split,
        skipped=evaluation.skipped,
        caveat=evaluation.caveat,
    )


def _differing(a: Evaluation, b: Evaluation, right_a: Array, right_b: Array) -> tuple[Differing, ...]:
    """Images with different answers, in the order of the data."""
    predicted_a, predicted_b = predictions_of(a), predictions_of(b)
    in_order = [b.classes.index(name) for name in a.classes]  # b's number of each of a's classes
    same = (
        np.array(in_order)[predicted_a] == predicted_b
        if a.task == "single-label"
        else (predicted_b[:, in_order] == predicted_a).all(axis=1)
    )
    return tuple(
        Differing(
            row,
            a.names[row],
            label_names(a.targets[row], a.classes),
            label_names(predicted_a[row], a.classes),
            label_names(predicted_b[row], b.classes),
            surest(a.probabilities[row], predicted_a[row]),
            surest(b.probabilities[row], predicted_b[row]),
            bool(right_a[row]),
            bool(right_b[row]),
        )
        for row in np.flatnonzero(~same).tolist()
    )
