"""Resizing by torch: two levels from Pillow at most, Pillow for all else, only where other bits were asked for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from shipping import packs
from vitrail.checkpoint import Checkpoint
from vitrail.images import Preprocess, resize_crop_only, resize_then_crop
from vitrail.packed import packed_runtime as packed
from vitrail.packed import torch_resize as resampling
from vitrail.packed.packed_runtime import Packed
from vitrail.quantisation.quant_plan import QuantPlan

Array = np.ndarray[Any, Any]


def make_image(size: tuple[int, int], mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Noise, half of it black and white: the hardest there is."""
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    values[: size[1] // 2] = 255 * (values[: size[1] // 2] > 127)
    return Image.fromarray(values).convert(mode)


def apart(one: Image.Image, other: Image.Image) -> Array:
    return np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16))


@pytest.fixture
def unprobed() -> Iterator[None]:
    resampling.probe.cache_clear()
    yield
    resampling.probe.cache_clear()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    "size, area, to",
    [
        ((800, 600), (0, 0, 800, 600), (331, 248)),
        ((801, 601), (0, 0, 800.5, 600.25), (331, 248)),  # a JPEG of 1601 x 1201 at a half
        ((333, 1000), (0, 0, 333, 1000), (224, 673)),
        ((64, 64), (0, 0, 64, 64), (1, 1)),
        ((300, 200), (0, 0, 300, 200), (299, 200)),
        ((2000, 40), (0, 0, 2000, 40), (50, 40)),
    ],
)
def test_within_two_levels_of_pillow(
    mode: str, interpolation: Any, size: tuple[int, int], area: Any, to: tuple[int, int]
) -> None:
    image = make_image(size, mode)
    whole = (0, 0, *to)
    made = resampling.resample(image, area, to, whole, interpolation)
    assert (made.mode, made.size) == (mode, to)
    part = (to[0] // 4, to[1] // 3, to[0], to[1])
    cut = resampling.resample(image, area, to, part, interpolation)
    assert np.array_equal(np.asarray(cut), np.asarray(made.crop(part)))
    # Across, then down; Pillow takes the shorter way round, which is another where ringing is cut off at 0 and 255.
    right = resize_then_crop(image, (0, 0, area[2], size[1]), (to[0], size[1]), (0, 0, to[0], size[1]), interpolation)
    right = resize_then_crop(right, (0, 0, to[0], area[3]), to, whole, interpolation)
    assert apart(made, right).max() <= 2
    assert (apart(made, right) > 0).mean() < 0.02
    soft = image.point([64 + value // 2 for value in range(256)] * len(image.getbands()))
    made, right = (way(soft, area, to, whole, interpolation) for way in (resampling.resample, resize_then_crop))
    assert apart(made, right).max() <= 2


@pytest.mark.parametrize(
    "mode, interpolation, area, to",
    [
        ("RGB", "lanczos", (0, 0, 90, 60), (30, 20)),
        ("RGB", "box", (0, 0, 90, 60), (30, 20)),
        ("RGB", "nearest", (0, 0, 90, 60), (30, 20)),
        ("RGB", "bicubic", (1.5, 0, 90, 60), (30, 20)),  # not from the first corner
        ("RGB", "bicubic", (0, 2, 90, 60), (30, 20)),
        ("RGB", "bicubic", (0, 0, 90, 60), (91, 20)),  # larger
        ("F", "bicubic", (0, 0, 90, 60), (30, 20)),
        ("RGBA", "bicubic", (0, 0, 90, 60), (30, 20)),
    ],
)
def test_all_else_is_pillows(mode: str, interpolation: Any, area: Any, to: tuple[int, int]) -> None:
    given = (make_image((90, 60), mode), area, to, (3, 2, 20, 18), interpolation)
    made, right = resampling.resample(*given), resize_crop_only(*given)
    assert made.size == (17, 16)
    assert np.array_equal(np.asarray(made), np.asarray(right))


def test_a_kernel_that_is_wrong_or_missing_is_not_used(monkeypatch: pytest.MonkeyPatch, unprobed: None) -> None:
    given: Any = (make_image((90, 60)), (0, 0, 90, 60), (30, 20), (1, 2, 28, 20), "bicubic")
    assert resampling.probe().works
    for kernels, why in (
        ({"bicubic": "_upsample_bilinear2d_aa", "bilinear": "_upsample_bilinear2d_aa"}, "levels from Pillow"),
        ({"bicubic": "no_such_kernel", "bilinear": "no_such_kernel"}, "no_such_kernel"),
    ):
        monkeypatch.setattr(resampling, "_KERNELS", kernels)
        resampling.probe.cache_clear()
        assert why in resampling.probe().why
        assert np.array_equal(np.asarray(resampling.resample(*given)), np.asarray(resize_crop_only(*given)))
        assert any("resized by Pillow" in note for note in packed.possible_plan(QuantPlan())[1])


# ---- where it is used --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return packs.checkpoint()


@pytest.fixture(scope="module")
def photo() -> bytes:
    file = io.BytesIO()
    make_image((40, 30)).resize((401, 301), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def test_only_with_scaled_decoding(checkpoint: Checkpoint, photo: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def spy(image: Image.Image, *given: Any) -> Image.Image:
        asked.append(image.size)
        return resampling.resample(image, *given)

    monkeypatch.setattr(Packed, "resample", staticmethod(spy))
    exact = vitrail.predict(Packed(checkpoint), [photo] * 3)
    assert asked == []
    scaled = replace(checkpoint, preprocess=replace(checkpoint.preprocess, scaled_decoding=True))
    quick = vitrail.predict(Packed(scaled), [photo] * 3)
    assert asked[:3] == [(101, 76)] * 3  # a quarter
    assert np.allclose(exact[0].probabilities, quick[0].probabilities, atol=0.05)


def test_bits_are_pillows_by_default(photo: bytes) -> None:
    full, scaled = Preprocess(size=32), Preprocess(size=32, scaled_decoding=True)
    assert np.array_equal(full.to_uint8(photo), full.to_uint8(photo, resize_then_crop))
    assert np.array_equal(scaled.to_uint8(photo), scaled.to_uint8(photo, resize_crop_only))
    assert np.array_equal(scaled.normalise(scaled.to_uint8(photo)), scaled(photo))
    for way in (full, scaled):
        apart = np.abs(way.to_uint8(photo, resampling.resample).astype(int) - way.to_uint8(photo))
        assert 0 < apart.max() <= 3


def test_large_images_are_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = (make_image((90, 60)), (0, 0, 90, 60), (30, 20), (1, 2, 28, 20), "bicubic")
    made = np.asarray(resampling.resample(*given))
    monkeypatch.setattr(resampling, "_MOST", 90 * 60 - 1)
    assert np.array_equal(np.asarray(resampling.resample(*given)), np.asarray(resize_crop_only(*given)))
    monkeypatch.setattr(resampling, "_MOST", 90 * 60)
    assert np.array_equal(np.asarray(resampling.resample(*given)), made)
