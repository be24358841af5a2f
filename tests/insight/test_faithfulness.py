"""Deletion and insertion from their definition, the baselines, and the check with shuffled weights."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from insight.patches import bright
from insight.small import build
from vitrail.insight import Best, explain_pixels
from vitrail.insight.activations import asked
from vitrail.insight.attention_methods import Relevance
from vitrail.insight.attribution import Attribution
from vitrail.insight.faithfulness import area, centre_first, curves, order_of, random_orders, scores_of
from vitrail.insight.map_scores import Candidate, score_maps
from vitrail.insight.sanity import outlying, rank_correlation, shuffled
from vitrail.insight.targets import aim_at


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(5))


def test_curves_by_hand(pixels: Tensor) -> None:
    model = build()
    image = pixels[0]
    aim = aim_at(2, asked(model, pixels[:1]).logits[0])
    order = np.array([4, 0, 5, 2, 1, 3])
    [found] = curves(partial(asked, model), image, (2, 3), [order], aim)

    def probability(gone: list[int]) -> float:
        changed = image.clone()
        for patch in gone:
            row, column = divmod(patch, 3)
            for channel in range(3):
                changed[channel, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = image[channel].mean()
        with torch.no_grad():
            return float(model(changed[None]).softmax(dim=1)[0, 2])

    deletion = [probability(list(order[:count])) for count in range(7)]
    insertion = [probability(list(order[count:])) for count in range(7)]
    np.testing.assert_allclose(found.deletion, deletion, atol=1e-6)
    np.testing.assert_allclose(found.insertion, insertion, atol=1e-6)
    steps = sum((a + b) / 2 / 6 for a, b in pairwise(deletion))
    assert area(found.shares, found.deletion) == pytest.approx(steps)


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
        assert (good.insertion - good.deletion) - (good.centre_insertion - good.centre_deletion) > 0.1


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
    found = score_maps(
        partial(asked, model), pixels[0], [Candidate(Relevance(), Attribution(centre), centre)], aim, 0.5
    )
    assert found.shuffled == pytest.approx(1)
    assert any("hardly depends on the weights" in each for each in found.warnings)
    flat = np.full((2, 3), 0.25)
    found = score_maps(partial(asked, model), pixels[0], [Candidate(Relevance(), Attribution(flat), flat)], aim, 0.5)
    assert any("the map is flat" in each for each in found.warnings)
    assert not found.reliable


@pytest.mark.parametrize("size, large", [(2.0, False), (2.9, False), (3.1, True), (4.5, True)])
def test_a_token_is_outlying_from_three_times_the_median_on(size: float, large: bool) -> None:
    """The median of the patches of its own image: in the second all are ten times as large."""
    hidden = torch.nn.functional.normalize(torch.randn(2, 2 + 9, 4), dim=-1)
    hidden[1] *= 10
    hidden[:, 2 + 5] *= size
    hidden[:, 0] *= 1000  # a prefix token is no patch
    expected = [[large and place == 5 for place in range(9)]] * 2
    assert outlying(hidden[:, 2:]).tolist() == expected


def test_chance_is_the_mean_of_three_orders_that_the_seed_decides() -> None:
    pixels = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(1))
    ask, aim = bright(5)
    values = np.arange(16.0).reshape(4, 4)
    [found], _ = scores_of(ask, pixels, [values], aim, seed=7)
    dice = np.random.default_rng(7)
    orders = [dice.permutation(16) for _ in range(3)]
    each = curves(ask, pixels, (4, 4), [*orders, centre_first((4, 4))], aim)
    deletion = [area(one.shares, one.deletion) for one in each]
    insertion = [area(one.shares, one.insertion) for one in each]
    assert (found.random_deletion, found.random_insertion) == pytest.approx(
        (sum(deletion[:3]) / 3, sum(insertion[:3]) / 3)
    )
    assert (found.centre_deletion, found.centre_insertion) == pytest.approx((deletion[3], insertion[3]))
    assert found.gain == pytest.approx(
        (found.insertion - found.deletion) - (sum(insertion[:3]) - sum(deletion[:3])) / 3
    )


def test_an_image_is_taken_away_in_twelve_pieces() -> None:
    pixels = torch.rand(1, 48, 48, generator=torch.Generator().manual_seed(1))
    ask, aim = bright(0)
    [found] = curves(ask, pixels, (24, 24), [np.arange(576)], aim)
    assert found.shares == pytest.approx([piece / 12 for piece in range(13)])


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


def test_outlying_tokens_are_found_and_told() -> None:
    hidden = torch.ones(2, 3 + 6, 4)
    hidden[0, 5] = 20.0
    hidden[1, 1] = 50.0  # a register may be as large as it likes
    found = outlying(hidden[:, 3:])
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
        found_one = score_maps(ask, pixels, [Candidate(Relevance(), Attribution(spread), None, marks)], aim, 0.5)
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


def test_an_area_is_of_trapezoids_as_wide_as_their_steps() -> None:
    assert area([0, 0.1, 1], [1, 1, 0]) == pytest.approx(0.1 + 0.45)
    assert area([0, 0.75, 1], [0, 0.5, 1]) == pytest.approx(0.75 * 0.25 + 0.25 * 0.75)
