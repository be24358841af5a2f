"""Temperature where scipy finds it; calibration error as its definition says; a threshold for "none of these"."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vitrail.errors import InputError
from vitrail.evaluation import ece, fit_reject, fit_temperature, fit_thresholds
from vitrail.evaluation.calibration import below, bin_of
from vitrail.evaluation.metrics import losses
from vitrail.inference import probabilities

Array = np.ndarray[Any, Any]


def drawn(count: int, classes: int, true: float, seed: int = 0) -> tuple[Array, Array]:
    """Logits, and targets drawn from what they say at the true temperature."""
    dice = np.random.default_rng(seed)
    logits = dice.normal(0, 3, (count, classes))
    chances = probabilities(logits, "single-label", true)
    return logits, (chances.cumsum(axis=1) > dice.random((count, 1))).argmax(axis=1)


def drawn_several(count: int, classes: int, true: float, seed: int = 0) -> tuple[Array, Array]:
    dice = np.random.default_rng(seed)
    logits = dice.normal(-1, 3, (count, classes))
    return logits, (dice.random((count, classes)) < probabilities(logits, "multi-label", true)).astype(np.int64)


# ---- temperature -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
@pytest.mark.parametrize("true", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("count, classes", [(150, 2), (300, 10), (900, 60)])
def test_temperature_is_the_lowest_loss(task: str, true: float, count: int, classes: int) -> None:
    """The optimum that scipy finds, to 1e-6, and next to it nothing lower."""
    optimise = pytest.importorskip("scipy.optimize", reason="the oracle scipy is not installed")
    logits, targets = (drawn if task == "single-label" else drawn_several)(count, classes, true, seed=count)
    found = fit_temperature(logits.astype(np.float32), targets, task)

    def loss(log: float) -> float:
        return float(losses(logits.astype(np.float32), targets, math.exp(log)).mean())

    theirs = optimise.minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), options={"xatol": 1e-9})
    # Near its lowest point a loss changes with the square of the distance: scipy cannot see nearer than 1e-8.
    assert math.log(found) == pytest.approx(theirs.x, abs=1e-6)
    here = loss(math.log(found))
    assert here <= loss(math.log(found) + 1e-4)
    assert here <= loss(math.log(found) - 1e-4)
    assert here <= theirs.fun + 1e-12
    assert 0.5 * true < found < 2 * true


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_temperature_takes_back_what_was_scaled(task: str) -> None:
    logits, targets = (drawn if task == "single-label" else drawn_several)(400, 5, 1.0)
    found = fit_temperature(logits, targets, task)
    assert fit_temperature(logits * 7, targets, task) == pytest.approx(7 * found, rel=1e-9)
    if task == "single-label":  # a shift of all logits changes nothing
        assert fit_temperature(logits + 1e4, targets, task) == pytest.approx(found, rel=1e-8)


def test_temperature_stays_within_its_bounds() -> None:
    logits, targets = drawn(200, 4, 1.0)
    assert fit_temperature(logits * 100, targets) == 20.0
    assert fit_temperature(logits / 100, targets) == 0.05
    assert fit_temperature(-logits, targets) == 20.0, "worse than chance: as flat as it may be"
    assert fit_temperature(np.zeros((5, 3)), np.array([0, 1, 2, 0, 1])) == 1.0, "nothing to scale"
    assert fit_temperature(np.ones((5, 1)), np.zeros(5, int)) == 1.0


def test_where_every_answer_is_right_one_error_is_imagined() -> None:
    """No temperature is low enough then: the lowest loss to targets of which one in n + 2 is spread over all."""
    optimise = pytest.importorskip("scipy.optimize", reason="the oracle scipy is not installed")
    logits = np.random.default_rng(0).normal(0, 1, (60, 4))
    targets = logits.argmax(axis=1)
    found = fit_temperature(logits, targets)
    doubt = 1 / 62
    aims = (1 - doubt) * np.eye(4)[targets] + doubt / 4

    def loss(log: float) -> float:
        return float(-(aims * np.log(probabilities(logits, "single-label", math.exp(log)))).sum(axis=1).mean())

    theirs = optimise.minimize_scalar(loss, bounds=(math.log(0.05), math.log(20)), options={"xatol": 1e-9})
    assert math.log(found) == pytest.approx(theirs.x, abs=1e-6)
    assert 0.05 < found < 0.5
    marks = (logits > 0).astype(int)
    assert 0.05 < fit_temperature(logits, marks, "multi-label") < 0.5


def test_numbers_that_are_none_are_refused() -> None:
    logits, targets = drawn(60, 3, 1.0)
    logits[4, 1] = np.nan
    with pytest.raises(InputError, match="logits: 1 of 180 are no numbers"):
        fit_temperature(logits, targets)
    with pytest.raises(InputError, match="probabilities: 1 of 180 are no numbers"):
        fit_reject(logits, targets)
    with pytest.raises(InputError, match="probabilities: 1 of 180 are no numbers"):
        fit_thresholds(logits, np.zeros((60, 3)))


def test_temperature_keeps_the_answers_and_calibrates() -> None:
    logits, targets = drawn(4000, 6, 3.0)
    found = fit_temperature(logits, targets)
    before, after = (probabilities(logits, "single-label", each) for each in (None, found))
    assert np.array_equal(before.argmax(axis=1), after.argmax(axis=1))
    assert ece(before, targets)[0] > 0.2
    assert ece(after, targets)[0] < 0.03


# ---- calibration error -------------------------------------------------------------------------------------------


def by_definition(confidence: Array, right: Array, bins: int) -> float:
    """Sum over bins of their share times the gap between mean confidence and mean accuracy."""
    total = 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        inside |= (number == 0) & (confidence == 0)
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return total


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("count, classes", [(1, 2), (7, 3), (500, 10)])
def test_ece_by_its_definition(bins: int, count: int, classes: int) -> None:
    logits, targets = drawn(count, classes, 2.0, seed=bins)
    shares = probabilities(logits)
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == targets
    value, found = ece(shares, targets, bins)
    assert value == pytest.approx(by_definition(confidence, right, bins), abs=1e-12)
    assert len(found) == bins
    assert sum(each.count for each in found) == count
    filled = [each for each in found if each.count]
    assert sum(each.count * abs(each.confidence - each.accuracy) for each in filled) / count == pytest.approx(value)
    assert all(each.low < each.confidence <= each.high for each in filled)
    assert all(math.isnan(each.confidence) and math.isnan(each.accuracy) for each in found if not each.count)


def test_ece_of_several_labels_counts_every_decision() -> None:
    logits, targets = drawn_several(300, 4, 0.5)
    shares = probabilities(logits, "multi-label")
    value, found = ece(shares, targets)
    assert value == pytest.approx(by_definition(shares.ravel(), targets.ravel(), 15), abs=1e-12)
    assert sum(each.count for each in found) == 1200


def test_ece_by_hand() -> None:
    """Four answers of 0.8, three right, and one of exactly 1, right: (4 * 0.05 + 0) / 5."""
    shares = np.array([[0.8, 0.2]] * 4 + [[1.0, 0.0]])
    value, found = ece(shares, np.array([0, 0, 0, 1, 0]), bins=10)
    assert value == pytest.approx(0.04)
    assert found[7] == pytest.approx((0.7, 0.8, 4, 0.8, 0.75))
    assert found[9] == pytest.approx((0.9, 1.0, 1, 1.0, 1.0))


# ---- none of these -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("seed", range(4))
def test_reject_is_the_smallest_threshold_that_reaches_the_accuracy(target: float | None, seed: int) -> None:
    """Against every threshold there is; answers of equal confidence stay together."""
    logits, targets = drawn(400, 4, 1.0, seed)
    shares = probabilities(np.round(logits * 2) / 2)
    confidence, right = shares.max(axis=1), shares.argmax(axis=1) == targets
    found = fit_reject(shares, targets, target)
    wanted = (right.mean() + 1) / 2 if target is None else target
    enough = [
        each
        for each in np.unique(confidence)
        if right[confidence >= each].mean() >= wanted - 1e-12 and (confidence >= each).mean() >= 0.5
    ]
    if not enough:
        assert found is None
        return
    assert found is not None
    assert right[confidence >= found].mean() >= wanted - 1e-12
    assert np.array_equal(confidence >= found, confidence >= min(enough))
    lower = confidence[confidence < min(enough)].max(initial=0.0)
    assert found == pytest.approx((lower + min(enough)) / 2), "in the middle, where no rounding can change an answer"


def test_reject_of_a_network_that_is_nearly_always_right() -> None:
    """It reaches 0.99 without a threshold: 99 in 100 of its right answers pass."""
    dice = np.random.default_rng(0)
    sure = dice.uniform(0.6, 1, 1000)
    shares, targets = np.stack([sure, 1 - sure], axis=1), np.zeros(1000, int)
    targets[:5] = 1
    found = fit_reject(shares, targets)
    assert found is not None
    assert (sure[5:] >= found).sum() == pytest.approx(0.99 * 995, abs=1)
    assert 0.6 < found < 0.61


def test_reject_cannot_be_fitted_to_few_or_hopeless_images() -> None:
    logits, targets = drawn(49, 3, 0.3)
    assert fit_reject(probabilities(logits), targets) is None
    blind = np.full((400, 2), 0.5)
    assert fit_reject(blind, np.arange(400) % 2) is None, "all equally unsure: no threshold tells right from wrong"
    logits, targets = drawn(400, 4, 3.0)
    assert fit_reject(probabilities(logits), targets, 0.999) is None, "more than half would go unanswered"
    assert fit_reject(probabilities(logits), targets, 0.01) == pytest.approx(
        probabilities(logits).max(axis=1).min() / 2
    )


@pytest.mark.parametrize("right, fits", [(40, False), (49, False), (50, True), (60, True)])
def test_reject_needs_fifty_right_answers(right: int, fits: bool) -> None:
    """As many wrong ones as a fifth of them, and less sure than they are."""
    wrong = right // 5
    sure = np.concatenate([np.linspace(0.8, 0.99, right), np.linspace(0.55, 0.7, wrong)])
    targets = np.repeat([0, 1], [right, wrong])
    found = fit_reject(np.stack([sure, 1 - sure], axis=1), targets)
    assert (found is not None) == fits


@pytest.mark.parametrize("wrong", [5, 9, 11, 15])
def test_where_nearly_always_right_begins(wrong: int) -> None:
    """Of 1,000 answers. From 0.99 on, 99 in 100 right answers pass; below, the smallest threshold that reaches 0.99."""
    dice = np.random.default_rng(2)
    sure = dice.permutation(np.linspace(0.6, 1, 1000))
    targets = np.zeros(1000, int)
    targets[np.argsort(sure)[: 3 * wrong : 3]] = 1  # among the least sure
    found = fit_reject(np.stack([sure, 1 - sure], axis=1), targets)
    right = targets == 0
    assert found is not None
    if right.mean() >= 0.99:
        assert (sure[right] >= found).sum() == pytest.approx(0.99 * right.sum(), abs=1)
    else:
        lower = sure[sure < found].max()
        assert right[sure >= found].mean() >= 0.99 > right[sure >= lower].mean()


def test_calibration_error_has_fifteen_bins_unless_told() -> None:
    logits, targets = drawn(200, 4, 2.0)
    shares = probabilities(logits)
    assert ece(shares, targets) == ece(shares, targets, 15)
    assert len(ece(shares, targets)[1]) == 15
    assert np.array_equal(bin_of(shares.max(axis=1)), bin_of(shares.max(axis=1), 15))


def test_reject_refuses_what_makes_no_sense() -> None:
    with pytest.raises(InputError, match="several labels have thresholds of their own"):
        fit_reject(np.ones((60, 2)), np.ones((60, 2)))
    with pytest.raises(InputError, match="expected more than 0 and at most 1, got 99"):
        fit_reject(np.ones((60, 2)), np.zeros(60, int), 99)


def test_below_lies_between_two_neighbours() -> None:
    rising = np.array([0.2, 0.4, 0.4, 0.8])
    assert below(rising, 0.8) == pytest.approx(0.6)
    assert below(rising, 0.4) == pytest.approx(0.3)
    assert below(rising, 0.2) == pytest.approx(0.1)
    nearest = np.array([0.5, np.nextafter(0.5, 1)])
    assert 0.5 < below(nearest, float(nearest[1])) <= nearest[1], "no number between them: the higher one"
