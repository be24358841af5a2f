"""Logits and targets in, Evaluation out: every score with its interval, and what stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from vitrail.checks import check_int, join_limited, short_repr
from vitrail.errors import InputError
from vitrail.evaluation import metrics
from vitrail.evaluation.calibration import ece
from vitrail.evaluation.calibration_interval import calibration_error
from vitrail.evaluation.intervals import RESAMPLES, bootstrap, wilson
from vitrail.evaluation.results import ClassScores, Confused, Evaluation, Misclassified, Score, Unlike
from vitrail.images.ood_detector import OodDetector
from vitrail.inference import probabilities as probabilities_of
from vitrail.types import Array

LISTED: Final = 50  # pairs most confused, and worst images


def evaluation_of(
    logits: Array,
    targets: Array,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    task: str = "single-label",
    temperature: float | None = None,
    thresholds: Sequence[float] | None = None,
    reject: float | None = None,
    source: str = "",
    split: str = "",
    *,
    skipped: Sequence[tuple[str, str]] = (),
    caveat: str = "",
    resamples: int = RESAMPLES,
) -> Evaluation:
    """How good logits (n, K) are, given the truth: class numbers (n,), or 0 and 1 (n, K) for several labels.

    Without resamples only shares of right answers have an interval; the ends of the others are NaN.
    """
    logits, targets = _checked(logits, targets, task)
    count, width = logits.shape
    names = _named("names", names, count)
    classes = _named("classes", classes, width)
    strange = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if len(strange):
        first = names[strange[0]]
        raise InputError(f"the logits of {first} are no numbers ({len(strange)} such images): the network is broken")
    check_int("resamples", resamples, least=0, error=InputError)
    cuts = None if task == "single-label" else _cuts(thresholds, width)
    probabilities = probabilities_of(logits, task, temperature)
    predicted = metrics.answers(probabilities, task, cuts)
    right = metrics.right_answers(targets, predicted)
    losses = metrics.losses(logits, targets, temperature)
    if task == "single-label":
        scores = _scores_of_one(probabilities, targets, predicted, losses, resamples)
        table = metrics.confusion(targets, predicted, width)
    else:
        scores = _scores_of_several(probabilities, targets, predicted, losses, resamples)
        table = None
    answered = probabilities.max(axis=1) >= (0.0 if reject is None else reject)
    return Evaluation(
        source=source,
        split=split,
        task=task,
        classes=classes,
        names=names,
        targets=targets,
        logits=logits,
        probabilities=probabilities,
        scores=scores,
        per_class=_per_class(classes, probabilities, targets, predicted, cuts),
        confusion=table,
        bins=ece(probabilities, targets)[1],
        most_confused=() if table is None else _most_confused(table, classes),
        worst=_worst(names, classes, probabilities, targets, predicted, right, losses),
        temperature=temperature,
        reject=reject,
        answered=float(answered.mean()),
        answered_top1=float(right[answered].mean()) if task == "single-label" and answered.any() else None,
        skipped=tuple(skipped),
        caveat=caveat,
    )


def unlike_of(ood: OodDetector, embeddings: Array) -> Unlike:
    """How many images are taken for unlike the training ones, by their embeddings (n, D)."""
    images = ood.is_unlike(ood.familiarity(embeddings))
    return Unlike(wilson(int(images.sum()), len(images)), ood.false_alarms, images)


def correct_answers(evaluation: Evaluation) -> Array:
    """Which images were answered right (n,): the class, or for several labels every one of them."""
    return metrics.right_answers(evaluation.targets, predictions_of(evaluation))


def predictions_of(evaluation: Evaluation) -> Array:
    """What was predicted for every image: class numbers (n,), or 0 and 1 (n, K)."""
    cuts = np.array([each.threshold for each in evaluation.per_class]) if evaluation.task == "multi-label" else None
    return metrics.answers(evaluation.probabilities, evaluation.task, cuts)


def label_names(predicted: Array, classes: Sequence[str]) -> tuple[str, ...]:
    """The names of one image's classes, from a number or a row of 0 and 1."""
    numbers = [int(predicted)] if predicted.ndim == 0 else np.flatnonzero(predicted).tolist()
    return tuple(classes[number] for number in numbers)


def _scores_of_one(
    probabilities: Array, targets: Array, predicted: Array, losses: Array, resamples: int
) -> dict[str, Score]:
    count, classes = probabilities.shape
    places = metrics.places(probabilities, targets)
    scores = {"top1": wilson(int((places < 1).sum()), count)}
    if classes > 5:
        scores["top5"] = wilson(int((places < 5).sum()), count)
    agreement = metrics.agreement(targets, predicted)

    def statistic(weights: Array) -> Array:
        rates = metrics.rates(agreement, classes, weights)
        means = [metrics.macro(each, rates) for each in (rates.precision, rates.recall, rates.f1)]
        return np.array([*means, weights @ losses / count])

    *shares, loss = bootstrap(statistic, count, resamples)
    if scores["top1"].value == 1:  # images without an error show no spread: the doubt of the accuracy is that of all
        shares = [each._replace(low=min(each.low, scores["top1"].low)) for each in shares]
    scores |= dict(zip(("macro_precision", "macro_recall", "macro_f1"), shares, strict=True))
    return scores | {"loss": loss} | {"ece": calibration_error(probabilities, targets, resamples)}


def _scores_of_several(
    probabilities: Array, targets: Array, predicted: Array, losses: Array, resamples: int
) -> dict[str, Score]:
    count, classes = probabilities.shape
    agreement = metrics.agreement(targets, predicted)
    rankings = [metrics.rank(probabilities[:, number], targets[:, number]) for number in range(classes)]

    def statistic(weights: Array) -> Array:
        rates = metrics.rates(agreement, classes, weights)
        mean_ap = np.mean([metrics.precision_of(each, weights) for each in rankings])
        f1 = metrics.macro(rates.f1, rates, "multi-label"), metrics.micro_f1(rates)
        return np.array([mean_ap, *f1, weights @ losses / count])

    mean_ap, macro_f1, micro_f1, loss = bootstrap(statistic, count, resamples)
    exact = wilson(int(metrics.right_answers(targets, predicted).sum()), count)
    means = {"mean_ap": mean_ap, "macro_f1": macro_f1, "micro_f1": micro_f1}
    return means | {"exact": exact, "loss": loss, "ece": calibration_error(probabilities, targets, resamples)}


def _per_class(
    classes: Sequence[str], probabilities: Array, targets: Array, predicted: Array, cuts: Array | None
) -> tuple[ClassScores, ...]:
    rates = metrics.rates(metrics.agreement(targets, predicted), len(classes))
    precisions = metrics.average_precision(probabilities, targets)
    columns = (rates.true.astype(int), rates.precision, rates.recall, rates.f1, precisions)
    thresholds = [None] * len(classes) if cuts is None else cuts.tolist()
    rows = zip(classes, *(column.tolist() for column in columns), thresholds, strict=True)
    return tuple(ClassScores(*row) for row in rows)


def _most_confused(table: Array, classes: Sequence[str]) -> tuple[Confused, ...]:
    """Pairs of classes, by how many images; then by the share of the truth's images."""
    truths, predictions = np.nonzero(table * (1 - np.eye(len(table), dtype=table.dtype)))
    counts = table[truths, predictions]
    shares = counts / table.sum(axis=1)[truths]
    first = np.lexsort((-shares, -counts))[:LISTED]
    return tuple(
        Confused(classes[truths[pair]], classes[predictions[pair]], int(counts[pair]), float(shares[pair]))
        for pair in first
    )


def _worst(
    names: Sequence[str],
    classes: Sequence[str],
    probabilities: Array,
    targets: Array,
    predicted: Array,
    right: Array,
    losses: Array,
) -> tuple[Misclassified, ...]:
    wrong = np.flatnonzero(~right)
    first = wrong[np.argsort(-losses[wrong], kind="stable")][:LISTED].tolist()
    return tuple(
        Misclassified(
            row,
            names[row],
            label_names(targets[row], classes),
            label_names(predicted[row], classes),
            surest(probabilities[row], predicted[row]),
            float(losses[row]),
        )
        for row in first
    )


def surest(probabilities: Array, predicted: Array) -> float:
    """The probability of the class predicted for one image; of several the highest, NaN where there is none."""
    named = probabilities[predicted] if predicted.ndim == 0 else probabilities[predicted > 0].max(initial=-1.0)
    return float(named) if named >= 0 else float("nan")


def _checked(logits: Any, targets: Any, task: str) -> tuple[Array, Array]:
    """Logits as float64 (n, K), targets as whole numbers (n,) or (n, K)."""
    logits, targets = np.asarray(logits, np.float64), np.asarray(targets)
    if task not in ("single-label", "multi-label"):
        raise InputError(f"task: expected 'single-label' or 'multi-label', got {short_repr(task)}")
    if logits.ndim != 2 or not logits.size:
        raise InputError(f"expected logits of some images and classes (n, K), got shape {logits.shape}")
    expected = logits.shape[:1] if task == "single-label" else logits.shape
    if targets.shape != expected:
        raise InputError(f"expected targets of shape {expected} beside logits {logits.shape}, got {targets.shape}")
    most = logits.shape[1] - 1 if task == "single-label" else 1
    strange = targets[~np.isin(targets, np.arange(most + 1))]
    if strange.size:
        raise InputError(f"targets: expected whole numbers from 0 to {most}, got {short_repr(strange.flat[0].item())}")
    return logits, targets.astype(np.int64 if task == "single-label" else np.uint8)


def _named(what: str, names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """One name each; numbers where there are none."""
    kept = tuple(str(number) for number in range(count)) if names is None else tuple(names)
    if len(kept) != count:
        raise InputError(f"{what}: expected {count}, got {len(kept)}: {join_limited(kept, ', ', 3)}")
    return kept


def _cuts(thresholds: Sequence[float] | None, classes: int) -> Array:
    cuts = np.full(classes, 0.5) if thresholds is None else np.asarray(thresholds, np.float64)
    if cuts.shape != (classes,):
        raise InputError(f"thresholds: expected {classes}, one a label, got {cuts.size}")
    return cuts
