"""Logistic regression: equal to scikit-learn, whatever the classes and features are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evaluation.clusters import clusters, marked, standard
from vitrail.evaluation import logistic
from vitrail.evaluation.probes import (
    fit_probe,
)


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("count, width, classes", [(40, 5, 3), (200, 30, 6), (60, 80, 4)])
def test_a_linear_probe_is_logistic_regression(l2: float, count: int, width: int, classes: int) -> None:
    """Weights, bias and probabilities as scikit-learn's, with C = 1 / (n * l2)."""
    linear = pytest.importorskip("sklearn.linear_model", reason="the oracle scikit-learn is not installed")
    values, targets = clusters(count, width, classes, 0.5)
    found = fit_probe(values, targets, classes, l2=l2)
    theirs = linear.LogisticRegression(C=1 / (count * l2), tol=1e-10, max_iter=20_000)
    theirs.fit(standard(values), targets)
    expected = theirs.predict_proba(standard(values))
    assert np.abs(found.probabilities(values) - expected).max() < 1e-5
    assert np.abs(found.weight - theirs.coef_).max() < 1e-4 * np.abs(theirs.coef_).max()


def test_two_classes_as_a_softmax() -> None:
    """Two rows of opposite sign have half the penalty of the one row that scikit-learn fits: C = 2 / (n * l2)."""
    linear = pytest.importorskip("sklearn.linear_model", reason="the oracle scikit-learn is not installed")
    values, targets = clusters(90, 4, 2, 0.5)
    found = fit_probe(values, targets, 2, l2=0.02)
    theirs = linear.LogisticRegression(C=2 / (90 * 0.02), tol=1e-10, max_iter=20_000).fit(standard(values), targets)
    assert np.abs(found.probabilities(values) - theirs.predict_proba(standard(values))).max() < 1e-5


def test_several_labels_each_by_itself() -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="the oracle scikit-learn is not installed")
    values, targets = marked(150, 12, 4)
    found = fit_probe(values, targets, 4, l2=1e-2)
    assert found.task == "multi-label"
    for label in range(4):
        theirs = linear.LogisticRegression(C=1 / 1.5, tol=1e-10, max_iter=20_000)
        theirs.fit(standard(values), targets[:, label])
        expected = theirs.predict_proba(standard(values))[:, 1]
        assert np.abs(found.probabilities(values)[:, label] - expected).max() < 1e-5
        assert np.abs(found.weight[label] - theirs.coef_[0]).max() < 1e-4
        assert found.bias[label] == pytest.approx(theirs.intercept_[0], abs=1e-4)


def test_many_features_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too large for float64 has the same answer to 1e-3."""
    values, targets = clusters(400, 24, 5, 0.4)
    exact = fit_probe(values, targets, 5, l2=1e-3)
    monkeypatch.setattr(logistic, "EXACT", 100)
    assert logistic.basis_of(values).features.dtype == torch.float32
    rough = fit_probe(values, targets, 5, l2=1e-3)
    assert np.abs(rough.probabilities(values) - exact.probabilities(values)).max() < 1e-3
    assert not np.array_equal(rough.weight, exact.weight)


def test_the_same_bits_every_time() -> None:
    values, targets = clusters(100, 10, 3)
    first, second = (fit_probe(values, targets, 3, seed=4) for _ in range(2))
    assert first.l2 == second.l2
    assert np.array_equal(first.weight, second.weight)
    assert np.array_equal(first.bias, second.bias)


def test_classes_that_no_image_shows_are_never_the_answer() -> None:
    values, targets = clusters(60, 6, 2)
    found = fit_probe(values, 2 * targets + 1, 5, l2=1e-2)
    assert set(found.logits(values).argmax(axis=1)) <= {1, 3}
    assert found.probabilities(values)[:, [0, 2, 4]].max() <= 1.001e-6
    assert np.isfinite(found.weight).all()
    expected = fit_probe(values, targets, 2, l2=1e-2)
    assert found.probabilities(values)[:, [1, 3]] == pytest.approx(expected.probabilities(values), abs=1e-5)


def test_labels_that_all_images_have_or_none() -> None:
    values, targets = marked(60, 6, 3)
    targets[:, 0], targets[:, 2] = 0, 1
    found = fit_probe(values, targets, 3, l2=1e-2).probabilities(values)
    assert found[:, 0].max() == pytest.approx(1e-6, rel=1e-3)
    assert found[:, 2].min() == pytest.approx(1 - 1e-6, rel=1e-9)
    alone = fit_probe(values, targets[:, 1:2], 1, l2=1e-2).probabilities(values)
    assert found[:, 1] == pytest.approx(alone[:, 0], abs=1e-9)


def test_one_class_and_features_that_never_change() -> None:
    values = np.full((8, 3), 7.0, np.float32)
    assert np.array_equal(fit_probe(values, np.zeros(8, int), 1, l2=1e-2).probabilities(values), np.ones((8, 1)))
    found = fit_probe(values, np.array([0, 0, 0, 0, 0, 0, 1, 1]), 2, l2=1e-2)
    assert found.probabilities(values) == pytest.approx(np.tile([0.75, 0.25], (8, 1)), abs=1e-6)
    assert np.array_equal(found.std, np.ones(3))
