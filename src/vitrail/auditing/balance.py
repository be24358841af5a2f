"""Labels and splits -> how many images each class has, and what to do where they are too uneven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from vitrail.checks import join_limited
from vitrail.data.samples import SPLITS, Dataset

FEW: Final = 10  # images: with fewer, a class is learned by heart and its score means little
UNEVEN: Final = 2.0  # times as many images in the largest class as in the smallest: weights help
VERY_UNEVEN: Final = 10.0  # beyond, whole batches miss the rare classes: they must be drawn more often


class Balance(NamedTuple):
    """How many images each class has."""

    splits: tuple[str, ...]  # those that hold images; an empty name: not split
    counts: Mapping[str, tuple[int, ...]]  # class -> images in each of the splits
    ratio: float  # largest class to smallest of what is trained on; 0 where there are no labels
    small: tuple[str, ...]  # classes with under ten images to train on
    missing: tuple[tuple[str, str], ...]  # class and split without an image of it
    balance: str  # what Recipe.balance should be: none, weights or sampling
    advice: str


def weigh(dataset: Dataset) -> Balance:
    """Count the images of each class in each split."""
    splits = tuple(split for split in (*SPLITS, "") if any(each.split == split for each in dataset.samples))
    pairs = Counter((label, sample.split) for sample in dataset.samples for label in sample.labels)
    counts = {name: tuple(pairs[name, split] for split in splits) for name in dataset.classes}
    # What is trained on is the train split, and images not split yet.
    trained = [column for column, split in enumerate(splits) if split in ("train", "")] or list(range(len(splits)))
    learned = {name: sum(row[column] for column in trained) for name, row in counts.items()}
    some = [count for count in learned.values() if count]
    ratio = max(some) / min(some) if some else 0.0
    small = tuple(name for name, count in learned.items() if count < FEW)
    missing = tuple(
        (name, split) for name, row in counts.items() for split, count in zip(splits, row, strict=True) if not count
    )
    balance = (
        "none"
        if ratio < UNEVEN
        else "sampling"
        if ratio >= VERY_UNEVEN and dataset.task == "single-label"
        else "weights"
    )
    return Balance(splits, counts, ratio, small, missing, balance, _advice(ratio, balance, small, missing))


def _advice(ratio: float, balance: str, small: tuple[str, ...], missing: tuple[tuple[str, str], ...]) -> str:
    """What to do, in a few sentences."""
    if not ratio:
        return "The images have no labels."
    advice = {
        "none": "The classes are of similar size: nothing to do.",
        "weights": f"The largest class has {ratio:.1f} times as many images as the smallest: train with "
        "balance='weights', and look at F1 (mean of classes) rather than at accuracy.",
        "sampling": f"The largest class has {ratio:.0f} times as many images as the smallest: train with "
        "balance='sampling', which draws rare classes more often, and look at F1 (mean of classes) rather than at "
        "accuracy.",
    }[balance]
    if small:
        names = join_limited([repr(each) for each in small], ", ")
        advice += f" Fewer than {FEW} images to learn from: {names}; collect more, or merge or leave out these classes."
    if missing:
        places = join_limited([f"{name!r} in {split or 'all'}" for name, split in missing], ", ")
        advice += f" No image at all: {places}; such a class is not learned there, or not measured."
    return advice
