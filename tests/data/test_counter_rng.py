"""Draws: the same number for ever for a seed, stream, epoch and index; independent wherever one of them differs."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.data.counter_rng import key, uniform

ROWS = np.arange(2000)


def test_draws_stay_what_they_were() -> None:
    """A run that is resumed, or repeated years later, sees the same images in the same order."""
    assert key(3, "crop", 2) == 16578603241787788291
    np.testing.assert_array_equal(
        uniform(3, "crop", 2, np.array([0, 1, 7]), 2),
        [
            [0.42409018435524026, 0.1638970237847539],
            [0.3753133482861615, 0.9987145760144124],
            [0.8473893239612028, 0.016705184931865236],
        ],
    )


def test_draws_are_uniform_from_0_to_under_1() -> None:
    found = uniform(0, "x", 0, ROWS, 4)
    assert found.shape == (2000, 4)
    assert 0 <= found.min() < found.max() < 1
    np.testing.assert_allclose(np.quantile(found, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)


def test_an_index_has_its_numbers_whoever_else_asks() -> None:
    found = uniform(0, "x", 0, ROWS, 3)
    chosen = np.array([1999, 5, 5, 0])
    np.testing.assert_array_equal(uniform(0, "x", 0, chosen, 3), found[chosen])


def test_no_two_draws_share_a_number() -> None:
    """Neighbours, numbers of one index, streams, epochs and seeds: nothing comes twice."""
    asked = [(0, "x", 0), (0, "y", 0), (0, "x", 1), (1, "x", 0)]
    found = np.concatenate([uniform(seed, stream, epoch, ROWS, 3).ravel() for seed, stream, epoch in asked])
    assert len(np.unique(found)) == 4 * 2000 * 3


@pytest.mark.parametrize("other", [(0, "y", 0), (0, "x", 1), (1, "x", 0)])
def test_streams_epochs_and_seeds_are_independent(other: tuple[int, str, int]) -> None:
    """What one use of chance decides says nothing of another: flips are not those of the small crops."""
    first, second = uniform(0, "x", 0, ROWS, 1)[:, 0], uniform(*other, ROWS, 1)[:, 0]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.07  # three standard deviations
    assert abs(np.corrcoef(first[1:], second[:-1])[0, 1]) < 0.07
