"""What files are compared on: the user's images, from all parts of a folder, or random values."""

from __future__ import annotations

import numpy as np
import pytest

from vitrail.errors import InputError
from vitrail.exporters.example_inputs import MOST, inputs_for
from vitrail.images import Preprocess

PREPROCESS = Preprocess(size=8, crop=1.0, mean=0.5, std=0.5, order="BGR")
IMAGES = [np.full((12, 10, 3), (value, 0, 255 - value), np.uint8) for value in range(100)]


def test_images_come_from_all_parts_and_are_prepared_as_the_network_wants_them() -> None:
    inputs = inputs_for(PREPROCESS, "float", IMAGES)
    assert inputs.words == "your images"
    assert inputs.images is not None
    reds = [int(each[0, 0, 0]) for each in inputs.images]  # type: ignore[call-overload, index]
    assert len(reds) == MOST
    assert (reds[0], reds[-1]) == (0, 99)
    assert max(np.diff(reds)) <= 10
    found = inputs.batch(3, (8, 8), 1).numpy()
    np.testing.assert_array_equal(found, PREPROCESS.batch(list(inputs.images[1:4])))
    assert inputs.batch(2, (16, 24), 0).shape == (2, 3, 16, 24)


def test_bytes_are_what_the_graph_takes() -> None:
    found = inputs_for(PREPROCESS, "bytes", IMAGES[:2]).batch(3, (8, 8), 0).numpy()
    assert found.dtype == np.uint8
    assert found.shape == (3, 8, 8, 3)
    assert found[:, 0, 0].tolist() == [[0, 0, 255], [1, 0, 254], [0, 0, 255]]  # RGB, and over again


def test_images_that_cannot_be_read_are_left_out_and_none_at_all_is_told() -> None:
    inputs = inputs_for(PREPROCESS, "float", [b"no image", *IMAGES[:3]])
    assert inputs.images is not None
    assert len(inputs.images) == 3
    with pytest.raises(InputError, match="none of them can be read"):
        inputs_for(PREPROCESS, "float", [b"no image"])


def test_random_values_differ_from_pass_to_pass_and_are_the_same_again() -> None:
    inputs = inputs_for(PREPROCESS, "float", None)
    assert inputs.words == "random pixels"
    first, again, other = inputs.batch(2, (8, 8), 0), inputs.batch(2, (8, 8), 0), inputs.batch(2, (8, 8), 1)
    assert (first == again).all()
    assert not (first == other).any()
