"""Maps with their scores: the most faithful is taken, and what is not to be relied on says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from insight.patches import bright
from vitrail.insight import Best
from vitrail.insight.attention_methods import Relevance
from vitrail.insight.attribution import Attribution
from vitrail.insight.map_scores import Candidate, score_maps


def swapped(*swaps: tuple[int, int]) -> np.ndarray:
    """The numbers 0 to 15 in four rows, some pairs of them in each other's place."""
    values = np.arange(16.0)
    for one, other in swaps:
        values[[one, other]] = values[[other, one]]
    return values.reshape(4, 4)


# Swapping numbers k apart takes 2 k² from 680 in the rank correlation of 16.
@pytest.mark.parametrize(
    "other, likeness, unchanged",
    [
        (swapped((2, 7)), 1 - 50 / 680, True),  # 0.926
        (swapped((2, 7), (9, 11), (13, 14)), 1 - 60 / 680, True),  # 0.912
        (swapped((2, 8), (10, 11), (13, 14)), 1 - 76 / 680, False),  # 0.888
        (swapped((2, 9)), 1 - 98 / 680, False),  # 0.856
    ],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_where_a_map_hardly_depends_on_the_weights(
    other: np.ndarray, likeness: float, unchanged: bool, sign: int
) -> None:
    """From a rank correlation of 0.9 with the map of shuffled weights on; the same map upside down is no better."""
    ask, aim = bright(15)
    pixels = torch.full((1, 8, 8), -0.2)
    pixels[0, 6:, 6:] = 1.0  # where the map is highest
    found = score_maps(ask, pixels, [Candidate(Relevance(), Attribution(swapped()), sign * other)], aim, 0.5)
    assert found.shuffled == pytest.approx(sign * likeness)
    assert any("hardly depends on the weights" in each for each in found.warnings) == unchanged
    worse = Candidate(Best(("rollout",)), Attribution(-swapped((0, 1))), np.random.default_rng(0).random((4, 4)))
    chosen = score_maps(ask, pixels, [Candidate(Relevance(), Attribution(swapped()), sign * other), worse], aim, 0.5)
    gains = [each.gain for each in chosen.tried.values()]
    assert gains[0] > gains[1]
    assert (chosen.method == worse.method.words) == unchanged


@pytest.mark.parametrize("place, told", [(6, True), (9, True), (10, False), (13, False)])
def test_a_tenth_of_a_map_catches_the_eye(place: int, told: bool) -> None:
    """An outlying token where the map is strongest but for so many of its 100 patches."""
    values = np.random.default_rng(0).permutation(100.0 + np.arange(100)).reshape(10, 10)
    marks = values == 199 - place
    ask, aim = bright(0)
    found = score_maps(
        ask, torch.zeros(1, 8, 8), [Candidate(Relevance(), Attribution(values), None, marks)], aim, 0.5, False
    )
    assert ["1 of the patches marked most (crossed out) has a token" in each for each in found.warnings] == [
        True
    ] * told


def test_a_map_no_better_than_chance_says_so() -> None:
    ask, aim = bright(15)
    pixels = torch.full((1, 8, 8), -0.2)
    pixels[0, 6:, 6:] = 1.0
    for values, told in ((swapped(), False), (-swapped(), True)):
        found = score_maps(ask, pixels, [Candidate(Relevance(), Attribution(values))], aim, 0.5)
        assert any("no more than covering at random" in each for each in found.warnings) == told
        assert found.reliable != told


def test_a_map_that_weights_do_not_change_is_not_the_best() -> None:
    ask, aim = bright(0)
    pixels = torch.full((1, 8, 8), -0.2)
    pixels[0, :2, :2] = 1.0
    right = np.zeros((4, 4))
    right[0, 0] = 1
    other = np.arange(16.0).reshape(4, 4)
    candidates = [
        Candidate(Relevance(), Attribution(right), right),
        Candidate(Best(("rollout",)), Attribution(other), np.random.default_rng(0).random((4, 4))),
    ]
    assert score_maps(ask, pixels, candidates, aim, 0.9).method == candidates[1].method.words


def test_an_outlier_on_a_map_of_zeros_is_not_marked() -> None:
    ask, aim = bright(0)
    values, marks = np.zeros((4, 4)), np.zeros((4, 4), bool)
    values[0, 0] = 1.0
    marks[3, 3] = True
    pixels = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1))
    found = score_maps(ask, pixels, [Candidate(Relevance(), Attribution(values), None, marks)], aim, 0.5)
    assert not any("far larger" in each for each in found.warnings)
