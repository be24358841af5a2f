"""Some images of every split: exactly so many, class by class, whatever their order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from vitrail.data.samples import Dataset, Sample
from vitrail.data.subsets import subset


def dataset(counts: dict[str, dict[str, int]]) -> Dataset:
    samples = [
        Sample(f"{split}/{label}/{number}", (label,), split)
        for split, labels in counts.items()
        for label, count in labels.items()
        for number in range(count)
    ]
    return Dataset("made", tuple(samples), np.zeros((len(samples), 2, 2), np.uint8), ("a", "b", "c"))


DATA = dataset({"train": {"a": 60, "b": 30, "c": 10}, "val": {"a": 6, "b": 3, "c": 1}, "test": {"a": 3, "c": 2}})


def counted(rows: list[int]) -> Counter[tuple[str, str]]:
    return Counter((DATA.samples[row].split, DATA.samples[row].labels[0]) for row in rows)


@pytest.mark.row("002.08")
def test_each_class_keeps_its_share_of_each_split() -> None:
    drawn = counted(subset(DATA, 10))
    assert [drawn["train", label] for label in "abc"] == [6, 3, 1]
    assert [drawn["val", label] for label in "abc"] == [6, 3, 1]  # ten in all
    assert [drawn["test", label] for label in "abc"] == [3, 0, 2]  # not so many there
    assert sum(count for (split, _), count in counted(subset(DATA, 37)).items() if split == "train") == 37
    assert subset(DATA, 1000) == list(range(len(DATA)))


def test_the_choice_depends_on_seed_and_names_alone() -> None:
    first, second = subset(DATA, 10, seed=1), subset(DATA, 10, seed=2)
    assert first == subset(DATA, 10, seed=1) == sorted(first)
    assert first != second
    order = np.random.default_rng(0).permutation(len(DATA))
    other = DATA.select(order)
    names = {DATA.samples[row].name for row in first}
    assert {other.samples[row].name for row in subset(other, 10, seed=1)} == names
