"""The interval of the calibration error: it holds the truth at its rate, and its estimate lies inside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vitrail.evaluation import ece
from vitrail.evaluation.calibration_interval import calibration_error

Array = np.ndarray[Any, Any]
SEEDS = 150


def outcomes(dice: np.random.Generator, count: int, modesty: float, sharpness: float) -> tuple[Array, Array]:
    """Stated confidences, and the chance to be right that goes with each: lower where modesty is below 1."""
    stated = 0.2 + 0.8 * dice.beta(sharpness, 1.2, count)
    return stated, modesty * stated


def answers(seed: int, count: int, modesty: float, sharpness: float) -> tuple[Array, Array]:
    """Probabilities of five classes and targets, of a network that is so wrong about itself."""
    dice = np.random.default_rng(seed)
    stated, true = outcomes(dice, count, modesty, sharpness)
    shares = np.repeat((1 - stated)[:, None] / 4, 5, axis=1)
    shares[:, 0] = stated
    return shares, (dice.random(count) >= true).astype(int)


def true_error(modesty: float, sharpness: float) -> float:
    """What endless images would show, over the same fifteen bins; a million are near enough."""
    stated, true = outcomes(np.random.default_rng(0), 1_000_000, modesty, sharpness)
    place = np.searchsorted(np.linspace(0, 1, 16)[1:-1], stated)
    return float(np.abs(np.bincount(place, stated - true)).sum() / len(stated))


@pytest.mark.parametrize("sharpness", [3.0, 20.0])
@pytest.mark.parametrize("modesty", [1.0, 0.97, 0.9, 0.75])
@pytest.mark.parametrize("count", [60, 400])
def test_the_interval_holds_the_true_error_at_its_rate(count: int, modesty: float, sharpness: float) -> None:
    """95 % of 150 draws, less what chance (2 %) and few images take; the estimate is never at an end."""
    truth = true_error(modesty, sharpness)
    scores = [calibration_error(*answers(seed, count, modesty, sharpness), 200) for seed in range(SEEDS)]
    assert sum(each.low <= truth <= each.high for each in scores) >= 0.88 * SEEDS
    assert all(each.low < each.value < each.high for each in scores)
    wide = np.mean([each.high - each.low for each in scores])
    assert wide < 4 * np.std([each.value for each in scores]) + 2 * (np.mean([each.value for each in scores]) - truth)


def test_a_network_that_is_right_about_itself_may_have_no_error_at_all() -> None:
    """Its measured error is chance, and the lower end says so; a plain bootstrap would begin at the estimate."""
    scores = [calibration_error(*answers(seed, 300, 1.0, 3.0), 200) for seed in range(60)]
    assert np.mean([each.value for each in scores]) > 0.04
    assert sum(each.low == 0 for each in scores) >= 54
    wrong = calibration_error(*answers(0, 300, 0.75, 3.0), 200)
    assert wrong.low > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_the_estimate_is_the_usual_one(seed: int) -> None:
    shares, targets = answers(seed, 200, 0.9, 3.0)
    found = calibration_error(shares, targets, 50)
    assert found.value == ece(shares, targets)[0]
    assert found == calibration_error(shares, targets, 50)  # the same dice
    assert calibration_error(shares, targets, 0)[0] == found.value
    assert math.isnan(calibration_error(shares, targets, 0).low)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_images_that_are_all_right(count: int) -> None:
    """Stated 90 %: nothing speaks against it, and nothing says that it is not too modest."""
    shares = np.tile([0.9, 0.1], (count, 1))
    found = calibration_error(shares, np.zeros(count, int), 100)
    assert found.value == pytest.approx(0.1)
    assert found.low == 0
    assert found.value < found.high <= 1


def test_labels_of_one_image_that_go_together_count_less() -> None:
    """Eight labels that are right or wrong all at once say no more than one of them."""
    dice = np.random.default_rng(0)
    stated = 0.5 + 0.4 * dice.random(120)
    right = (dice.random(120) < 0.6 * stated + 0.1).astype(int)
    one = calibration_error(stated[:, None], right[:, None], 400)
    eight = calibration_error(np.repeat(stated[:, None], 8, axis=1), np.repeat(right[:, None], 8, axis=1), 400)
    alone = calibration_error(np.repeat(stated, 8)[:, None], np.repeat(right, 8)[:, None], 400)
    assert eight.value == pytest.approx(one.value)
    assert eight.high - eight.low == pytest.approx(one.high - one.low, rel=0.25)
    assert alone.high - alone.low < 0.6 * (eight.high - eight.low)
