"""Thresholds for several labels: from which probability on each label is said."""

from __future__ import annotations

from typing import Final

import numpy as np

from vitrail.evaluation.calibration import below, check_finite
from vitrail.types import Array

MIDDLE: Final = 0.5


def fit_thresholds(probabilities: Array, targets: Array) -> tuple[float, ...]:
    """For each label the threshold with the highest F1 on held-out images, (n, K) and (n, K).

    Every threshold that makes a difference is tried. One half stays where it is as good as any, and for a label that
    no image has; else, of equal ones, the nearest to it is taken.
    """
    return tuple(
        _fit(*columns) for columns in zip(check_finite("probabilities", probabilities).T, targets.T, strict=True)
    )


def _fit(scores: Array, marks: Array) -> float:
    order = np.argsort(-scores, kind="stable")
    falling, own = scores[order], np.cumsum(marks[order] > 0)
    total = int(own[-1]) if len(own) else 0
    if not total:
        return MIDDLE
    last = np.flatnonzero(np.append(falling[1:] != falling[:-1], True))  # equal scores pass together
    f1 = 2 * own[last] / (last + 1 + total)
    said = int((scores >= MIDDLE).sum())
    if said and 2 * own[said - 1] / (said + total) == f1.max():
        return MIDDLE
    rising = falling[::-1]
    best = [below(rising, float(falling[place])) for place in last[f1 == f1.max()]]
    return min(best, key=lambda each: abs(each - MIDDLE))
