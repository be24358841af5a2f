"""Bytes and whole images are resized and normalised inside the graph as they are outside."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.errors import InputError
from vitrail.exporters.input_stage import Entrance
from vitrail.images import Preprocess


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(size=32),
        Preprocess(size=(24, 40), crop=0.8),
        Preprocess(size=32, resize="squash", crop=1.0, interpolation="bilinear", mean=(0.4, 0.5, 0.6), order="BGR"),
        Preprocess(size=32, interpolation="bilinear", antialias=False),
        Preprocess(size=32, antialias=False, crop=1.0),
        Preprocess(size=32, channels=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(70, 50), (31, 64), (20, 20), (32, 32), (500, 375)])
def test_images_are_resized_inside_as_pillow_does(preprocess: Preprocess, size: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    small = generator.integers(0, 256, (9, 12, preprocess.channels), np.uint8)
    image = Image.fromarray(small if preprocess.channels == 3 else small[:, :, 0]).resize(
        size[::-1], Image.Resampling.BICUBIC
    )
    values = np.asarray(image).reshape(*size, preprocess.channels)
    found = Entrance(preprocess, resize=True)(torch.from_numpy(values.copy())[None])[0].numpy()
    steps = np.abs(found - preprocess(image)) * 255 * np.reshape(preprocess.std, (-1, 1, 1))
    if preprocess.antialias and preprocess.resize == "crop":
        assert steps.max() == 0  # Pillow's arithmetic, to the last bit
    # Where the sides shrink by different factors, Pillow may take the columns first, and rounds in between. Without
    # antialiasing, float32 may bring a value near a half to the other side.
    assert steps.max() < 1.01
    assert (steps > 0.5).mean() < (0.002 if preprocess.resize == "crop" else 0.2)


def test_bytes_are_normalised_as_outside() -> None:
    preprocess = Preprocess(size=8, crop=1.0, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    values = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    found = Entrance(preprocess, resize=False)(torch.from_numpy(values)[None])[0].numpy()
    np.testing.assert_array_equal(found, preprocess(values))


@pytest.mark.parametrize(
    "preprocess, words",
    [
        (Preprocess(size=32, resize="pad", crop=1.0), "without bars"),
        (Preprocess(size=32, crop=1.2), "without bars"),
        (Preprocess(size=32, interpolation="lanczos"), "lanczos"),
        (Preprocess(size=32, channels=4), "4 bands"),
        (Preprocess(size=32, range=65535.0), "65535 as 1.0"),
    ],
)
def test_what_a_graph_cannot_do_to_images_is_refused(preprocess: Preprocess, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Entrance(preprocess, resize=True)
