"""Embeddings and labels -> images whose label is likely wrong, the surest first.

The idea is that of confident learning (Northcutt, Jiang and Chuang, 2021): probes that never saw an image say what
it is, and each class has a measure of its own, the probability that its images usually get. An image is suspect
if its own class gets next to nothing by that measure, and another class gets much.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from vitrail.errors import InputError
from vitrail.evaluation.probes import out_of_fold
from vitrail.types import Array

FOLDS: Final = 5
LITTLE: Final = 0.1  # of its usual probability: the class given is not believed
MUCH: Final = 0.5  # of its usual probability: the class suggested is


class Doubt(NamedTuple):
    """A label that is likely wrong, by row and class number."""

    row: int
    given: int
    suggested: int
    score: float  # 0 to 1: how much of its usual probability the class given lacks
    confidence: float  # probability of the class given


class Judgement(NamedTuple):
    """What the probes think of the labels."""

    doubts: list[Doubt]  # the surest first
    agreement: float  # share of the labels that the probes would have given: how far they can be trusted
    judged: int  # labels


def judge(features: Array, targets: Array, *, folds: int = FOLDS, seed: int = 0) -> Judgement:
    """Labels by class number (n,) against embeddings (n, D).

    Classes with fewer images than folds are not judged: no probe could learn them.
    """
    if targets.ndim != 1 or len(features) != len(targets):
        raise InputError(f"expected embeddings (n, D) and class numbers (n,), got {features.shape} and {targets.shape}")
    _, numbers, counts = np.unique(targets, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(counts[numbers] >= folds)
    left, numbers = np.unique(targets[rows], return_inverse=True)
    if len(left) < 2:
        return Judgement([], 1.0, 0)
    probabilities = out_of_fold(features[rows], numbers, folds, seed)
    doubts = [
        each._replace(row=int(rows[each.row]), given=int(left[each.given]), suggested=int(left[each.suggested]))
        for each in rank(probabilities, numbers)
    ]
    return Judgement(doubts, float((probabilities.argmax(axis=1) == numbers).mean()), len(rows))


def judge_several(features: Array, marks: Array, *, folds: int = FOLDS, seed: int = 0) -> list[Judgement]:
    """The same for several labels, marks (n, K) of 0 and 1: one judgement a class, given and suggested being 0 or 1.

    A class that fewer images than folds have, or lack, is not judged.
    """
    if marks.ndim != 2 or len(features) != len(marks):
        raise InputError(f"expected embeddings (n, D) and marks (n, K), got {features.shape} and {marks.shape}")
    have = marks.astype(np.int64)
    counts = have.sum(axis=0)
    known = np.flatnonzero(np.minimum(counts, len(have) - counts) >= folds)
    judgements = [Judgement([], 1.0, 0)] * have.shape[1]
    if len(known):
        for column, chance in zip(known, out_of_fold(features, have[:, known], folds, seed).T, strict=True):
            agreement = float(((chance >= 0.5) == have[:, column]).mean())
            doubts = rank(np.stack([1 - chance, chance], axis=1), have[:, column])
            judgements[column] = Judgement(doubts, agreement, len(have))
    return judgements


def rank(probabilities: Array, targets: Array) -> list[Doubt]:
    """Labels (n,) that out-of-fold probabilities (n, K) speak against, the surest first."""
    count, classes = probabilities.shape
    if targets.shape != (count,) or not np.isfinite(probabilities).all():
        raise InputError(f"expected finite probabilities (n, K) beside class numbers (n,), got {probabilities.shape}")
    rows = np.arange(count)
    own = probabilities[rows, targets]  # (n,)
    given = np.bincount(targets, minlength=classes)
    usual = np.bincount(targets, own, minlength=classes) / np.maximum(given, 1)
    usual[given == 0] = np.inf  # a class that nobody has is never believed
    relative = probabilities / np.maximum(usual, 1e-12)  # (n, K)
    best = probabilities.argmax(axis=1)
    wrong = (best != targets) & (relative[rows, targets] < LITTLE) & (relative[rows, best] >= MUCH)
    found = np.flatnonzero(wrong)
    scores = 1 - relative[rows, targets]
    ranked = found[np.lexsort((own[found], -scores[found]))]
    return [Doubt(int(r), int(targets[r]), int(best[r]), float(scores[r]), float(own[r])) for r in ranked]
