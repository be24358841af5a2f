"""Drawn windows: a function of the seed, every emblem where its box says, all classes alike often."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from vitrail.data.glass import CLASSES, window


def test_a_seed_is_an_image() -> None:
    first, second, other = window(5), window(5), window(6)
    assert np.array_equal(np.asarray(first.image), np.asarray(second.image))
    assert first[1:] == second[1:]
    assert not np.array_equal(np.asarray(first.image), np.asarray(other.image))
    assert (first.image.mode, first.image.size) == ("RGB", (96, 96))
    # Those that the built-in network was trained on.
    assert [window(seed).label for seed in range(4)] == [6, 2, 0, 3]
    assert window(0).box == pytest.approx((23.4551, 32.2611, 62.5784, 71.3844), abs=1e-4)
    assert window(1).box == pytest.approx((21.0988, 46.4889, 68.5203, 93.9104), abs=1e-4)


def test_the_same_window_at_every_size() -> None:
    """Only the resolution changes: the large one reduced is the small one, the box grows with it."""
    small, large = window(9, 48), window(9, 192)
    assert large.label == small.label
    assert large.box == pytest.approx([4 * side for side in small.box])
    reduced = np.asarray(large.image.resize((48, 48), Image.Resampling.LANCZOS), float)
    assert np.abs(reduced - np.asarray(small.image, float)).mean() < 12


def test_every_class_comes_up_alike_often() -> None:
    count = Counter(window(seed, 8).label for seed in range(400))
    assert sorted(count) == list(range(len(CLASSES)))
    assert min(count.values()) > 25
    assert len(set(CLASSES)) == 8


def test_the_emblem_stands_in_its_box() -> None:
    """Two windows of one seed differ only in the emblem: all difference lies inside the box."""
    for seed in range(12):
        first, second = window(seed, 96, label=0), window(seed, 96, label=6)
        assert (first.label, second.label) == (0, 6)
        assert first.box == second.box
        left, top, right, bottom = first.box
        assert 0 <= left < right <= 96
        assert 0 <= top < bottom <= 96
        apart = np.abs(np.asarray(first.image, int) - np.asarray(second.image, int)).max(axis=-1)
        rows, columns = np.nonzero(apart > 24)
        assert len(rows) > 20
        assert left - 2 <= columns.min() <= columns.max() <= right + 2
        assert top - 2 <= rows.min() <= rows.max() <= bottom + 2


def test_emblems_differ_from_each_other() -> None:
    images = [np.asarray(window(1, 96, label).image, int) for label in range(len(CLASSES))]
    for first in range(len(CLASSES)):
        for second in range(first):
            assert (np.abs(images[first] - images[second]).max(axis=-1) > 40).sum() > 40, (first, second)
