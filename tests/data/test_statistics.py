"""Mean and std of the channels: exact, whatever the batches, and ready for Preprocess."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitrail.data.cache import Views, normalise
from vitrail.data.samples import Dataset, Sample
from vitrail.data.statistics import band_statistics
from vitrail.images import Preprocess


def views_of(images: np.ndarray, preprocess: Preprocess, limit: int = 1 << 30) -> Views:
    samples = tuple(Sample(str(row), ("a",)) for row in range(len(images)))
    return Views(Dataset("set", samples, images, ("a",)), preprocess, limit=limit)


def make_images(count: int = 30) -> np.ndarray:
    """Each channel with a mean and a spread of its own."""
    dice = np.random.default_rng(1)
    return np.clip(dice.normal((90, 140, 200), (10, 30, 20), (count, 16, 16, 3)), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_statistics_are_those_of_all_pixels(batch: int) -> None:
    images = make_images()
    found = band_statistics(views_of(images, Preprocess(size=16, crop=1.0)), batch=batch)
    exact = images.astype(np.longdouble) / 255
    np.testing.assert_allclose(found.mean, exact.mean((0, 1, 2)).astype(float), rtol=1e-14)
    np.testing.assert_allclose(found.std, exact.std((0, 1, 2)).astype(float), rtol=1e-13)
    assert found == band_statistics(views_of(images[::-1], Preprocess(size=16, crop=1.0)), batch=batch + 3)


def test_pixels_then_have_mean_zero_and_std_one() -> None:
    """Also where the network sees blue first: the numbers stand in its order."""
    images = make_images()
    for order in ("RGB", "BGR"):
        plain = Preprocess(size=16, crop=1.0, order=order)  # type: ignore[arg-type]
        mean, std = band_statistics(views_of(images, plain))
        preprocess = replace(plain, mean=mean, std=std)
        pixels = normalise(views_of(images, preprocess).get(range(30)), preprocess).double()
        np.testing.assert_allclose(pixels.mean((0, 2, 3)), np.zeros(3), atol=1e-6)
        np.testing.assert_allclose(pixels.std((0, 2, 3), correction=0), np.ones(3), atol=1e-6)
        assert (mean[0] < mean[2]) == (order == "RGB")


def test_bands_are_measured_against_their_range() -> None:
    images = np.random.default_rng(0).integers(0, 4096, (9, 10, 10, 5), np.uint16)
    found = band_statistics(views_of(images, Preprocess(size=10, crop=1.0, channels=5, range=4095.0)))
    np.testing.assert_allclose(found.mean, (images / 4095).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(found.std, (images / 4095).std((0, 1, 2)), rtol=1e-12)


def test_a_channel_that_never_changes_has_std_one() -> None:
    images = np.full((3, 8, 8, 3), (200, 7, 0), np.uint8)
    images[0, 0, 0, 1] = 9
    mean, std = band_statistics(views_of(images, Preprocess(size=8, crop=1.0)))
    assert mean == (200 / 255, (7 * 192 + 2) / 192 / 255, 0.0)
    assert (std[0], std[2]) == (1.0, 1.0)
    assert 0 < std[1] < 0.001
    Preprocess(size=8, mean=mean, std=std)
