"""Some of the images of every split, so that a set can be tried quickly: class by class, by a seed."""

from __future__ import annotations

from collections import Counter

import numpy as np

from vitrail.data.samples import SPLITS, Dataset
from vitrail.data.splits import random_places


def subset(dataset: Dataset, most: int, seed: int = 0) -> list[int]:
    """The rows of at most so many images of each split, in their order; each class keeps its share, to within one.

    Who is drawn depends on the seed and the names of the images, not on their order.
    """
    places = random_places([f"name/{sample.name}" for sample in dataset.samples], seed)
    rows: list[int] = []
    for split in ("", *SPLITS):
        members = [row for row, sample in enumerate(dataset.samples) if sample.split == split]
        members.sort(key=lambda row: places[row])
        counts = Counter(dataset.samples[row].labels for row in members)
        seen: Counter[tuple[str, ...]] = Counter()
        turns = []  # how far into its class an image stands, from 0 to 1: classes are dealt out side by side
        for row in members:
            labels = dataset.samples[row].labels
            turns.append((seen[labels] + 0.5) / counts[labels])
            seen[labels] += 1
        order = np.argsort(turns, kind="stable")[:most]
        rows += [members[place] for place in order]
    return sorted(rows)
