"""Scores from probabilities and targets, in float64: each is what scikit-learn's function gives with its defaults.

Targets are class numbers (n,), or 0 and 1 (n, K) for several labels; that shape says which task it is. What would be
0 / 0 is 0. A macro score is the mean over the classes that occur among targets or answers; for several labels over
all. Of equal scores the first class wins, so no number depends on how images were batched.

Resampling asks for the same scores with a weight for each image: `weights` (n,) says how often each one counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vitrail.types import Array


class Pairs(NamedTuple):
    """The ones of a table (n, K) of 0 and 1: image and class of each."""

    rows: Array
    labels: Array

    def tally(self, classes: int, weights: Array | None = None) -> Array:
        """How often each class stands here: float64 (K,)."""
        each = None if weights is None else weights[self.rows]
        return np.bincount(self.labels, each, minlength=classes).astype(np.float64)


class Agreement(NamedTuple):
    """Where the truth says a class, where the answers do, and where both do."""

    true: Pairs
    predicted: Pairs
    both: Pairs


class Rates(NamedTuple):
    """Precision, recall and F1 of every class: (K,) each; and how often each is true and predicted."""

    precision: Array
    recall: Array
    f1: Array
    true: Array
    predicted: Array


class Ranking(NamedTuple):
    """The images by their score for one class, in steps: one for each different score of the class's own images."""

    steps: Array  # (n,) of every image: the first step it reaches, counted from the highest; G: none
    own: Array  # (P,) rows of the class's own
    count: int  # type: ignore[assignment]  # of steps, G


def answers(probabilities: Array, task: str = "single-label", thresholds: Array | None = None) -> Array:
    """The likeliest class (n,); for several labels 1 from the threshold on (n, K), which is 0.5 by default."""
    if task == "single-label":
        return np.asarray(probabilities.argmax(axis=1))
    return np.asarray(probabilities >= (0.5 if thresholds is None else np.asarray(thresholds))).astype(np.uint8)


def right_answers(targets: Array, predicted: Array) -> Array:
    """Which images are answered right (n,): the class, or for several labels every one of them."""
    same = predicted == targets
    return np.asarray(same if targets.ndim == 1 else same.all(axis=1))


def places(scores: Array, targets: Array) -> Array:
    """How many classes stand before the true one: (n,); 0 is right. Scores that are no numbers are all before it."""
    own = np.take_along_axis(scores, targets[:, None], axis=1)  # (n, 1)
    before = np.arange(scores.shape[1]) < targets[:, None]
    found = ((scores > own) | ((scores == own) & before)).sum(axis=1)
    return np.asarray(np.where(np.isnan(own[:, 0]), scores.shape[1], found))


def top_k(scores: Array, targets: Array, k: int = 1) -> float:
    """The share of images whose class is among the k likeliest."""
    return float((places(scores, targets) < k).mean())


def confusion(targets: Array, predicted: Array, classes: int) -> Array:
    """Counts (K, K): rows are the truth, columns what was predicted."""
    return np.bincount(targets * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def agreement(targets: Array, predicted: Array) -> Agreement:
    """Truth and answers side by side; class numbers (n,) or tables (n, K)."""
    if targets.ndim == 1:
        every, right = np.arange(len(targets)), np.flatnonzero(targets == predicted)
        return Agreement(Pairs(every, targets), Pairs(every, predicted), Pairs(right, targets[right]))
    return Agreement(*(Pairs(*np.nonzero(each)) for each in (targets, predicted, targets * predicted)))


def rates(found: Agreement, classes: int, weights: Array | None = None) -> Rates:
    """Precision, recall and F1 of every class."""
    true, predicted, both = (each.tally(classes, weights) for each in found)
    return Rates(ratio(both, predicted), ratio(both, true), ratio(2 * both, true + predicted), true, predicted)


def macro(values: Array, found: Rates, task: str = "single-label") -> float:
    """The mean over classes: all for several labels, else those that are true or predicted of some image."""
    return float(values.mean() if task == "multi-label" else values[found.true + found.predicted > 0].mean())


def micro_f1(found: Rates) -> float:
    """F1 over all decisions at once."""
    both = (found.recall * found.true).sum()
    return float(ratio(2 * both, found.true.sum() + found.predicted.sum()))


def rank(scores: Array, marks: Array) -> Ranking:
    """Images by their score (n,) for a class, and which of them show it, by marks (n,)."""
    own = np.flatnonzero(marks)
    falling = np.unique(-scores[own])
    return Ranking(np.searchsorted(falling, -scores), own, len(falling))


def precision_of(ranking: Ranking, weights: Array | None = None) -> float:
    """Average precision: the mean, over the class's own images, of the precision down to each one's score."""
    steps, own, count = ranking
    if not count:
        return 0.0
    heavy = None if weights is None else weights[own]
    gained = np.bincount(steps[own], heavy, minlength=count)  # (G,)
    passed = np.cumsum(np.bincount(steps, weights, minlength=count)[:count])
    return float(ratio((gained * ratio(np.cumsum(gained), passed)).sum(), gained.sum()))


def average_precision(scores: Array, targets: Array) -> Array:
    """Average precision of every class against the others: (K,); 0 for a class that no image shows."""
    if targets.ndim == 1:
        marks = ((targets == number) for number in range(scores.shape[1]))
    else:
        marks = (column for column in targets.T)
    columns = np.ascontiguousarray(scores.T)  # (K, n)
    return np.array([precision_of(rank(*each)) for each in zip(columns, marks, strict=True)])


def mean_average_precision(scores: Array, targets: Array) -> float:
    """The mean of average precision over all classes."""
    return float(average_precision(scores, targets).mean())


def losses(logits: Array, targets: Array, temperature: float | None = None) -> Array:
    """Cross entropy of every image (n,); for several labels the mean over them. Exact: nothing is clipped."""
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    if targets.ndim == 2:
        return np.asarray((np.logaddexp(0.0, scaled) - targets * scaled).mean(axis=1))
    highest = scaled.max(axis=1)
    total = np.log(np.exp(scaled - highest[:, None]).sum(axis=1)) + highest
    return np.asarray(total - np.take_along_axis(scaled, targets[:, None], axis=1)[:, 0])


def ratio(part: Array, total: Array) -> Array:
    """part / total, and 0 where both are 0."""
    return np.asarray(part / np.where(total == 0, 1.0, total))
