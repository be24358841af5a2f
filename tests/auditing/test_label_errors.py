"""Suspects: planted wrong labels stand at the top of the list, on drawn features and on a real network's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitrail
from vitrail.auditing.auditor import audit
from vitrail.auditing.label_errors import judge, judge_several, rank
from vitrail.data.readers import read_data
from vitrail.errors import InputError
from vitrail.images import Preprocess

Array = np.ndarray[Any, Any]


def planted(seed: int = 0, each: int = 60, classes: int = 5, apart: float = 3.0) -> tuple[Array, Array, Array, Array]:
    """Features around a centre for each class, true numbers, given ones, and the rows where these are wrong: 5 %."""
    dice = np.random.default_rng(seed)
    truth = np.repeat(np.arange(classes), each)
    centres = dice.normal(size=(classes, 16))
    features = (apart * centres[truth] + dice.normal(size=(len(truth), 16))).astype(np.float32)
    wrong = np.sort(dice.permutation(len(truth))[: len(truth) // 20])
    given = truth.copy()
    given[wrong] = (truth[wrong] + dice.integers(1, classes, len(wrong))) % classes
    return features, truth, given, wrong


def test_planted_errors_are_found_with_the_right_label() -> None:
    """Classes well apart: nearly all of them, and nothing else."""
    features, truth, given, wrong = planted()
    found = judge(features, given)
    assert {each.row for each in found.doubts} <= set(wrong)
    assert len(found.doubts) >= 13  # of 15
    assert all(each.suggested == truth[each.row] and each.given == given[each.row] for each in found.doubts)
    assert found.agreement == pytest.approx(0.95, abs=0.001)
    assert found.judged == 300
    scores = [each.score for each in found.doubts]
    assert scores == sorted(scores, reverse=True)
    assert all(0.9 < score <= 1 for score in scores)


def test_most_of_the_list_is_planted_where_classes_overlap() -> None:
    """Precision among as many as were planted, and recall, over three sets; probes agree with eight of ten labels."""
    hits = listed = top = planted_in_all = 0
    for seed in range(3):
        features, _, given, wrong = planted(seed, apart=0.75)
        found = judge(features, given)
        assert 0.7 < found.agreement < 0.93
        rows = [each.row for each in found.doubts]
        top += len(set(rows[: len(wrong)]) & set(wrong))
        hits += len(set(rows) & set(wrong))
        listed += len(rows)
        planted_in_all += len(wrong)
    assert top / planted_in_all > 0.65
    assert hits / planted_in_all > 0.65
    assert hits / listed > 0.6


def test_right_labels_raise_no_doubt() -> None:
    features, truth, _, _ = planted()
    assert judge(features, truth).doubts == []


def test_a_network_finds_wrong_labels_of_real_images(fixtures: Path) -> None:
    """ViT-Ti/16 on 160 photos of fruit at 96 pixels, eight of them mislabelled."""
    dataset = read_data(str(fixtures / "fruits360_10" / "train"))
    rows = [row for row in range(len(dataset)) if row % 100 in range(0, 96, 6)]
    dice = np.random.default_rng(4)
    wrong = sorted(dice.permutation(len(rows))[:8].tolist())
    chosen = dataset.select(rows)
    samples = list(chosen.samples)
    for place in wrong:
        others = [name for name in chosen.classes if name != samples[place].labels[0]]
        samples[place] = samples[place]._replace(labels=(others[int(dice.integers(9))],))
    network = vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors")
    small = dataclasses.replace(network, preprocess=Preprocess(size=96, crop=1.0))
    found = audit(dataclasses.replace(chosen, samples=tuple(samples)), checkpoint=small)
    names = {samples[place].name: chosen.samples[place].labels for place in wrong}
    listed = [each.name for each in found.suspects]
    assert len(set(listed[:8]) & set(names)) >= 7
    assert len(listed) <= 10
    assert all(each.suggested == names[each.name] for each in found.suspects if each.name in names)
    assert found.agreement == pytest.approx(0.95, abs=0.04)


def test_rank_by_hand() -> None:
    """Usual probability of class 0: (0.9 + 0.6 + 0.03) / 3 = 0.51; of 1: (0.8 + 0.04) / 2 = 0.42; nobody has 2."""
    probabilities = np.array(
        [[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.03, 0.97, 0.0], [0.2, 0.8, 0.0], [0.0, 0.04, 0.96]], np.float64
    )
    [doubt] = rank(probabilities, np.array([0, 0, 0, 1, 1]))
    assert doubt[:3] == (2, 0, 1)
    assert doubt.score == pytest.approx(1 - 0.03 / 0.51)
    assert doubt.confidence == 0.03


def test_a_hard_class_has_a_measure_of_its_own() -> None:
    """Images of class 0 usually get 0.12: one with 0.011 is no stranger than 0.09 where 1 is usual."""
    easy = np.tile([0.0, 1.0], (20, 1))
    hard = np.tile([0.12, 0.88], (20, 1))
    hard[0] = [0.02, 0.98]
    targets = np.repeat([1, 0], 20)
    assert rank(np.concatenate([easy, hard]), targets) == []
    hard[0] = [0.005, 0.995]
    assert [each.row for each in rank(np.concatenate([easy, hard]), targets)] == [20]


@pytest.mark.parametrize("own, doubted", [(0.07, True), (0.095, True), (0.105, False), (0.14, False)])
def test_a_label_is_doubted_below_a_tenth_of_its_usual_probability(own: float, doubted: bool) -> None:
    """Images of class 0 usually get 0.5, this one its share of that."""
    rest = np.tile([0.5, 0.5], (20, 1))
    one = (20 * 0.5 * own) / (21 - own)  # a share `own` of the mean, itself among the 21
    sure = np.tile([0.0, 1.0], (20, 1))
    shares = np.concatenate([rest, [[one, 1 - one]], sure])
    found = rank(shares, np.repeat([0, 1], [21, 20]))
    assert [each.row for each in found] == [20] * doubted
    assert [each.score for each in found] == pytest.approx([1 - own] * doubted)


@pytest.mark.parametrize("share, doubted", [(0.35, False), (0.48, False), (0.52, True), (0.7, True)])
def test_another_label_is_believed_from_half_its_usual_probability_on(share: float, doubted: bool) -> None:
    """Images of class 1 are usually sure; of a stray one it gets this share, and all other classes still less."""
    sure = np.tile([0.0, 1.0, 0.0, 0.0, 0.0], (20, 1))
    own = np.tile([1.0, 0.0, 0.0, 0.0, 0.0], (20, 1))
    rest = (1 - share) / 3
    own[0] = [0.0, share, rest, rest, rest]
    found = rank(np.concatenate([own, sure]), np.repeat([0, 1], 20))
    assert [(each.row, each.suggested) for each in found] == [(0, 1)] * doubted


def test_a_class_of_as_many_images_as_folds_is_judged() -> None:
    features, truth, _, _ = planted(each=20, classes=3)
    for count, judged in ((4, 40), (5, 45), (6, 46)):
        rows = np.flatnonzero((truth < 2) | (np.cumsum(truth == 2) <= count))
        assert judge(features[rows], truth[rows]).judged == judged


def test_classes_too_small_are_not_judged() -> None:
    """Four images of class 7 among many; the numbers of the others need not follow each other."""
    features, _, given, wrong = planted()
    given = np.where(given >= 3, given + 10, given)
    given[:4] = 7
    found = judge(features, given)
    assert found.judged == 296
    assert {each.row for each in found.doubts} <= set(wrong) - set(range(4))
    assert len(found.doubts) >= 12
    assert {each.suggested for each in found.doubts} <= {0, 1, 2, 13, 14}
    nothing = judge(features[:8], np.repeat([0, 1], 4))
    assert nothing == ([], 1.0, 0)


def test_several_labels_are_judged_one_by_one() -> None:
    """Two independent labels; of the first, three are too many and three missing. The third is too rare to judge."""
    dice = np.random.default_rng(2)
    marks = (dice.random((240, 3)) < [0.5, 0.4, 0.0]).astype(np.float32)
    marks[:3, 2] = 1
    features = (dice.normal(size=(240, 12)) + 8 * np.pad(marks[:, :2] - 0.5, ((0, 0), (0, 10)))).astype(np.float32)
    wrong = np.concatenate([np.flatnonzero(marks[:, 0] == value)[:3] for value in (0, 1)])
    given = marks.copy()
    given[wrong, 0] = 1 - given[wrong, 0]
    first, second, third = judge_several(features, given)
    assert len(set(wrong) & {each.row for each in first.doubts}) >= 5
    assert len(first.doubts) <= 7
    assert all(each.given == given[each.row, 0] and each.suggested == 1 - each.given for each in first.doubts)
    assert second.doubts == []
    assert third == ([], 1.0, 0)
    assert first.agreement > 0.9


def test_the_same_images_give_the_same_list() -> None:
    features, _, given, _ = planted(apart=1.0)
    assert judge(features, given) == judge(features, given)


def test_arrays_must_fit() -> None:
    with pytest.raises(InputError, match=r"expected embeddings \(n, D\) and class numbers \(n,\)"):
        judge(np.zeros((4, 2)), np.zeros(5, int))
    with pytest.raises(InputError, match=r"expected embeddings \(n, D\) and marks \(n, K\)"):
        judge_several(np.zeros((4, 2)), np.zeros(4, int))
    with pytest.raises(InputError, match=r"expected finite probabilities \(n, K\)"):
        rank(np.array([[np.nan, 1.0]]), np.array([0]))
