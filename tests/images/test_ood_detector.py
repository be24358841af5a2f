"""OodDetector: distances as scikit-learn has them, a promise that holds, and files that carry all of it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from vitrail.errors import CheckpointError, InputError
from vitrail.images import ood_detector
from vitrail.images.ood_detector import SHRINKAGE, OodDetector, fewest, most_directions, promised_by
from vitrail.types import Array


def embeddings(count: int, width: int = 12, seed: int = 0) -> Array:
    """Correlated features of very different scales, with heavy tails."""
    mixing = np.random.default_rng(99).normal(size=(width, width)) * np.geomspace(3, 0.03, width)
    return np.random.default_rng(seed).standard_t(4, size=(count, width)) @ mixing + 5.0


@pytest.mark.parametrize("count", [200, 8])  # and fewer images than numbers in each
def test_distances_are_those_of_a_shrunk_covariance(count: int) -> None:
    theirs = pytest.importorskip("sklearn.covariance", reason="the oracle scikit-learn is not installed")
    training, others = embeddings(count), embeddings(50, seed=1)
    expected = theirs.ShrunkCovariance(shrinkage=SHRINKAGE).fit(training).mahalanobis(others)
    found = OodDetector.fit(training, embeddings(19, seed=2)).mahalanobis(others)
    assert np.allclose(found, expected, rtol=0.02)  # directions are kept in half precision


def test_directions_beyond_those_kept_share_what_variance_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ood_detector, "MOST_DIRECTIONS", 4)
    training, others = embeddings(300), embeddings(50, seed=1)
    covariance = np.cov(training.T, bias=True)
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.trace(covariance) / 12 * np.eye(12)
    variances, directions = np.linalg.eigh(covariance)
    variances[:-4] = variances[:-4].mean()
    precision = (directions / variances) @ directions.T
    centred = others - training.mean(axis=0)
    expected = np.einsum("nd,de,ne->n", centred, precision, centred)
    ood = OodDetector.fit(training, embeddings(19, seed=2))
    assert ood.directions.shape == (4, 12)
    assert np.allclose(ood.mahalanobis(others), expected, rtol=0.02)


def test_familiarity_counts_the_calibration_images_that_lie_as_far_out() -> None:
    ood = OodDetector(np.zeros(1), np.ones((1, 1)), np.ones(1), 0.0, np.arange(1.0, 20.0) ** 2)
    found = ood.familiarity(np.array([[0.5], [1.0], [18.5], [-19.0], [19.5]]))
    assert found.tolist() == [1.0, 1.0, 2 / 20, 2 / 20, 1 / 20]
    assert ood.is_unlike(found).tolist() == [False, False, False, False, True]


@pytest.mark.parametrize("calibration, expected", [(39, 2 / 40), (57, 2 / 58), (19, 1 / 20)])
def test_the_promise_holds_whatever_the_embeddings_look_like(calibration: int, expected: float) -> None:
    """False alarms over many draws: exactly the share that conformal prediction says, never above the promise."""
    alarms = []
    for seed in range(300):
        drawn = embeddings(60 + calibration + 50, width=6, seed=seed)
        ood = OodDetector.fit(drawn[:60], drawn[60 : 60 + calibration])
        alarms.append(ood.is_unlike(ood.familiarity(drawn[60 + calibration :])).mean())
    spread = np.sqrt(0.05 * 0.95 * (1 / calibration + 1 / 50) / len(alarms))
    assert abs(np.mean(alarms) - expected) < 4 * spread
    assert np.mean(alarms) < 0.05 + 4 * spread


def test_what_lies_elsewhere_is_unlike() -> None:
    ood = OodDetector.fit(embeddings(200), embeddings(59, seed=1))
    assert ood.is_unlike(ood.familiarity(embeddings(40, seed=2) * 2.0)).all()
    assert ood.is_unlike(ood.familiarity(np.full((1, 12), np.nan))).all()
    assert ood.is_unlike(ood.familiarity(np.full((1, 12), 1e30))).all()
    assert OodDetector.fit(np.ones((9, 3)), np.ones((19, 3))).familiarity(np.ones((1, 3))).tolist() == [1.0]


def test_calibrated_anew_the_gaussian_stays() -> None:
    ood = OodDetector.fit(embeddings(200), embeddings(59, seed=1))
    moved = embeddings(59, seed=1) * 1.5
    again = ood.calibrated(moved)
    assert np.array_equal(again.directions, ood.directions)
    assert ood.is_unlike(ood.familiarity(moved)).mean() > 0.5
    assert again.is_unlike(again.familiarity(moved)).mean() < 0.05


def test_so_many_images_promise_so_much() -> None:
    assert [fewest(share) for share in (0.05, 0.1, 0.01, 1.0)] == [19, 9, 99, 1]
    with pytest.raises(CheckpointError, match="cannot be promised by 18 images: expected at least 19"):
        OodDetector.fit(embeddings(60), embeddings(18, seed=1))
    assert OodDetector.fit(embeddings(60), embeddings(9, seed=1), false_alarms=0.1).distances.size == 9
    with pytest.raises(InputError, match="at least 2 training images"):
        OodDetector.fit(embeddings(1), embeddings(19, seed=1))
    with pytest.raises(InputError, match=r"expected embeddings \(n, 12\), got shape \(3, 11\)"):
        OodDetector.fit(embeddings(60), embeddings(19, seed=1)).familiarity(np.zeros((3, 11)))


def test_few_images_promise_less_and_fewer_nothing() -> None:
    assert [promised_by(count) for count in (8, 9, 11, 16, 18, 19, 5000)] == [None, 0.1, 0.09, 0.06, 0.06, 0.05, 0.05]
    assert all(fewest(promised_by(count) or 1.0) <= count for count in range(1, 60))
    wider = OodDetector.fit(embeddings(60), embeddings(30, seed=1)).calibrated(embeddings(9, seed=2), 0.1)
    assert (wider.distances.size, wider.false_alarms) == (9, 0.1)


def test_there_and_back_to_the_last_bit() -> None:
    ood = OodDetector.fit(embeddings(60), embeddings(30, seed=1))
    back = OodDetector.from_dict(json.loads(json.dumps(ood.to_dict())))
    assert (back, hash(back)) == (ood, hash(ood))
    others = embeddings(40, seed=2)
    assert np.array_equal(back.familiarity(others), ood.familiarity(others))
    assert back != ood.calibrated(embeddings(30, seed=3))
    assert back != "something else"
    assert repr(ood) == "OodDetector(12 of 12 directions, calibrated on 30 images, false alarms 5 %)"


@pytest.mark.parametrize("width", [192, 768, 1408, 4096])
def test_it_takes_less_than_two_megabytes(width: int) -> None:
    kept = most_directions(width)
    assert kept == min(width, 256) or width == 4096
    plain = OodDetector(np.zeros(width), np.zeros((kept, width)), np.ones(kept), 1.0, np.arange(2000.0)).to_dict()
    assert len(json.dumps(plain)) < 2_000_000


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mean": "###"}, "mean are damaged"),
        ({"mean": 5}, "mean are damaged"),
        ({"mean": "AAA="}, "mean are damaged"),
        ({"mean": ""}, "mean: expected"),
        ({"mean": "AADAfwAAwH8AAMB/"}, "mean hold NaN"),
        ({"shape": [3, 4]}, "directions do not fit shape"),
        ({"shape": "x"}, "directions do not fit shape"),
        ({"shape": [1, 9]}, "directions: expected"),
        ({"variances": "AAAAAAAAAAAAAAAA"}, "variances above 0"),
        ({"distances": "AACAPwAAAAA="}, "sorted distances"),
        ({"distances": "AACAPw=="}, "cannot be promised by 1 images"),
        ({"rest": "1"}, "rest: expected a number"),
        ({"false_alarms": 0.0}, "false_alarms: expected a number"),
    ],
)
def test_what_is_damaged_is_refused(change: dict[str, Any], message: str) -> None:
    plain = OodDetector.fit(embeddings(30, width=3), embeddings(19, width=3, seed=1)).to_dict()
    with pytest.raises(CheckpointError, match=message):
        OodDetector.from_dict(plain | change)


def test_a_part_that_is_missing_is_named() -> None:
    plain = OodDetector.fit(embeddings(30, width=3), embeddings(19, width=3, seed=1)).to_dict()
    for name in plain:
        with pytest.raises(CheckpointError, match=f"detector lacks {name}"):
            OodDetector.from_dict({key: value for key, value in plain.items() if key != name})
    with pytest.raises(CheckpointError, match="ood: expected Mapping"):
        OodDetector.from_dict([])
