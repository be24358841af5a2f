"""Folds: images dealt into equal parts in which every class has its share."""

from __future__ import annotations

import numpy as np

from vitrail.data.counter_rng import uniform
from vitrail.types import Array


def stratified(targets: Array, folds: int, seed: int = 0) -> Array:
    """The fold of every image (n,), by class numbers (n,) or 0 and 1 (n, K).

    A class of fewer images than folds has at most one in each, so no two of them are ever held out together. Of
    several labels the rarest decides.
    """
    count = len(targets)
    groups = targets if targets.ndim == 1 else _rarest(targets)
    chance = uniform(seed, "folds", 0, np.arange(count), 1)[:, 0]
    folded = np.empty(count, np.int64)
    folded[np.lexsort((chance, groups))] = np.arange(count) % folds  # dealt like cards, class after class
    return folded


def _rarest(marks: Array) -> Array:
    """The rarest label of every image, K where it has none."""
    counts = marks.sum(axis=0)
    rarity = np.where(marks > 0, counts, np.inf)
    return np.asarray(np.where(marks.any(axis=1), rarity.argmin(axis=1), marks.shape[1]))
