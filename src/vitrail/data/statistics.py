"""Statistics: views -> mean and std of each channel, for the Preprocess of a network trained from scratch."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from vitrail.data.cache import Views


class BandStatistics(NamedTuple):
    """One number a channel, on the scale 0 to 1, in the order the network sees them: as Preprocess takes them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def band_statistics(views: Views, batch: int = 64) -> BandStatistics:
    """Mean and std of every channel over all pixels of all images.

    Sums of 8-bit values are exact, so the order and the batches do not matter. A channel that never changes has no
    spread to divide by: its std is 1.
    """
    channels, height, width = views.shape
    total, squares = np.zeros(channels), np.zeros(channels)
    for start in range(0, len(views), batch):
        rows = range(start, min(start + batch, len(views)))
        values = views.get(rows).numpy().astype(np.float64)  # (B, C, H, W)
        total += values.sum((0, 2, 3))
        squares += np.square(values).sum((0, 2, 3))
    full = views.preprocess.range  # what counts as 1
    count = len(views) * height * width
    means = [Fraction(each) / count for each in total.tolist()]
    variances = [Fraction(each) / count - mean**2 for each, mean in zip(squares.tolist(), means, strict=True)]
    channel_values = [
        (float(mean) / full, math.sqrt(variance) / full if variance > 0 else 1.0)
        for mean, variance in zip(means, variances, strict=True)
    ]
    if views.preprocess.order == "BGR":
        channel_values.reverse()
    mean, std = zip(*channel_values, strict=True)
    return BandStatistics(mean, std)
