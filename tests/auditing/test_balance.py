"""Balance: images counted by class and split, and advice that names the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitrail.auditing.balance import weigh
from vitrail.data.samples import Dataset, Sample
from vitrail.training.recipe import Recipe


def dataset(counts: dict[tuple[str, str], int], task: str = "single-label") -> Dataset:
    """So many images of each (label, split); labels with + between them are several."""
    samples = [
        Sample(f"{label}/{split}/{place}", tuple(each for each in label.split("+") if each), split)
        for (label, split), count in counts.items()
        for place in range(count)
    ]
    classes = tuple(sorted({label for each in samples for label in each.labels}))
    return Dataset("here", tuple(samples), [Path(each.name) for each in samples], classes, task)


def test_counts_by_class_and_split() -> None:
    found = weigh(dataset({("a", "train"): 30, ("b", "train"): 20, ("a", "test"): 5, ("b", "test"): 7}))
    assert found.splits == ("train", "test")
    assert found.counts == {"a": (30, 5), "b": (20, 7)}
    assert (found.ratio, found.small, found.missing, found.balance) == (1.5, (), (), "none")
    assert found.advice == "The classes are of similar size: nothing to do."


@pytest.mark.parametrize("many, balance", [(19, "none"), (20, "weights"), (99, "weights"), (100, "sampling")])
def test_advice_follows_the_ratio(many: int, balance: str) -> None:
    """Of what is trained on: the test set is as even as can be."""
    found = weigh(dataset({("a", "train"): many, ("b", "train"): 10, ("a", "test"): 5, ("b", "test"): 5}))
    assert found.ratio == many / 10
    assert found.balance == balance
    assert Recipe(balance=found.balance).balance == balance
    assert balance == "none" or f"balance='{balance}'" in found.advice


def test_several_labels_are_weighted_never_drawn() -> None:
    found = weigh(dataset({("a", ""): 180, ("a+b", ""): 10, ("", ""): 4}, task="multi-label"))
    assert (found.counts, found.ratio, found.balance) == ({"a": (190,), "b": (10,)}, 19.0, "weights")


def test_small_and_missing_classes_are_named() -> None:
    found = weigh(dataset({("a", "train"): 12, ("b", "train"): 9, ("c", "test"): 3, ("a", "test"): 3}))
    assert found.small == ("b", "c")
    assert found.missing == (("b", "test"), ("c", "train"))
    assert found.ratio == 12 / 9  # of those that there are
    assert "Fewer than 10 images to learn from: 'b', 'c'" in found.advice
    assert "No image at all: 'b' in test, 'c' in train" in found.advice


def test_images_that_are_not_split_are_learned_from() -> None:
    found = weigh(dataset({("a", ""): 40, ("b", ""): 10}))
    assert (found.splits, found.counts["a"], found.ratio, found.small) == (("",), (40,), 4.0, ())


def test_a_test_set_alone_is_counted_too() -> None:
    assert weigh(dataset({("a", "test"): 40, ("b", "test"): 10})).ratio == 4.0


def test_no_labels() -> None:
    found = weigh(dataset({("", ""): 5}, task="multi-label"))
    assert (found.ratio, found.balance, found.advice) == (0.0, "none", "The images have no labels.")
