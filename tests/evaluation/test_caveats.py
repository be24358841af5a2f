"""A caveat stands where a network is judged by images that it has met, and nowhere else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from vitrail.checkpoint.provenance import Provenance
from vitrail.data.samples import Dataset, Sample
from vitrail.evaluation.caveats import CHOSEN, TRAINED, caveat_for, caveat_of


def labelled(count: int, splits: tuple[str, ...]) -> Dataset:
    """Images in one array, splits in turn."""
    samples = tuple(Sample(f"{row}", ("a",), splits[row % len(splits)]) for row in range(count))
    return Dataset("rough", samples, np.zeros((count, 4, 4), np.uint8), ("a",))


@pytest.mark.parametrize(
    "splits, said",
    [
        ({"val": 3}, CHOSEN),
        ({"train": 3}, TRAINED),
        ({"test": 3}, ""),
        ({"": 3}, ""),
        ({"val": 1, "train": 1, "test": 998, "": 1}, "Of the 1,001 images, 2 were used to train this network"),
    ],
)
def test_what_the_splits_say(splits: dict[str, int], said: str) -> None:
    found = caveat_of(Counter(splits))
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize("splits", [("train", "val"), ("train", "val", "test")])
def test_only_a_network_of_these_very_images_has_a_caveat(splits: tuple[str, ...]) -> None:
    images = labelled(6, splits)
    own = Provenance(source=images.source, run="flowers-1")
    assert caveat_for(images.part("val"), own) == CHOSEN
    assert caveat_for(images.part("train"), own) == TRAINED
    assert caveat_for(images, own).startswith("Of the 6 images, ")
    for other in (None, Provenance(source="elsewhere", run="a"), Provenance(source=images.source)):
        assert caveat_for(images.part("val"), other) == ""
    if "test" in splits:
        assert caveat_for(images.part("test"), own) == ""
    marked = replace(images, marked_by=("flowers-1",))  # as data_for does, where content tells
    assert caveat_for(marked.part("val"), None) == CHOSEN
