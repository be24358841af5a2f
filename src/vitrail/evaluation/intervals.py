"""95 % intervals: Wilson's for shares of right answers, the bootstrap for everything else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from vitrail.evaluation.results import Score
from vitrail.types import Array

WIDTH: Final = 1.959963984540054  # standard deviations either side of the mean that hold 95 %
LEVELS: Final = (0.025, 0.975)
RESAMPLES: Final = 1000


def wilson(right: int, count: int) -> Score:
    """A share of right answers with Wilson's interval, which holds for few images and near 0 and 1 too."""
    share, square = right / count, WIDTH**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = WIDTH / (1 + square / count) * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    low = 0.0 if right == 0 else centre - half  # exact at the ends, which rounding misses
    return Score(share, low, 1.0 if right == count else centre + half)


def bootstrap(
    statistic: Callable[[Array], Array], count: int, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Score, ...]:
    """Statistics of images drawn with replacement: percentile intervals, the same for the same seed.

    `statistic` receives how often each of `count` images was drawn, float64 (count,), and gives any numbers (S,).
    An interval is widened to hold its value, which a biased statistic (calibration error) may fall below. Without
    resamples the ends are NaN.
    """
    values = statistic(np.ones(count))
    if not resamples:
        return tuple(Score(float(value), math.nan, math.nan) for value in values)
    dice = np.random.default_rng(seed)
    drawn = [statistic(_drawn(dice, count)) for _ in range(resamples)]
    low, high = np.quantile(drawn, LEVELS, axis=0)
    return tuple(
        Score(float(value), float(min(least, value)), float(max(most, value)))
        for value, least, most in zip(values, low, high, strict=True)
    )


def _drawn(dice: np.random.Generator, count: int) -> Array:
    """How often each image comes in one draw of `count` with replacement: (count,)."""
    return np.bincount(dice.integers(0, count, count), minlength=count).astype(np.float64)
