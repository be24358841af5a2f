"""Evaluation: what stands beside the scores, worked out by hand; plain JSON; wrong input refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evaluation.zoo import PETS, SHARES, TARGETS
from vitrail.errors import InputError
from vitrail.evaluation import Evaluation, evaluation_of

Array = np.ndarray[Any, Any]


def test_what_stands_beside_the_scores(pets: Evaluation) -> None:
    assert (pets.source, pets.split, pets.task, pets.classes, pets.names) == (
        "zoo",
        "val",
        "single-label",
        PETS,
        tuple("abcdef"),
    )
    assert pets.confusion is not None
    assert pets.confusion.tolist() == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
    assert pets.probabilities == pytest.approx(SHARES)
    assert pets.absent == ("owl",)
    cat, dog, owl = pets.per_class
    assert cat[:2] == ("cat", 3)
    assert cat[2:5] == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert cat.average_precision == pytest.approx((1 / 2 + 2 / 3 + 3 / 4) / 3)  # the dog of 0.96 stands before them
    assert dog.average_precision == pytest.approx((1 / 1 + 2 / 3 + 3 / 6) / 3)
    assert owl == ("owl", 0, 0, 0, 0, 0, None)
    assert pets.scores["top1"].value == pytest.approx(4 / 6)
    assert pets.scores["macro_f1"].value == pytest.approx(2 / 3), "over cats and dogs: no owl is shown or said"
    assert "top5" not in pets.scores


def test_the_worst_come_first(pets: Evaluation) -> None:
    """Only wrong answers, by their loss: the dog that is surely a cat, then the cat that is rather a dog."""
    first, second = pets.worst
    assert first[:4] == (3, "d", ("dog",), ("cat",))
    assert (first.probability, first.loss) == pytest.approx((0.96, -math.log(0.02)))
    assert second[:4] == (2, "c", ("cat",), ("dog",))
    assert (second.probability, second.loss) == pytest.approx((0.6, -math.log(0.3)))


def test_the_most_confused_come_first() -> None:
    """By how many images, then by the share of the truth's images."""
    targets = np.repeat([0, 1, 2], [10, 4, 2])
    said = np.array([0] * 7 + [1] * 3 + [1, 1, 0, 2] + [2, 0])
    found = evaluation_of(np.eye(3)[said], targets, classes=PETS, resamples=0).most_confused
    assert [each[:3] for each in found] == [("cat", "dog", 3), ("owl", "cat", 1), ("dog", "cat", 1), ("dog", "owl", 1)]
    assert [each.share for each in found] == pytest.approx([0.3, 0.5, 0.25, 0.25])


def test_what_the_reject_threshold_lets_through(pets: Evaluation) -> None:
    """Confidences 0.7, 0.5, 0.6, 0.96, 0.8, 0.5: four pass 0.55, of which two are right."""
    assert (pets.answered, pets.answered_top1) == pytest.approx((4 / 6, 0.5))
    open_minded = evaluation_of(np.log(SHARES), TARGETS, resamples=0)
    assert (open_minded.answered, open_minded.answered_top1) == pytest.approx((1, 4 / 6))
    silent = evaluation_of(np.log(SHARES), TARGETS, reject=0.99, resamples=0)
    assert (silent.answered, silent.answered_top1) == (0.0, None)


def test_the_temperature_changes_probabilities_not_answers() -> None:
    hot = evaluation_of(np.log(SHARES), TARGETS, temperature=2.0, resamples=0)
    roots = np.sqrt(SHARES)
    assert hot.probabilities == pytest.approx(roots / roots.sum(axis=1, keepdims=True))
    assert hot.logits == pytest.approx(np.log(SHARES)), "as the network gave them"
    assert hot.scores["top1"].value == pytest.approx(4 / 6)
    expected = -np.log(hot.probabilities[np.arange(6), TARGETS]).mean()
    assert hot.scores["loss"].value == pytest.approx(expected)


def test_several_labels() -> None:
    """Right is only who says every label: the second says one too many, the third none at all."""
    logits = np.array([[2.0, -2.0, -3.0], [2.0, 1.0, -3.0], [-1.0, -2.0, -4.0]])
    targets = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]])
    found = evaluation_of(logits, targets, list("xyz"), PETS, "multi-label", reject=0.5)
    assert found.scores["exact"].value == pytest.approx(1 / 3)
    assert found.confusion is None
    assert found.most_confused == ()
    assert found.absent == ("owl",)
    first, second = found.worst
    assert first[:4] == (2, "z", ("dog",), ())
    assert math.isnan(first.probability)
    assert first.loss == pytest.approx(np.mean([math.log1p(math.exp(each)) for each in (-1, 2, -4)]))
    assert second[:4] == (1, "y", ("cat",), ("cat", "dog"))
    assert second.probability == pytest.approx(1 / (1 + math.exp(-2)))
    assert (found.answered, found.answered_top1) == (pytest.approx(2 / 3), None)
    strict = evaluation_of(logits, targets, None, PETS, "multi-label", thresholds=(0.5, 0.8, 0.5), resamples=0)
    assert strict.scores["exact"].value == pytest.approx(2 / 3)
    assert [each.threshold for each in strict.per_class] == [0.5, 0.8, 0.5]


def test_a_confidence_at_the_reject_threshold_is_answered() -> None:
    found = evaluation_of(np.array([[1.0, 1.0], [0.0, 2.0]]), np.array([0, 0]), reject=0.5, resamples=0)
    assert (found.answered, found.answered_top1) == (1.0, 0.5)


def test_the_first_fifty_are_listed() -> None:
    """Of 60 wrong answers, and of 60 pairs of classes, the worst."""
    targets = np.arange(60)
    logits = np.zeros((60, 60))
    logits[targets, (targets + 1) % 60] = 1 + targets
    found = evaluation_of(logits, targets, resamples=0)
    assert [each.row for each in found.worst] == list(range(59, 9, -1))
    assert len(found.most_confused) == 50


def test_top5_of_more_than_five_classes() -> None:
    logits = -np.arange(6.0)[None].repeat(6, axis=0)
    found = evaluation_of(logits, np.arange(6), resamples=0)
    assert (found.scores["top1"].value, found.scores["top5"].value) == pytest.approx((1 / 6, 5 / 6))
    assert found.names == tuple("012345") == found.classes


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"targets": np.array([0, 1, 5, 0, 0, 0])}, "from 0 to 2, got 5"),
        ({"targets": np.array([0, -1, 0, 0, 0, 0])}, "from 0 to 2, got -1"),
        ({"targets": np.array([0, 0.5, 0, 0, 0, 0])}, "from 0 to 2, got 0.5"),
        ({"targets": np.array([0, 1])}, r"expected targets of shape \(6,\) beside logits \(6, 3\), got \(2,\)"),
        ({"task": "multi-label"}, r"expected targets of shape \(6, 3\)"),
        ({"task": "multi-label", "targets": np.full((6, 3), 2)}, "from 0 to 1, got 2"),
        ({"task": "both"}, "expected 'single-label' or 'multi-label', got 'both'"),
        ({"logits": np.zeros((0, 3)), "targets": np.zeros(0, int)}, "logits of some images"),
        ({"logits": np.zeros(6)}, r"got shape \(6,\)"),
        ({"classes": ("cat", "dog")}, "classes: expected 3, got 2: cat, dog"),
        ({"names": ("a", "b")}, "names: expected 6, got 2"),
        ({"resamples": -1}, "resamples: expected a whole number from 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        evaluation_of(**{"logits": np.log(SHARES), "targets": TARGETS, **changes})


def test_thresholds_must_be_one_a_label() -> None:
    with pytest.raises(InputError, match="thresholds: expected 2, one a label, got 3"):
        evaluation_of(np.zeros((2, 2)), np.eye(2), task="multi-label", thresholds=(0.1, 0.2, 0.3))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_name_the_image(value: float) -> None:
    logits = np.log(SHARES)
    logits[[2, 4], 1] = value
    with pytest.raises(InputError, match=r"the logits of c are no numbers \(2 such images\): the network is broken"):
        evaluation_of(logits, TARGETS, list("abcdef"))
