"""Every score equals scikit-learn's to 1e-6: ties, absent classes, one class, two, more classes than images."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from vitrail.evaluation import evaluation_of
from vitrail.evaluation.metrics import (
    answers,
    average_precision,
    confusion,
    losses,
    mean_average_precision,
    places,
    precision_of,
    rank,
    top_k,
)

Array = np.ndarray[Any, Any]

# scikit-learn warns where a class does not occur, and says 0, as we do.
pytestmark = pytest.mark.filterwarnings(
    "ignore:No positive class found", "ignore:y_pred contains classes", "ignore:A single label"
)

EXACT = 1e-6
# images, classes, classes that occur, step to which scores are rounded (ties; 0: none)
CASES = [
    (1, 2, 2, 0.0),
    (1, 7, 7, 0.0),
    (2, 2, 2, 0.5),
    (5, 9, 9, 0.0),
    (6, 40, 40, 0.5),
    (30, 2, 2, 1.0),
    (50, 3, 1, 0.0),
    (80, 10, 4, 0.5),
    (120, 6, 6, 1.0),
    (300, 10, 10, 0.0),
    (300, 25, 20, 0.25),
    (500, 2, 2, 0.0),
]


@pytest.fixture(scope="module")
def sklearn() -> ModuleType:
    """scikit-learn's metrics, as an oracle."""
    return pytest.importorskip("sklearn.metrics", reason="the oracle scikit-learn is not installed")


def one_label(count: int, classes: int, shown: int, step: float, seed: int) -> tuple[Array, Array]:
    """Logits that know something, and targets among the first classes shown."""
    dice = np.random.default_rng(seed)
    targets = dice.integers(0, shown, count)
    logits = dice.normal(0, 1.5, (count, classes))
    logits[np.arange(count), targets] += 1.5
    return (np.round(logits / step) * step if step else logits), targets


def several_labels(count: int, classes: int, shown: int, step: float, seed: int) -> tuple[Array, Array]:
    dice = np.random.default_rng(seed)
    targets = (dice.random((count, classes)) < dice.uniform(0.1, 0.6, classes)) & (np.arange(classes) < shown)
    logits = dice.normal(-0.5, 1.5, (count, classes)) + 1.5 * targets
    return (np.round(logits / step) * step if step else logits), targets.astype(np.int64)


# ---- all scores at once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("temperature", [None, 1.7])
def test_one_label(sklearn: ModuleType, case: Any, temperature: float | None) -> None:
    count, classes, *_ = case
    for seed in range(2):
        logits, targets = one_label(*case, seed)
        found = evaluation_of(logits, targets, temperature=temperature, resamples=0)
        shares, said = found.probabilities, found.probabilities.argmax(axis=1)
        scores = {name: score.value for name, score in found.scores.items()}
        expected = {
            "top1": sklearn.accuracy_score(targets, said),
            "macro_precision": sklearn.precision_score(targets, said, average="macro", zero_division=0),
            "macro_recall": sklearn.recall_score(targets, said, average="macro", zero_division=0),
            "macro_f1": sklearn.f1_score(targets, said, average="macro", zero_division=0),
            "loss": sklearn.log_loss(targets, shares, labels=range(classes)),
        }
        if classes > 5:  # of equal scores scikit-learn takes the last class: turned round, it is the first
            turned = classes - 1 - targets
            expected["top5"] = sklearn.top_k_accuracy_score(turned, shares[:, ::-1], k=5, labels=range(classes))
        assert scores.pop("ece") >= 0
        assert scores == pytest.approx(expected, abs=EXACT)
        rows = [(each.precision, each.recall, each.f1, each.count) for each in found.per_class]
        theirs = sklearn.precision_recall_fscore_support(targets, said, labels=range(classes), zero_division=0)
        assert np.array(rows) == pytest.approx(np.transpose(theirs), abs=EXACT)
        precisions = [sklearn.average_precision_score(targets == each, shares[:, each]) for each in range(classes)]
        assert [each.average_precision for each in found.per_class] == pytest.approx(precisions, abs=EXACT)
        assert np.array_equal(found.confusion, sklearn.confusion_matrix(targets, said, labels=range(classes)))
        assert len(found) == count


@pytest.mark.parametrize("case", CASES, ids=str)
def test_several_labels(sklearn: ModuleType, case: Any) -> None:
    """With thresholds of their own; labels that no image has, and labels never said, included."""
    classes = case[1]
    for seed in range(2):
        logits, targets = several_labels(*case, seed)
        thresholds = np.random.default_rng(seed).uniform(0.1, 0.95, classes)
        found = evaluation_of(logits, targets, task="multi-label", thresholds=thresholds, temperature=1.3, resamples=0)
        shares = found.probabilities
        said = (shares >= thresholds).astype(int)
        scores = {name: score.value for name, score in found.scores.items()}
        expected = {
            "mean_ap": sklearn.average_precision_score(targets, shares, average="macro"),
            "macro_f1": sklearn.f1_score(targets, said, average="macro", zero_division=0),
            "micro_f1": sklearn.f1_score(targets, said, average="micro", zero_division=0),
            "exact": sklearn.accuracy_score(targets, said),
            "loss": sklearn.log_loss(targets.ravel(), shares.ravel(), labels=[0, 1]),
        }
        assert scores.pop("ece") >= 0
        assert scores == pytest.approx(expected, abs=EXACT)
        rows = [(each.precision, each.recall, each.f1, each.count) for each in found.per_class]
        theirs = sklearn.precision_recall_fscore_support(targets, said, zero_division=0)
        assert np.array(rows) == pytest.approx(np.transpose(theirs), abs=EXACT)
        assert [each.threshold for each in found.per_class] == pytest.approx(thresholds.tolist(), abs=0)
        assert found.confusion is None


def test_half_is_the_threshold_by_default(sklearn: ModuleType) -> None:
    logits, targets = several_labels(60, 4, 4, 0.5, 1)
    assert (logits == 0).any(), "one half itself must occur: it counts as said"
    found = evaluation_of(logits, targets, task="multi-label", resamples=0)
    expected = sklearn.f1_score(targets, logits >= 0, average="macro", zero_division=0)
    assert found.scores["macro_f1"].value == pytest.approx(expected, abs=EXACT)


# ---- single pieces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_average_precision_with_ties(sklearn: ModuleType, seed: int) -> None:
    """Scores of few different values; weights count images as often as repeating them would."""
    dice = np.random.default_rng(seed)
    count = int(dice.integers(2, 200))
    scores, marks = dice.integers(0, 4, count) / 4, dice.random(count) < 0.3
    marks[0] = True
    ranking = rank(scores, marks)
    assert precision_of(ranking) == pytest.approx(sklearn.average_precision_score(marks, scores), abs=EXACT)
    times = dice.integers(0, 4, count)
    times[0] = 1
    again = np.repeat(np.arange(count), times)
    expected = sklearn.average_precision_score(marks[again], scores[again])
    assert precision_of(ranking, times.astype(float)) == pytest.approx(expected, abs=EXACT)


def test_average_precision_by_hand() -> None:
    """Own images at places 1, 3 and 4: (1 + 2/3 + 3/4) / 3; with all scores equal, the share of own images."""
    scores, marks = np.array([0.9, 0.8, 0.7, 0.6, 0.5]), np.array([1, 0, 1, 1, 0])
    assert precision_of(rank(scores, marks)) == pytest.approx((1 + 2 / 3 + 3 / 4) / 3, abs=1e-15)
    assert precision_of(rank(np.zeros(5), marks)) == pytest.approx(0.6, abs=1e-15)
    assert precision_of(rank(scores, np.zeros(5))) == 0.0
    table = np.stack([scores, scores[::-1]], axis=1)
    both = np.stack([marks, marks], axis=1)
    expected = [(1 + 2 / 3 + 3 / 4) / 3, (1 / 2 + 2 / 3 + 3 / 5) / 3]
    assert average_precision(table, both) == pytest.approx(expected, abs=1e-15)
    assert mean_average_precision(table, both) == pytest.approx(np.mean(expected), abs=1e-15)
    number = average_precision(table, 1 - marks)  # class numbers: the first class is where marks are 1
    assert number == pytest.approx([expected[0], (1 + 2 / 4) / 2], abs=1e-15)


def test_the_first_of_equal_classes_wins() -> None:
    """As argmax: a class counts as before the truth if it is better, or equal and earlier."""
    scores = np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 2.0], [3.0, 1.0, 1.0]])
    assert answers(scores).tolist() == [0, 1, 0]
    assert places(scores, np.array([2, 1, 2])).tolist() == [2, 0, 2]
    assert top_k(np.full((4, 3), np.nan), np.zeros(4, np.int64)) == 0.0
    assert top_k(scores, np.array([0, 2, 1])) == pytest.approx(1 / 3)
    assert top_k(scores, np.array([0, 2, 1]), 2) == 1.0
    assert top_k(scores, np.array([2, 2, 2]), 2) == pytest.approx(1 / 3)


def test_confusion_rows_are_the_truth() -> None:
    found = confusion(np.array([0, 0, 2, 2, 2]), np.array([1, 0, 2, 2, 0]), 3)
    assert found.tolist() == [[1, 1, 0], [0, 0, 0], [1, 0, 2]]


def test_losses_are_not_clipped() -> None:
    """Where a probability is 0 in float64 the loss is still the distance of the logits."""
    assert losses(np.array([[0.0, 900.0]]), np.array([0])) == pytest.approx([900.0])
    assert losses(np.array([[900.0, -900.0]]), np.array([[0, 1]])) == pytest.approx([900.0])
    assert losses(np.array([[0.0, 900.0]]), np.array([0]), temperature=9.0) == pytest.approx([100.0])
    assert losses(np.array([[1e4, 1e4]]), np.array([1])) == pytest.approx([np.log(2)])


def test_no_score_depends_on_the_order_of_images() -> None:
    logits, targets = one_label(90, 7, 6, 0.5, 3)
    turned = np.random.default_rng(0).permutation(90)
    first = evaluation_of(logits, targets, resamples=0)
    second = evaluation_of(logits[turned], targets[turned], resamples=0)
    for name, score in first.scores.items():
        assert second.scores[name].value == pytest.approx(score.value, abs=1e-12), name
    assert second.per_class == first.per_class
