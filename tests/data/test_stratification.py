"""Shares of classes: rounded to the nearest, never the last image of train, first come, first served."""

from __future__ import annotations

import numpy as np
import pytest

from data.named_samples import counts, dataset, of_sizes
from vitrail.data import Sample, split
from vitrail.data.stratification import TEST, TRAIN, VAL, by_unit, quotas


@pytest.mark.parametrize("val, test", [(0.2, 0.0), (0.1, 0.2), (0.5, 0.45), (0.0, 0.3), (0.01, 0.01)])
def test_shares_hold_within_one_for_every_size(val: float, test: float) -> None:
    sizes = {f"c{size:02}": size for size in range(1, 41)}
    found = split(of_sizes(**sizes), val=val, test=test).dataset
    for name, (train, held, tested) in counts(found).items():
        size = sizes[name]
        assert train + held + tested == size
        assert train >= 1
        assert abs(held - val * size) <= 1
        assert abs(tested - test * size) <= 1
        wanted = [share > 0 for share in (val, test)]
        assert (held > 0) == (wanted[0] and size >= 2)
        assert (tested > 0) == (wanted[1] and size >= 2 + wanted[0])


def test_shares_are_rounded_to_the_nearest() -> None:
    found = counts(split(of_sizes(a=13, b=18, c=15), val=0.2, test=0.1).dataset)
    assert found == {"a": [9, 3, 1], "b": [12, 4, 2], "c": [10, 3, 2]}  # 2.6 and 1.3, 3.6 and 1.8, 3 and 1.5: halves up


def test_large_shares_leave_one_image_in_train() -> None:
    found = counts(split(of_sizes(a=3, b=4, c=40), val=0.9, test=0.05).dataset)
    assert found == {"a": [1, 1, 1], "b": [1, 2, 1], "c": [2, 36, 2]}


@pytest.mark.parametrize("seed", range(8))
def test_the_rarest_label_chooses_first(seed: int) -> None:
    samples = [Sample(str(n), ("all", "rare") if n % 100 == 7 else ("all",)) for n in range(400)]
    found = split(dataset(samples, "multi-label"), val=0.2, test=0.1, seed=seed).dataset
    assert counts(found) == {"all": [280, 80, 40], "rare": [2, 1, 1]}


@pytest.mark.parametrize("shares", [(0.2, 0.0), (0.15, 0.1), (0.0, 0.3), (0.5, 0.4)])
def test_the_first_images_of_a_class_go_to_val_and_the_next_to_test(shares: tuple[float, float]) -> None:
    for seed in range(20):
        dice = np.random.default_rng(seed)
        classes = dice.integers(0, 9, dice.integers(1, 120)) ** 2 // 8  # uneven, some empty
        places = dice.random(len(classes))
        found = by_unit([((int(each), 1),) for each in classes], places, shares)
        sizes = np.bincount(classes)
        for kind, wanted in enumerate(quotas(sizes, sizes, shares).tolist()):
            rows = np.flatnonzero(classes == kind)
            order = rows[np.argsort(places[rows])]
            expected = np.repeat([VAL, TEST, TRAIN], [*wanted, len(rows) - sum(wanted)])
            assert np.array_equal(found[order], expected), (seed, kind)
