"""Verdicts: each number of an explanation in a word, by the thresholds that the module states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitrail.insight.explanation import Explanation
from vitrail.insight.faithfulness import Curves, FaithfulnessScores
from vitrail.insight.verdicts import faithfulness, judge_numbers


def scores(gain: float, centre: float = -0.2) -> FaithfulnessScores:
    """Random orders at 0.5 and 0.5; half of the gain from each curve."""
    return FaithfulnessScores(0.5 - gain / 2, 0.5 + gain / 2, 0.5, 0.5, 0.5 - centre / 2, 0.5 + centre / 2)


@pytest.mark.parametrize(
    "gain, word, tone",
    [
        (-0.2, "none", "bad"),
        (0.0, "none", "bad"),
        (0.06, "weak", "warn"),
        (0.099, "weak", "warn"),
        (0.101, "fair", "good"),
        (0.29, "fair", "good"),
        (0.31, "strong", "good"),
    ],
)
def test_faithfulness_in_a_word(gain: float, word: str, tone: str) -> None:
    found = faithfulness(scores(gain))
    assert (found.word, found.tone) == (word, tone)
    assert found.value == pytest.approx(gain)


def test_the_line_says_what_it_means() -> None:
    assert faithfulness(scores(0.06)).line == "faithfulness: weak, +0.06; about as good as random"
    assert faithfulness(scores(-0.1)).line == "faithfulness: none, -0.10; no better than random"
    beaten = faithfulness(scores(0.2, centre=0.25))
    assert beaten.line == "faithfulness: fair, +0.20; better than random, but the middle of the image does as well"
    assert beaten.tone == "warn"
    assert faithfulness(scores(0.06, centre=0.25)).meaning == (
        "about as good as random, and the middle of the image does as well"
    )
    assert faithfulness(scores(0.5, centre=0.6)).meaning == (
        "far better than random, but the middle of the image does as well"
    )


def test_values_that_are_no_probabilities_are_measured_by_their_own_span() -> None:
    """A logit that falls from 8 to 2: a gain of 0.5 is little of 6."""
    curves = Curves((0.0, 1.0), (8.0, 2.0), (2.0, 8.0))
    assert judge_numbers(scores(0.5), None, None)[0].word == "strong"
    assert judge_numbers(scores(0.5), curves, None)[0].word == "weak"
    explanation = Explanation(np.eye(2), "rollout", "ant", 8.0, False, scores(0.5), curves)
    assert explanation.verdicts[0].word == "weak"
    assert replace(explanation, probability=True).verdicts[0].word == "strong"


def test_deletion_and_insertion_beside_chance() -> None:
    found = judge_numbers(FaithfulnessScores(0.3, 0.49, 0.5, 0.5, 0.5, 0.5), None, None)
    assert [each.line for each in found[1:]] == [
        "deletion: good, 0.30; the answer falls sooner than at random (0.50)",
        "insertion: no better, 0.49; the answer comes back as at random (0.50)",
    ]
    found = judge_numbers(FaithfulnessScores(0.6, 0.6, 0.5, 0.5, 0.5, 0.5), None, None)
    assert [each.word for each in found] == ["none", "poor", "good"]


@pytest.mark.parametrize(
    "likeness, word", [(0.1, "good"), (-0.3, "good"), (0.6, "fair"), (0.95, "poor"), (-0.95, "poor")]
)
def test_the_likeness_to_a_map_of_shuffled_weights(likeness: float, word: str) -> None:
    [found] = judge_numbers(None, None, likeness)
    assert (found.word, found.value) == (word, likeness)


def test_verdicts_go_into_json() -> None:
    explanation = Explanation(np.eye(2), "rollout", "ant", 0.5, True, scores(0.06), shuffled=0.1)
    plain = explanation.to_dict()
    assert plain["verdict"] == "weak"
    assert plain["verdicts"][0] == {
        "name": "faithfulness",
        "value": pytest.approx(0.06),
        "word": "weak",
        "meaning": "about as good as random",
    }
    assert replace(explanation, scores=None, shuffled=None).to_dict()["verdict"] is None
