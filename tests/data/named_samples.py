"""Datasets of names alone: so many images of each class, and how many of them each split has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from vitrail.data import Dataset, Sample
from vitrail.data.samples import SPLITS


def dataset(samples: Sequence[Sample], task: str = "single-label") -> Dataset:
    names = sorted({label for each in samples for label in each.labels})
    return Dataset("photos", tuple(samples), np.zeros((len(samples), 1, 1), np.uint8), tuple(names), task)


def of_sizes(**sizes: int) -> Dataset:
    return dataset([Sample(f"{name}/{number}.jpg", (name,)) for name, size in sizes.items() for number in range(size)])


def counts(data: Dataset) -> dict[str, list[int]]:
    """Class -> images in train, val and test."""
    table = Counter((label, each.split) for each in data.samples for label in each.labels)
    return {name: [table[name, place] for place in SPLITS] for name in data.classes}
