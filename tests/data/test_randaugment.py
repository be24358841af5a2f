"""RandAugment: each operation is Pillow's, within one grey level; each image has its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vitrail.data.randaugment import OPERATIONS, means, operated, rand_augmented, strengths

VALUES = ("autocontrast", "equalise", "solarise", "colour", "posterise", "contrast", "brightness", "sharpness")
GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def smooth(count: int, channels: int, height: int = 21, width: int = 34) -> Tensor:
    """Images of waves that use part of the range: geometry moves them little, contrast has room."""
    dice = np.random.default_rng(channels * 1000 + height)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        130 + 60 * np.sin(x / dice.uniform(2, 6) + dice.uniform(0, 6)) + 40 * np.cos(y / dice.uniform(2, 6))
        for _ in range(count * channels)
    ]
    noisy = np.stack(waves) + dice.uniform(-9, 9, (count * channels, height, width))
    return torch.from_numpy(noisy.astype(np.uint8).reshape(count, channels, height, width))


def as_pillow(image: Tensor) -> Image.Image:
    values = image.numpy()
    return Image.fromarray(values[0] if len(values) == 1 else np.ascontiguousarray(values.transpose(1, 2, 0)))


def as_array(image: Image.Image) -> np.ndarray:
    values = np.asarray(image).astype(int)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def fill(image: Tensor) -> tuple[int, ...] | int:
    """The mean colour, halves up, by another way."""
    found = tuple(math.floor(float(plane.double().mean()) + 0.5) for plane in image)
    return found if len(found) > 1 else found[0]


def pillow(image: Tensor, name: str, strength: float) -> np.ndarray:
    """What Pillow makes of it."""
    pil = as_pillow(image)
    height, width = image.shape[1:]
    if name == "rotate":
        return as_array(pil.rotate(strength, Image.Resampling.BILINEAR, fillcolor=fill(image)))
    matrices = {
        "shear_x": (1, strength, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, strength, 1, 0),
        "translate_x": (1, 0, strength * width, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, strength * height),
    }
    if name in matrices:
        how = (Image.Transform.AFFINE, matrices[name], Image.Resampling.BILINEAR)
        return as_array(pil.transform(pil.size, *how, fillcolor=fill(image)))
    changed = {
        "autocontrast": lambda: ImageOps.autocontrast(pil),
        "equalise": lambda: ImageOps.equalize(pil),
        "solarise": lambda: ImageOps.solarize(pil, math.ceil(strength)),
        "posterise": lambda: ImageOps.posterize(pil, int(strength)),
        "colour": lambda: ImageEnhance.Color(pil).enhance(strength),
        "contrast": lambda: ImageEnhance.Contrast(pil).enhance(strength),
        "brightness": lambda: ImageEnhance.Brightness(pil).enhance(strength),
        "sharpness": lambda: ImageEnhance.Sharpness(pil).enhance(strength),
    }
    return as_array(changed[name]())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("magnitude", [0.0, 5.0, 9.0, 10.0])
@pytest.mark.parametrize("name", VALUES + GEOMETRY)
def test_every_operation_is_pillows_within_a_grey_level(name: str, magnitude: float, channels: int) -> None:
    images = smooth(4, channels)
    strength = strengths(name, magnitude, np.array([1.0, -1.0, 1.0, -1.0]))
    got = operated(images, name, strength)
    assert got.dtype == torch.uint8
    for image, value, seen in zip(images, strength.tolist(), got, strict=True):
        assert np.abs(pillow(image, name, value) - seen.numpy().astype(int)).max() <= 1


@pytest.mark.parametrize("name", ["autocontrast", "equalise", "solarise", "posterise"])
def test_tables_of_values_are_exactly_pillows(name: str) -> None:
    """Noise, few values, one value, and the two that stand at the ends."""
    dice = np.random.default_rng(3)
    kinds = [
        dice.integers(0, 256, (40, 40)),
        dice.integers(90, 95, (40, 40)),
        np.full((40, 40), 77),
        dice.choice([0, 255], (40, 40)),
        np.minimum(dice.exponential(9, (40, 40)), 255),
        dice.integers(0, 256, (40, 40)) // 2,
    ]
    images = torch.from_numpy(np.stack(kinds).astype(np.uint8))[:, None]
    strength = strengths(name, 7.0, np.ones(len(kinds)))
    got = operated(images, name, strength)
    for image, value, seen in zip(images, strength.tolist(), got, strict=True):
        np.testing.assert_array_equal(pillow(image, name, value), seen.numpy())


def test_strengths_are_the_papers() -> None:
    both = np.array([1.0, -1.0])
    expected = {
        "rotate": [27.0, -27.0],
        "shear_x": [0.27, -0.27],
        "translate_y": [0.405, -0.405],
        "colour": [1.81, 0.19],
        "solarise": [25.6, 25.6],
        "posterise": [4.0, 4.0],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(strengths(name, 9.0, both), values, rtol=1e-12)
    for name in OPERATIONS[3:]:  # after those that have no strength
        assert torch.equal(operated(smooth(2, 3), name, strengths(name, 0.0, both)), smooth(2, 3)), name


def test_the_direction_of_geometry() -> None:
    """A bright column: translation by a positive share moves the image left, rotation is anticlockwise."""
    images = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    images[:, :, :, 4] = 200
    moved = operated(images, "translate_x", np.array([0.25]))
    assert moved[0, 0, 0].tolist() == [0, 0, 200, 0, 0, 0, 25, 25]  # 200 / 8: the mean stands where nothing was
    turned = operated(images, "rotate", np.array([90.0]))
    assert turned[0, 0, :, 0].tolist() == [0, 0, 0, 200, 0, 0, 0, 0]


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_each_image_has_its_own_operation_in_any_batch(channels: int) -> None:
    images = smooth(60, channels, 12, 15)
    chances = np.random.default_rng(0).random((60, 3, 2))
    together = rand_augmented(images, 9.0, chances)
    assert torch.equal(images, smooth(60, channels, 12, 15))  # the input stays
    for row in range(60):
        assert torch.equal(rand_augmented(images[row : row + 1], 9.0, chances[row : row + 1])[0], together[row])
    used = set((chances[:, :, 0] * len(OPERATIONS)).astype(int).ravel().tolist())
    assert len(used) == 14


def test_operations_follow_one_another() -> None:
    images = smooth(1, 3)
    chances = np.array([[[6.5 / 14, 0.1], [3.5 / 14, 0.1]]])  # posterise, then rotate to the other side
    expected = operated(operated(images, "posterise", np.array([5.0])), "rotate", np.array([-24.0]))
    assert torch.equal(rand_augmented(images, 8.0, chances), expected)
    assert not torch.equal(rand_augmented(images, 8.0, chances[:, ::-1]), expected)


def test_every_operation_has_its_share_of_the_chances() -> None:
    """From its first chance to its last: a fourteenth each, in the order of the list."""
    images = smooth(1, 3)
    for number, name in enumerate(OPERATIONS):
        alone = images if name == "identity" else operated(images, name, strengths(name, 9.0, np.ones(1)))
        for chance in ((number + 1e-9) / 14, (number + 1 - 1e-9) / 14):
            assert torch.equal(rand_augmented(images, 9.0, np.array([[[chance, 0.9]]])), alone), name


def test_operations_on_values_leave_other_numbers_alone() -> None:
    """Bands of floats have no 255 to turn round at; geometry is for all."""
    images = smooth(2, 4).float() * 37.5
    for name in VALUES:
        assert operated(images, name, np.array([0.5, 2.0])) is images
    turned = operated(images, "rotate", np.array([20.0, -20.0]))
    assert turned.dtype == torch.float32
    expected = operated(smooth(2, 4), "rotate", np.array([20.0, -20.0])).float()
    assert (turned / 37.5 - expected).abs().max() < 0.501
    two = smooth(2, 2)
    assert operated(two, "colour", np.array([0.1, 1.9])) is two
    assert not torch.equal(operated(two, "contrast", np.array([0.1, 1.9])), two)


def test_images_of_two_pixels_have_no_inside_to_sharpen() -> None:
    images = smooth(1, 3, 2, 9)
    assert torch.equal(operated(images, "sharpness", np.array([1.9])), images)


def test_mean_colours() -> None:
    images = torch.tensor([[[[1, 2]], [[250, 251]]], [[[0, 0]], [[255, 255]]]], dtype=torch.uint8)
    assert means(images.numpy()).ravel().tolist() == [2, 251, 0, 255]  # halves up
    assert means(images.float().numpy()).ravel().tolist() == [1.5, 250.5, 0, 255]
