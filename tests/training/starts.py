"""A small network and images of two classes to start a training from."""

from __future__ import annotations

import numpy as np

from vitrail.data.samples import Dataset, Sample
from vitrail.network.config import ViTConfig

SMALL = ViTConfig(image_size=32, patch_size=16, width=24, depth=2, heads=2, mlp_width=48, classes=4)


def images(count: int = 24, side: int = 40) -> Dataset:
    """Two classes, dark and bright, split into train, val and test."""
    dice = np.random.default_rng(2)
    labels = np.arange(count) % 2
    pixels = (
        dice.integers(0, 120, (count, side, side, 3), dtype=np.uint8)
        + (120 * labels).astype(np.uint8)[:, None, None, None]
    )
    splits = ["train", "train", "train", "train", "val", "test"]
    samples = tuple(
        Sample(str(row), (("dark", "bright")[label],), splits[row // 2 % 6]) for row, label in enumerate(labels)
    )
    return Dataset("made", samples, pixels, ("bright", "dark"))
