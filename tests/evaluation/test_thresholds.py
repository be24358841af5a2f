"""Thresholds of several labels: the highest F1 that any threshold can give."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.evaluation import evaluation_of, fit_thresholds


@pytest.mark.parametrize("seed", range(4))
def test_no_threshold_is_better(seed: int) -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="the oracle scikit-learn is not installed")
    dice = np.random.default_rng(seed)
    targets = (dice.random((80, 3)) < 0.3).astype(int)
    shares = np.clip(np.round(dice.normal(0.2, 0.2, (80, 3)) + 0.3 * targets, 2), 0, 1)
    for number, threshold in enumerate(fit_thresholds(shares, targets)):
        column, marks = shares[:, number], targets[:, number]
        every = {each: sklearn.f1_score(marks, column >= each, zero_division=0) for each in [0.5, *np.unique(column)]}
        best = max(every.values())
        assert sklearn.f1_score(marks, column >= threshold) == pytest.approx(best, abs=1e-12)
        assert (threshold == 0.5) == (every[0.5] == best)
        assert threshold == 0.5 or threshold not in column, "between two scores, where no rounding can change an answer"


def test_by_hand() -> None:
    """Own images at 0.3 and 0.2, others below: said from 0.15 on. One half stays where it is as good as any."""
    shares = np.array([[0.3, 0.9, 0.4], [0.2, 0.7, 0.3], [0.1, 0.2, 0.2], [0.05, 0.1, 0.1]])
    targets = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]])
    assert fit_thresholds(shares, targets) == pytest.approx((0.15, 0.5, 0.5))


def test_of_equal_ones_the_nearest_to_one_half() -> None:
    """F1 is 2/3 from 0.9 on and also from 0.1 on: the first is nearer."""
    shares = np.array([[0.9], [0.8], [0.1], [0.05]])
    targets = np.array([[1], [0], [1], [0]])
    f1 = [2 / 3, 1 / 2, 4 / 5, 2 / 3]
    assert max(f1) == 4 / 5
    assert fit_thresholds(shares, targets) == pytest.approx((0.075,))
    targets = np.array([[1], [0], [0], [1]])
    assert fit_thresholds(shares, targets) == pytest.approx((0.85,)), "2/3 at 0.9, and 2/3 with all four"


@pytest.mark.parametrize("value", [0.01, 0.99])
def test_labels_that_all_have_or_none(value: float) -> None:
    shares = np.full((6, 2), value)
    everyone, nobody = fit_thresholds(shares, np.tile([1, 0], (6, 1)))
    assert nobody == 0.5
    assert everyone == (0.5 if value > 0.5 else pytest.approx(value / 2))
    assert 0 <= everyone <= value, "so that it is said of all"


def test_fitted_thresholds_raise_the_macro_f1() -> None:
    dice = np.random.default_rng(0)
    targets = (dice.random((300, 5)) < 0.15).astype(int)
    logits = dice.normal(-3, 1, (300, 5)) + 2 * targets
    plain = evaluation_of(logits, targets, task="multi-label", resamples=0)
    fitted = fit_thresholds(plain.probabilities, targets)
    better = evaluation_of(logits, targets, task="multi-label", thresholds=fitted, resamples=0)
    assert plain.scores["macro_f1"].value < 0.4
    assert better.scores["macro_f1"].value > 0.65
    assert better.scores["mean_ap"] == plain.scores["mean_ap"]
