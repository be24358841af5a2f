"""Probabilities and targets -> the calibration error with its 95 % interval, whose lower end allows for its bias.

Binned calibration error cannot be negative, so chance alone makes it positive: even a network that states its
confidence rightly shows a gap in every bin. A plain bootstrap adds the same chance once more, and puts the estimate
at the lower end of its own interval. Here outcomes are drawn from stated confidences instead (Bröcker and Smith 2007):
the lower end is the smallest true error from which chance makes the measured one, or a larger one, in 2.5 % of cases;
0 where perfect calibration does. The upper end lies above the estimate by what chance adds in 97.5 % of cases.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from vitrail.evaluation.calibration import bin_of, decisions, ece
from vitrail.evaluation.intervals import LEVELS, RESAMPLES
from vitrail.evaluation.results import Score
from vitrail.types import Array

STEPS: Final = 12  # halvings between perfect calibration and the measured gaps


class _Bins(NamedTuple):
    """What is known of each bin that holds answers."""

    counts: Array  # of decisions
    confidence: Array  # their mean
    accuracy: Array
    spread: Array  # how much more the gap varies than that of independent decisions: those of one image go together


def calibration_error(probabilities: Array, targets: Array, resamples: int = RESAMPLES, seed: int = 0) -> Score:
    """`ece` with an interval for the error that endless images would show; without resamples its ends are NaN."""
    value, _ = ece(probabilities, targets)
    if not resamples:
        return Score(value, math.nan, math.nan)
    bins = _bins(probabilities, targets)

    def drawn(share: float) -> Array:
        """Errors measured where the true gaps are this share of the measured ones; the same dice for every share."""
        return _errors(bins, share, resamples, np.random.default_rng(seed))

    again = drawn(1.0)
    high = value + max(float(np.quantile(again, LEVELS[1]) - np.median(again)), 0.0)
    low, share = 0.0, 1.0
    if np.quantile(drawn(0.0), LEVELS[1]) < value:
        for _ in range(STEPS):
            middle = (low + share) / 2
            low, share = (middle, share) if np.quantile(drawn(middle), LEVELS[1]) < value else (low, middle)
    return Score(value, low * value, min(high, 1.0))


def _errors(bins: _Bins, share: float, resamples: int, dice: np.random.Generator) -> Array:
    """Calibration errors (resamples,) of images whose outcomes are drawn anew, bin by bin."""
    total = int(bins.counts.sum())
    counts = dice.multinomial(total, bins.counts / total, resamples)
    gap = share * (bins.confidence - bins.accuracy)
    truth = np.clip(bins.confidence - gap, 0.0, 1.0)
    truth = (bins.counts * truth + 0.5) / (
        bins.counts + 1
    )  # no error among a few answers is no proof that there is none
    chance = counts * truth - dice.binomial(counts, truth)
    errors: Array = np.abs(counts * gap + np.sqrt(bins.spread) * chance).sum(axis=1) / total
    return errors


def _bins(probabilities: Array, targets: Array) -> _Bins:
    confidence, right = decisions(probabilities, targets)
    images = len(targets)
    number = bin_of(confidence)
    count = np.bincount(number)
    kept = np.flatnonzero(count)
    sure, hit = (np.bincount(number, each)[kept] / count[kept] for each in (confidence, right))
    place = np.full(len(count), -1)
    place[kept] = np.arange(len(kept))
    rest = right - hit[place[number]]  # what of each outcome its bin does not explain
    image = np.repeat(np.arange(images), len(confidence) // images)
    together = np.bincount(image * len(kept) + place[number], rest, minlength=images * len(kept)).reshape(images, -1)
    alone = np.bincount(place[number], rest**2, minlength=len(kept))
    spread = np.divide((together**2).sum(axis=0), alone, out=np.ones(len(kept)), where=alone > 0)
    return _Bins(count[kept], sure, hit, np.maximum(spread, 1.0))
