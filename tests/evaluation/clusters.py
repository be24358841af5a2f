"""Features to fit probes to."""

from __future__ import annotations

import numpy as np

from vitrail.types import Array


def clusters(count: int, width: int, classes: int, apart: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    """Features around a centre a class, of uneven scales and leaning on each other, far from zero."""
    dice = np.random.default_rng(seed)
    targets = dice.integers(0, classes, count)
    mixing = dice.normal(0, 1, (width, width)) * (np.arange(1, width + 1) ** -0.8)[:, None]
    values = (dice.normal(0, 1, (count, width)) + apart * dice.normal(0, 1, (classes, width))[targets]) @ mixing
    return (values + dice.normal(0, 5, width)).astype(np.float32), targets


def marked(count: int, width: int, classes: int, seed: int = 0) -> tuple[Array, Array]:
    dice = np.random.default_rng(seed)
    values = dice.normal(0, 1, (count, width)).astype(np.float32)
    return values, (values @ dice.normal(0, 1, (width, classes)) + dice.normal(0, 1, (count, classes)) > 0.7).astype(
        int
    )


def standard(values: Array) -> Array:
    raw = values.astype(np.float64)
    return (raw - raw.mean(axis=0)) / raw.std(axis=0)
