"""Deletion and insertion from their definition, the baselines, and the check with shuffled weights."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from insight.small import build
from vitrail.insight import Best, explain_pixels
from vitrail.insight.covering import Ask
from vitrail.insight.drawing import Drawn
from vitrail.insight.faithfulness import area, centre_first, curves, order_of, random_orders, scores_of
from vitrail.insight.judging import Candidate, judged
from vitrail.insight.methods import Relevance
from vitrail.insight.recording import Answer, asked
from vitrail.insight.sanity import outlying, rank_correlation, shuffled
from vitrail.insight.targets import Aim, aim_at


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(5))


def test_curves_by_hand(pixels: Tensor) -> None:
    model = build()
    picture = pixels[0]
    aim = aim_at(2, asked(model, pixels[:1]).logits[0])
    order = np.array([4, 0, 5, 2, 1, 3])
    [found] = curves(partial(asked, model), picture, (2, 3), [order], aim)

    def probability(gone: list[int]) -> float:
        changed = picture.clone()
        for patch in gone:
            row, column = divmod(patch, 3)
            for channel in range(3):
                changed[channel, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = picture[channel].mean()
        with torch.no_grad():
            return float(model(changed[None]).softmax(dim=1)[0, 2])

    deletion = [probability(list(order[:count])) for count in range(7)]
    insertion = [probability(list(order[count:])) for count in range(7)]
    np.testing.assert_allclose(found.deletion, deletion, atol=1e-6)
    np.testing.assert_allclose(found.insertion, insertion, atol=1e-6)
    steps = sum((a + b) / 2 / 6 for a, b in pairwise(deletion))
    assert area(found.shares, found.deletion) == pytest.approx(steps)


def bright(place: int) -> tuple[Ask, Aim]:
    """A network that looks at one patch alone, of 4 x 4 patches of 2 pixels."""
    row, column = divmod(place, 4)

    def ask(pixels: Tensor) -> Answer:
        level = pixels[:, 0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean(dim=(1, 2))
        return Answer(torch.stack((level * 4, torch.zeros_like(level)), dim=1), level[:, None])

    return ask, aim_at(0, torch.zeros(2))


@pytest.mark.parametrize("place", [0, 5, 15])
def test_the_right_map_beats_the_wrong_one_chance_and_the_centre(place: int) -> None:
    pixels = torch.full((1, 8, 8), -0.2)
    row, column = divmod(place, 4)
    pixels[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = 1.0
    right = np.zeros((4, 4))
    right[row, column] = 1
    ask, aim = bright(place)
    [good, bad], _ = scores_of(ask, pixels, [right, -right], aim)
    assert good.gain > 0.1
    assert bad.gain < -0.1
    assert good.deletion < good.random_deletion < bad.deletion
    assert good.insertion > good.random_insertion > bad.insertion
    if place in (0, 15):
        assert good.gain_over_centre > 0.1


def test_orders() -> None:
    assert order_of(np.array([[0.1, 0.5], [0.5, 0.9]])).tolist() == [3, 1, 2, 0]
    assert centre_first((3, 3))[0] == 4
    assert set(centre_first((3, 5))[:3].tolist()) == {6, 7, 8}
    one, two = random_orders(2, 50, 1), random_orders(2, 50, 1)
    assert all(sorted(each.tolist()) == list(range(50)) for each in one)
    assert [each.tolist() for each in one] == [each.tolist() for each in two]
    assert one[0].tolist() != one[1].tolist()


def test_rank_correlation_is_scipys() -> None:
    dice = np.random.default_rng(0)
    for _ in range(20):
        a, b = dice.integers(0, 6, (3, 5)), dice.integers(0, 9, (3, 5))
        assert rank_correlation(a, b) == pytest.approx(scipy.stats.spearmanr(a.ravel(), b.ravel()).statistic)
    flat = np.zeros((3, 5))
    assert rank_correlation(flat, flat) == 1.0
    assert rank_correlation(a, flat) == 0.0


def test_shuffled_weights_are_the_same_numbers_elsewhere() -> None:
    model = build()
    other = shuffled(model, 3)
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.detach().flatten().sort().values, two.detach().flatten().sort().values)
        if one.numel() > 20:
            assert not torch.equal(one, two), name
    for one, two in zip(shuffled(model, 3).parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_constant_map_is_flagged(pixels: Tensor) -> None:
    """A map that weights do not change is no explanation of them, however faithful it happens to be."""
    model = build()
    aim = aim_at(1, asked(model, pixels[:1]).logits[0])
    centre = -np.array([[0.5, 0.1, 0.4], [0.6, 0.2, 0.3]])
    found = judged(partial(asked, model), pixels[0], [Candidate(Relevance(), Drawn(centre), centre)], aim, 0.5)
    assert found.shuffled == pytest.approx(1)
    assert any("hardly depends on the weights" in each for each in found.warnings)
    flat = np.full((2, 3), 0.25)
    found = judged(partial(asked, model), pixels[0], [Candidate(Relevance(), Drawn(flat), flat)], aim, 0.5)
    assert any("the map is flat" in each for each in found.warnings)
    assert not found.reliable


def test_best_takes_the_most_faithful_that_depends_on_the_weights(pixels: Tensor) -> None:
    model = build()
    for row, each in enumerate(explain_pixels(model, pixels, "best", 2)):
        assert len(each.tried) == len(Best().among)
        alone = {name: explain_pixels(model, pixels, name, 2)[row] for name in Best().among}
        for name, one in alone.items():
            assert one.scores is not None
            assert each.tried[name].gain == pytest.approx(one.scores.gain, abs=1e-6)
        free = {name: one for name, one in alone.items() if abs(one.shuffled or 0) < 0.9}
        best = max(free or alone, key=lambda name: each.tried[name].gain)
        assert each.method == best
        np.testing.assert_array_equal(each.map, alone[best].map)


def test_a_map_that_weights_do_not_change_is_not_the_best() -> None:
    ask, aim = bright(0)
    pixels = torch.full((1, 8, 8), -0.2)
    pixels[0, :2, :2] = 1.0
    right = np.zeros((4, 4))
    right[0, 0] = 1
    other = np.arange(16.0).reshape(4, 4)
    candidates = [
        Candidate(Relevance(), Drawn(right), right),
        Candidate(Best(("rollout",)), Drawn(other), np.random.default_rng(0).random((4, 4))),
    ]
    assert judged(ask, pixels, candidates, aim, 0.9).method == candidates[1].method.words


def test_outlying_tokens_are_found_and_told() -> None:
    hidden = torch.ones(2, 3 + 6, 4)
    hidden[0, 5] = 20.0
    hidden[1, 1] = 50.0  # a register may be as large as it likes
    found = outlying(hidden, 3)
    assert found.tolist() == [[False, False, True, False, False, False], [False] * 6]
    ask, aim = bright(0)
    values = np.zeros((4, 4))
    values[0, 0] = 1
    marks = np.zeros((4, 4), bool)
    for place, said in (((0, 0), 1), ((3, 3), 0)):
        marks[:] = False
        marks[place] = True
        pixels = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1))
        values[3, 3] = 0.0
        spread = values + np.arange(16).reshape(4, 4)[::-1] * 1e-3
        found_one = judged(ask, pixels, [Candidate(Relevance(), Drawn(spread), None, marks)], aim, 0.5)
        assert sum("far larger than the others" in each for each in found_one.warnings) == said


def test_what_is_not_checked_says_so(pixels: Tensor) -> None:
    [one, _] = explain_pixels(build(), pixels, "rollout", check=False)
    assert one.scores is None
    assert one.shuffled is None
    assert one.outliers is None
    assert one.to_dict()["scores"] is None


def test_steps_of_unequal_width_count_by_their_width() -> None:
    """Sixteen patches in twelve steps: some steps take two patches."""
    pixels = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1))
    ask, aim = bright(0)
    [found] = curves(ask, pixels, (4, 4), [np.arange(16)], aim)
    steps = np.diff(found.shares)
    assert steps.min() == pytest.approx(1 / 16)
    assert steps.max() == pytest.approx(2 / 16)
    assert area(found.shares, [1.0 - each for each in found.shares]) == pytest.approx(0.5)


def test_an_outlier_on_a_map_of_zeros_is_not_marked() -> None:
    ask, aim = bright(0)
    values, marks = np.zeros((4, 4)), np.zeros((4, 4), bool)
    values[0, 0] = 1.0
    marks[3, 3] = True
    pixels = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1))
    found = judged(ask, pixels, [Candidate(Relevance(), Drawn(values), None, marks)], aim, 0.5)
    assert not any("far larger" in each for each in found.warnings)
