"""Predictions: which classes are named, and which answers are marked as not confident enough."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vitrail
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.inference import Prediction, RuntimeBase

SHARES = np.array([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.34, 0.33, 0.33]])
IMAGES = [np.zeros((20, 20, 3), np.uint8)] * 3


class Fixed(RuntimeBase):
    """The same probabilities whatever it is shown."""

    def __init__(self, **more: Any) -> None:
        self.about = ModelInfo(Preprocess(size=16, crop=1.0), ("x", "y", "z"), **more)

    def run(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = np.log(SHARES)  # in float64, so that their softmax is exact enough
        return logits, logits


def named(top: int = 3, decline: bool = False, **more: Any) -> list[str]:
    """The labels of each image; of those that are not confident with a question mark."""
    answers = vitrail.predict(Fixed(**more), IMAGES, top=top, decline=decline)
    return ["".join(each.labels) + "?" * (not each.confident) for each in answers]


def test_below_the_minimum_confidence_answers_are_marked_and_given() -> None:
    assert named() == ["xyz", "yzx", "xyz"]
    assert named(reject=0.4) == ["xyz", "yzx", "xyz?"]
    assert named(reject=0.6) == ["xyz?", "yzx?", "xyz?"]
    assert named(top=1, reject=0.6) == ["x?", "y?", "x?"]
    assert named(reject=0.4, decline=True) == ["xyz", "yzx", "?"]
    assert named(decline=True) == ["xyz", "yzx", "xyz"]
    assert [each.needed for each in vitrail.predict(Fixed(reject=0.4), IMAGES)] == [0.4] * 3
    assert [each.needed for each in vitrail.predict(Fixed(), IMAGES)] == [None] * 3


def test_classes_below_their_threshold_are_not_named() -> None:
    """Each class has a threshold of its own; where none reaches it, the likeliest are given all the same."""
    assert named(thresholds=(0.45, 0.31, 0.1)) == ["xz", "yz", "yz"]
    assert named(thresholds=(0.1, 0.4, 0.9)) == ["x", "yx", "x"]
    assert named(thresholds=(0.45, 0.4, 0.9)) == ["x", "y", "xyz?"]
    assert named(thresholds=(0.45, 0.4, 0.9), top=2) == ["x", "y", "xy?"]
    assert named(thresholds=(0.45, 0.4, 0.9), decline=True) == ["x", "y", "?"]
    first, second, last = vitrail.predict(Fixed(thresholds=(0.45, 0.4, 0.9)), IMAGES)
    assert (first.needed, second.needed, last.needed) == (0.45, 0.4, 0.45)
    assert last.remark == "not confident enough (34 %, needs 45 %)"
    assert named(reject=0.4, thresholds=(0.45, 0.31, 0.1)) == ["xz", "yz", "yz?"]


@pytest.mark.parametrize(
    "probability, needed, words",
    [
        (0.6, 0.74, "60 %, needs 74 %"),
        (0.7361, 0.74, "73.6 %, needs 74.0 %"),  # of two equal numbers one would not be less
        (0.73996, 0.74, "73.996 %, needs 74.000 %"),
    ],
)
def test_the_remark_in_words(probability: float, needed: float, words: str) -> None:
    answer = Prediction("a.jpg", ("ant",), (probability,), False, needed)
    assert answer.remark == f"not confident enough ({words})"
    assert answer._replace(confident=True).remark == ""
    assert answer._replace(labels=(), probabilities=()).remark == "declined (needs 74 %)"


def test_an_answer_prints_as_on_the_command_line() -> None:
    sure = Prediction("new/2.jpg", ("two", "one"), (0.93674, 0.0561))
    assert repr(sure) == "Prediction(new/2.jpg: two 93.7 %, one 5.6 %)"
    strange = sure._replace(unlike=True, confident=False, needed=0.95)
    assert repr([strange]) == (
        "[Prediction(new/2.jpg: two 93.7 %, one 5.6 %; not confident enough (94 %, needs 95 %); "
        "unlike anything it was trained on)]"
    )
    assert repr(strange._replace(labels=(), probabilities=(), unlike=None)) == (
        "Prediction(new/2.jpg: declined (needs 95 %))"
    )
    assert "\x1b" not in repr(sure._replace(path="\x1b[2J.jpg"))


def test_three_fields_are_enough() -> None:
    plain = Prediction("a.jpg", ("ant",), (0.9,))
    assert (plain.confident, plain.needed, plain.remark) == (True, None, "")
    assert Prediction(path="b", labels=(), probabilities=()).remark == ""
