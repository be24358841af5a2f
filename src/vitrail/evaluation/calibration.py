"""Probabilities that mean what they say: temperature, calibration error, thresholds, when to answer "none of these"."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from vitrail.errors import InputError
from vitrail.evaluation.results import Bin
from vitrail.types import Array

COLDEST: Final = 0.05
HOTTEST: Final = 20.0
FEW: Final = 50  # images, or right answers, with which no reject threshold can be fitted
MOST_ACCURATE: Final = 0.99
MIDDLE: Final = 0.5  # the threshold of a label for which none is better


def fit_temperature(logits: Array, targets: Array, task: str = "single-label") -> float:
    """The temperature from 0.05 to 20 that gives held-out images the lowest loss; to about ten digits.

    With 1 / T the loss is convex, so Newton's steps between two ends that close in cannot miss. Where every answer
    is right, no temperature is low enough; then one answer in n + 2 is taken for an error, as Platt did.
    """
    logits = check_finite("logits", logits).astype(np.float64)
    if task == "multi-label":
        wrong = ((logits > 0) != (targets > 0)).any()
    else:
        wrong = (logits.argmax(axis=1) != targets).any()
        logits -= logits.max(axis=1, keepdims=True)  # changes no probability
    if not logits.any():
        return 1.0  # all classes are equally likely, at any temperature
    doubt = 0.0 if wrong else 1 / (targets.size + 2)
    pull = _pull(logits, targets, task, doubt)
    low, high = 1 / HOTTEST, 1 / COLDEST
    if _slope(logits, low, pull, task)[0] >= 0:
        return HOTTEST
    if _slope(logits, high, pull, task)[0] <= 0:
        return COLDEST
    inverse = 1.0
    for _ in range(200):
        slope, bend = _slope(logits, inverse, pull, task)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / bend if bend > 0 else math.inf
        following = step if low < step < high else math.sqrt(low * high)
        if abs(following - inverse) <= 1e-12 * inverse:
            break
        inverse = following
    return 1 / inverse


def _pull(logits: Array, targets: Array, task: str, doubt: float) -> float:
    """The mean logit of the truth, a little of it given to what is not true."""
    if task == "multi-label":
        return float((logits * (targets * (1 - doubt) + doubt / 2)).mean())
    own = np.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    return float(((1 - doubt) * own + doubt * logits.mean(axis=1)).mean())


def _slope(logits: Array, inverse: float, pull: float, task: str) -> tuple[float, float]:
    """First and second derivative of the mean loss by the inverse temperature."""
    size = max(1, (1 << 16) // logits.shape[1])  # rows at a time that stay in the processor's cache
    found = [_sums(logits[start : start + size], inverse, task) for start in range(0, len(logits), size)]
    first, second = np.sum(found, axis=0) / (logits.size if task == "multi-label" else len(logits))
    return float(first) - pull, float(second)


def _sums(logits: Array, inverse: float, task: str) -> tuple[float, float]:
    """Sums, over images or decisions, of the mean logit under the probabilities, and of its variance."""
    scaled = logits * inverse
    if task == "multi-label":
        shares = 0.5 * (1 + np.tanh(scaled / 2))
        return float((shares * logits).sum()), float((shares * (1 - shares) * logits**2).sum())
    shares = np.exp(scaled)  # none overflows: the highest logit is 0
    shares /= shares.sum(axis=1, keepdims=True)
    mean = (shares * logits).sum(axis=1, keepdims=True)
    return float(mean.sum()), float((shares * (logits - mean) ** 2).sum())


def ece(probabilities: Array, targets: Array, bins: int = 15) -> tuple[float, tuple[Bin, ...]]:
    """Expected calibration error: how far confidence and accuracy lie apart, over bins of equal width.

    The confidence is that of the likeliest class. For several labels every one of n x K decisions counts: the
    probability of the label, and whether the image has it.
    """
    confidence, right = decisions(probabilities, targets)
    number = bin_of(confidence, bins)
    count = np.bincount(number, minlength=bins)
    total = np.maximum(count, 1)
    sure, hit = (np.bincount(number, each, minlength=bins) for each in (confidence, right))
    edges = np.linspace(0, 1, bins + 1).tolist()
    rows = zip(edges[:-1], edges[1:], count.tolist(), (sure / total).tolist(), (hit / total).tolist(), strict=True)
    found = tuple(Bin(*row) if row[2] else Bin(*row[:3], math.nan, math.nan) for row in rows)
    return float(np.abs(sure - hit).sum() / len(confidence)), found


def decisions(probabilities: Array, targets: Array) -> tuple[Array, Array]:
    """Confidence and outcome (0 or 1) of every decision, image after image."""
    if targets.ndim == 2:
        return probabilities.ravel(), targets.ravel().astype(np.float64)
    return probabilities.max(axis=1), (probabilities.argmax(axis=1) == targets).astype(np.float64)


def bin_of(confidence: Array, bins: int = 15) -> Array:
    """The number of the bin, each with its upper edge: (0, 1/15] is the first, and 0 belongs to it."""
    return np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], confidence, side="left")


def fit_reject(probabilities: Array, targets: Array, accuracy: float | None = None) -> float | None:
    """The confidence below which "none of these" is the better answer, from held-out images (n, K) and (n,).

    It is the smallest threshold with which the answered reach `accuracy`: by default halfway from the accuracy
    without a threshold to 1, at most 0.99. A network that reaches 0.99 anyway gets the threshold that 99 in 100 of
    its right answers pass. None where there are fewer than 50 images or right answers, or where more than half
    of the images would go unanswered.
    """
    if targets.ndim != 1:
        raise InputError("a reject threshold is for one label an image: several labels have thresholds of their own")
    if accuracy is not None and not 0 < accuracy <= 1:
        raise InputError(f"accuracy: expected more than 0 and at most 1, got {accuracy}")
    right = check_finite("probabilities", probabilities).argmax(axis=1) == targets
    if right.sum() < FEW:
        return None
    confidence = probabilities.max(axis=1)
    if accuracy is None and right.mean() >= MOST_ACCURATE:
        return below(np.sort(confidence), float(np.quantile(confidence[right], 1 - MOST_ACCURATE, method="lower")))
    target = min(MOST_ACCURATE, (right.mean() + 1) / 2) if accuracy is None else accuracy
    order = np.argsort(-confidence, kind="stable")
    falling = confidence[order]
    answered = np.arange(1, len(order) + 1)
    last = np.append(falling[1:] != falling[:-1], True)  # equal confidences are answered together
    enough = last & (np.cumsum(right[order]) >= target * answered - 1e-9) & (2 * answered >= len(order))
    if not enough.any():
        return None
    return below(falling[::-1], float(falling[np.flatnonzero(enough)[-1]]))


def fit_thresholds(probabilities: Array, targets: Array) -> tuple[float, ...]:
    """For each label the threshold with the highest F1 on held-out images, (n, K) and (n, K).

    Every threshold that makes a difference is tried. One half stays where it is as good as any, and for a label that
    no image has; else, of equal ones, the nearest to it is taken.
    """
    return tuple(
        _best_threshold(*columns)
        for columns in zip(check_finite("probabilities", probabilities).T, targets.T, strict=True)
    )


def _best_threshold(scores: Array, marks: Array) -> float:
    order = np.argsort(-scores, kind="stable")
    falling, own = scores[order], np.cumsum(marks[order] > 0)
    total = int(own[-1]) if len(own) else 0
    if not total:
        return MIDDLE
    last = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))  # equal scores pass together
    f1 = 2 * own[last] / (last + 1 + total)
    passing = int((scores >= MIDDLE).sum())
    if passing and 2 * own[passing - 1] / (passing + total) == f1.max():
        return MIDDLE
    rising = falling[::-1]
    best = [below(rising, float(falling[place])) for place in last[f1 == f1.max()]]
    return min(best, key=lambda each: abs(each - MIDDLE))


def check_finite(name: str, values: Array) -> Array:
    """The same values, if all are numbers: what is fitted to others would mean nothing."""
    if not np.isfinite(values).all():
        raise InputError(f"{name}: {int((~np.isfinite(values)).sum())} of {values.size} are no numbers")
    return values


def below(rising: Array, value: float) -> float:
    """A threshold that lets `value` pass and the next lower one not, in the middle between the two."""
    place = int(np.searchsorted(rising, value, side="left"))
    lower = float(rising[place - 1]) if place else 0.0
    middle = (lower + value) / 2
    return middle if lower < middle else value
