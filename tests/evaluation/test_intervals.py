"""Intervals: Wilson's as scipy has it; the bootstrap as drawing the images by hand would give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vitrail.evaluation import evaluation_of
from vitrail.evaluation.intervals import bootstrap, wilson

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("right, count", [(0, 1), (1, 1), (0, 10), (10, 10), (7, 10), (481, 500), (59_999, 60_000)])
def test_wilson(right: int, count: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="the oracle scipy is not installed")
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    found = wilson(right, count)
    assert found.value == right / count
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_the_bootstrap_draws_images_with_replacement() -> None:
    """The same draws, taken by hand: macro F1, loss and average precision of the images themselves, repeated."""
    sklearn = pytest.importorskip("sklearn.metrics", reason="the oracle scikit-learn is not installed")
    dice = np.random.default_rng(3)
    targets = dice.integers(0, 4, 60)
    logits = dice.normal(0, 1, (60, 4))
    logits[np.arange(60), targets] += 1
    found = evaluation_of(logits, targets, resamples=40)
    again = np.random.default_rng(0)
    f1, loss = [], []
    for _ in range(40):
        rows = again.integers(0, 60, 60)
        said = found.probabilities[rows].argmax(axis=1)
        f1.append(sklearn.f1_score(targets[rows], said, average="macro", zero_division=0))
        loss.append(sklearn.log_loss(targets[rows], found.probabilities[rows], labels=range(4)))
    for name, drawn in (("macro_f1", f1), ("loss", loss)):
        value, low, high = found.scores[name]
        expected = np.quantile(drawn, [0.025, 0.975])
        assert (low, high) == pytest.approx((min(expected[0], value), max(expected[1], value)), abs=1e-9)


def test_the_bootstrap_of_several_labels() -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="the oracle scikit-learn is not installed")
    dice = np.random.default_rng(3)
    targets = (dice.random((50, 3)) < 0.5).astype(int)
    logits = np.round(dice.normal(0, 1, (50, 3)) + targets, 1)
    found = evaluation_of(logits, targets, task="multi-label", resamples=30)
    again = np.random.default_rng(0)
    precisions, micro = [], []
    for _ in range(30):
        rows = again.integers(0, 50, 50)
        shares = found.probabilities[rows]
        precisions.append(sklearn.average_precision_score(targets[rows], shares))
        micro.append(sklearn.f1_score(targets[rows], shares >= 0.5, average="micro"))
    for name, drawn in (("mean_ap", precisions), ("micro_f1", micro)):
        value, low, high = found.scores[name]
        expected = np.quantile(drawn, [0.025, 0.975])
        assert (low, high) == pytest.approx((min(expected[0], value), max(expected[1], value)), abs=1e-9)


def test_the_bootstrap_of_a_mean_is_about_normal() -> None:
    """The interval of a mean of 400 values has the width that theory gives, to a tenth."""
    values = np.random.default_rng(1).normal(5, 2, 400)
    [found] = bootstrap(lambda weights: np.array([weights @ values / 400]), 400)
    assert found.value == pytest.approx(values.mean(), abs=1e-12)
    half = 1.96 * values.std() / 20
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 10)


def test_a_thousand_draws_unless_told() -> None:
    asked: list[float] = []

    def count(weights: Array) -> Array:
        asked.append(weights.sum())
        return np.zeros(1)

    bootstrap(count, 5)
    assert asked == [5.0] * 1001  # and once the images as they are


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.arange(30.0)

    def mean(weights: Array) -> Array:
        return np.array([weights @ values / 30])

    assert bootstrap(mean, 30, 100) == bootstrap(mean, 30, 100)
    assert bootstrap(mean, 30, 100) != bootstrap(mean, 30, 100, seed=1)


def test_an_interval_holds_its_value() -> None:
    """Calibration error grows when images are drawn again, so its percentiles alone can lie above it."""
    apart = np.tile([0.3, -0.3], 50)  # two gaps that cancel: no error, but in nearly every draw there is one
    [found] = bootstrap(lambda weights: np.array([abs(weights @ apart) / 100]), 100)
    assert found.low == found.value == pytest.approx(0, abs=1e-15)
    assert found.high == pytest.approx(2.24 * 0.03, rel=0.1)  # 97.5 % of |x| for a normal x, of deviation 0.3 / 10


def test_without_resamples_there_is_no_interval() -> None:
    found = evaluation_of(np.eye(3), np.arange(3), resamples=0)
    assert math.isnan(found.scores["loss"].low)
    assert math.isnan(found.scores["macro_f1"].high)
    assert found.scores["top1"].low == pytest.approx(0.438503, abs=1e-6)
