"""Preprocess: the same pixels as the transforms that published weights were scored with."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitrail.errors import ConfigError, InputError
from vitrail.images import Preprocess

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(height: int, width: int, channels: int = 3) -> Image.Image:
    values = np.random.default_rng(height * 7919 + width).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(values if channels > 1 else values[:, :, 0])


def evaluation_transform(image: Image.Image, size: int, crop: float, kernel: Image.Resampling) -> np.ndarray:
    """Resize(short side), CenterCrop, ToTensor, Normalize: torchvision's arithmetic, written out."""
    scaled = math.floor(size / crop)
    width, height = image.size
    if width <= height:
        new = (scaled, int(scaled * height / width))
    else:
        new = (int(scaled * width / height), scaled)
    values = np.asarray(image.resize(new, kernel))
    top, left = round((new[1] - size) / 2.0), round((new[0] - size) / 2.0)
    cut = values[top : top + size, left : left + size].copy()
    tensor = torch.from_numpy(cut).permute(2, 0, 1).float() / 255
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    return ((tensor - mean) / std).numpy()


@pytest.mark.row("003.04")
@pytest.mark.parametrize("height,width", [(300, 451), (224, 224), (248, 600), (100, 100), (37, 91), (1024, 768)])
@pytest.mark.parametrize("size,crop", [(224, 0.9), (224, 0.875), (224, 1.0), (97, 0.95)])
def test_crop_is_the_evaluation_transform(height: int, width: int, size: int, crop: float) -> None:
    image = noise(height, width)
    expected = evaluation_transform(image, size, crop, Image.Resampling.BICUBIC)
    got = Preprocess(size=size, crop=crop, mean=MEAN, std=STD)(image)
    assert got.shape == (3, size, size)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6)


def test_the_resized_sizes_are_timms() -> None:
    """224 / 0.9 is 248; the long side is cut to an integer: 451 * 248 / 300 = 372.8 gives 372, not 373."""
    assert Preprocess().scaled() == (248, 248)
    assert Preprocess()._resized(300, 451) == (248, 372)
    assert Preprocess(size=384, crop=1.0)._resized(640, 480) == (512, 384)


def test_an_image_smaller_than_the_frame_stands_on_black_like_torchvisions_center_crop() -> None:
    got = np.asarray(Preprocess(size=5, crop=1.25).visible_image(Image.new("RGB", (4, 4), "white")))[:, :, 0]
    expected = np.zeros((5, 5), np.uint8)
    expected[:4, :4] = 255  # (5 - 4) // 2 = 0 before, 1 after
    np.testing.assert_array_equal(got, expected)


def test_squash_and_its_crop() -> None:
    image = noise(120, 200)
    squash = Preprocess(size=64, resize="squash", crop=1.0, interpolation="bilinear")
    assert squash.visible_image(image).tobytes() == image.resize((64, 64), Image.Resampling.BILINEAR).tobytes()
    cropped = Preprocess(size=56, resize="squash", crop=0.875)
    whole = image.resize((64, 64), Image.Resampling.BICUBIC)
    assert cropped.visible_image(image).tobytes() == whole.crop((4, 4, 60, 60)).tobytes()


def test_pad_keeps_the_whole_image_between_bars_of_the_mean() -> None:
    preprocess = Preprocess(size=(64, 64), resize="pad", crop=1.0, mean=MEAN, std=STD)
    image = noise(50, 100)
    seen = np.asarray(preprocess.visible_image(image))
    np.testing.assert_array_equal(seen[16:48], np.asarray(image.resize((64, 32), Image.Resampling.BICUBIC)))
    assert (seen[:16] == (124, 116, 104)).all()
    assert (seen[48:] == (124, 116, 104)).all()
    assert np.abs(preprocess(image)[:, :16]).max() < 0.01  # the network sees zero
    bgr = dataclasses.replace(preprocess, order="BGR", mean=MEAN[::-1], std=STD[::-1])
    np.testing.assert_array_equal(bgr(image), preprocess(image)[::-1])


def test_frames_that_are_not_square() -> None:
    """Cover a frame of 40x60 with 100x100: scaled to 60x60, rows 10 to 50 kept."""
    image = noise(100, 100)
    seen = Preprocess(size=(40, 60), crop=1.0).visible_image(image)
    assert seen.tobytes() == image.resize((60, 60), Image.Resampling.BICUBIC).crop((0, 10, 60, 50)).tobytes()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("height,width", [(500, 375), (33, 47), (64, 64), (224, 1000)])
def test_without_antialias_is_torchs_interpolate(interpolation: str, height: int, width: int) -> None:
    image = noise(height, width)
    tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float()
    expected = F.interpolate(tensor, (64, 80), mode=interpolation, align_corners=False).clamp(0, 255)[0]
    plain = Preprocess(size=(64, 80), resize="squash", crop=1.0, interpolation=interpolation, antialias=False)  # type: ignore[arg-type]
    got = np.asarray(plain.visible_image(image)).transpose(2, 0, 1)
    assert np.abs(got - expected.numpy()).max() <= 0.51
    cropped = Preprocess(size=48, resize="squash", crop=0.75, interpolation=interpolation, antialias=False)  # type: ignore[arg-type]
    whole = F.interpolate(tensor, (64, 64), mode=interpolation, align_corners=False).clamp(0, 255)[0]
    inner = np.asarray(cropped.visible_image(image)).transpose(2, 0, 1)
    assert np.abs(inner - whole[:, 8:56, 8:56].numpy()).max() <= 0.51
    assert (
        np.abs(
            got - np.asarray(dataclasses.replace(plain, antialias=True).visible_image(image)).transpose(2, 0, 1)
        ).max()
        > 9
    )


def test_antialias_is_torchs_antialias_within_two_grey_levels() -> None:
    image = noise(300, 400)
    tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None].float()
    expected = F.interpolate(tensor, (64, 64), mode="bicubic", antialias=True).clamp(0, 255)[0].numpy()
    got = np.asarray(Preprocess(size=64, resize="squash", crop=1.0).visible_image(image)).transpose(2, 0, 1)
    assert np.abs(got - expected).max() <= 2


def test_a_long_strip_is_resized_only_where_the_frame_keeps_it() -> None:
    """The part of a resize alone equals the part of the whole resize, within one grey level."""
    image = noise(20, 1200)
    whole = image.resize((60 * 60, 60), Image.Resampling.BICUBIC).crop((1770, 0, 1830, 60))
    seen = Preprocess(size=60, crop=1.0).visible_image(image)
    assert np.abs(np.asarray(seen).astype(int) - np.asarray(whole)).max() <= 1


@pytest.mark.fault("I9")
@pytest.mark.parametrize("height,width", [(1, 1), (1, 5000), (5000, 1), (2, 3)])
@pytest.mark.parametrize("resize,crop", [("crop", 0.9), ("squash", 0.9), ("pad", 1.0)])
@pytest.mark.parametrize("antialias", [True, False])
def test_i9_thin_images_work(height: int, width: int, resize: str, crop: float, antialias: bool) -> None:
    preprocess = Preprocess(size=32, resize=resize, crop=crop, antialias=antialias)  # type: ignore[arg-type]
    got = preprocess(Image.new("RGB", (width, height), (255, 255, 255)))
    assert got.shape == (3, 32, 32)
    assert got.max() == 1.0
    assert resize == "pad" or got.min() == 1.0


@given(
    height=st.integers(1, 90), width=st.integers(1, 90), tall=st.integers(1, 40), wide=st.integers(1, 40),
    crop=st.floats(0.3, 1.6), resize=st.sampled_from(["crop", "squash", "pad"]),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic"]), antialias=st.booleans(),
    channels=st.sampled_from([1, 3]),
)  # fmt: skip
def test_any_image_fits_any_frame(height, width, tall, wide, crop, resize, interpolation, antialias, channels) -> None:  # type: ignore[no-untyped-def]
    """An image of one colour stays that colour, whatever the sizes; only bars may stand beside it."""
    crop = 1.0 if resize == "pad" else min(crop, tall, wide)
    preprocess = Preprocess((tall, wide), resize, crop, interpolation, antialias, channels=channels)
    pixels = preprocess(Image.new("RGB", (width, height), (51, 51, 51)))
    assert pixels.shape == (channels, tall, wide)
    assert pixels.dtype == np.float32
    bars = {"pad": 128}.get(resize, 0) / 127.5 - 1
    colours = np.array([51 / 127.5 - 1, bars])
    assert np.abs(pixels[..., None] - colours).min(axis=-1).max() < 1e-6
    if resize == "squash" and crop <= 1:
        assert np.abs(pixels - colours[0]).max() < 1e-6


@pytest.mark.row("000.25")
def test_the_feature_extractor_of_transformers(transformers: ModuleType) -> None:
    """PIL images, arrays and lists of them; bilinear squash to 224, mean = std = 0.5, pixels in [-1, 1]."""
    images = [noise(50, 70), noise(300, 200), noise(224, 224)]
    processor = transformers.ViTImageProcessorPil()
    expected = processor(images, return_tensors="np")["pixel_values"]
    of_arrays = processor([np.asarray(image) for image in images], return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(expected, of_arrays)
    preprocess = Preprocess(224, "squash", 1.0, "bilinear")
    for got in (preprocess.batch(images), preprocess.batch([np.asarray(image) for image in images])):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)
        assert got.min() >= -1
        assert got.max() <= 1
    assert preprocess(Image.new("RGB", (9, 9), "white")).max() == 1.0
    assert preprocess(Image.new("RGB", (9, 9), "black")).min() == -1.0


@pytest.mark.fault("I13")
@pytest.mark.parametrize("count", [1, 2, 7, 32])
def test_i13_a_batch_is_its_images_one_by_one(count: int) -> None:
    preprocess = Preprocess(size=24)
    images = [noise(20 + index, 40) for index in range(count)]
    batch = preprocess.batch(images)
    assert batch.shape == (count, 3, 24, 24)
    for image, pixels in zip(images, batch, strict=True):
        np.testing.assert_array_equal(preprocess(image), pixels)


def test_batch_of_nothing_and_of_no_list() -> None:
    assert Preprocess(size=8).batch([]).shape == (0, 3, 8, 8)
    for wrong in ("a.jpg", noise(4, 4), b"123", 3):
        with pytest.raises(InputError, match="list of images"):
            Preprocess().batch(wrong)  # type: ignore[arg-type]
    np.testing.assert_array_equal(
        Preprocess(size=8).batch(np.full((2, 9, 9, 3), 255, np.uint8)),  # type: ignore[arg-type]
        np.ones((2, 3, 8, 8), np.float32),
    )


def test_one_channel() -> None:
    preprocess = Preprocess(size=28, crop=1.0, channels=1, mean=0.1307, std=0.3081)
    image = noise(28, 28, 1)
    expected = (np.asarray(image)[None].astype(np.float64) / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(preprocess(image), expected, atol=1e-6)
    assert preprocess.visible_image(noise(28, 28)).mode == "L"


def test_bgr() -> None:
    pixels = Preprocess(size=2, order="BGR", mean=(0.1, 0.2, 0.3), std=1.0)(Image.new("RGB", (2, 2), (255, 102, 51)))
    np.testing.assert_allclose(pixels[:, 0, 0], [0.2 - 0.1, 0.4 - 0.2, 1.0 - 0.3], atol=1e-6)


def test_an_image_of_the_right_size_is_not_copied() -> None:
    image = noise(16, 16)
    assert Preprocess(size=16, crop=1.0).visible_image(image) is image


def test_dictionary_there_and_back() -> None:
    for preprocess in (
        Preprocess(),
        Preprocess((32, 48), "squash", 0.875, "bilinear", False, MEAN, STD, 3, "BGR"),
        Preprocess(28, channels=1, mean=[0.1307], std=(0.3081,)),
    ):
        assert Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict()))) == preprocess
        assert hash(preprocess) == hash(dataclasses.replace(preprocess))
    assert Preprocess().to_dict() == {
        "size": [224, 224], "resize": "crop", "crop": 0.9, "interpolation": "bicubic", "antialias": True,
        "mean": [0.5] * 3, "std": [0.5] * 3, "channels": 3, "order": "RGB",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="'interpolation'"):
        Preprocess.from_dict({"interpolaton": "bicubic"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        Preprocess().crop = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong,message",
    [
        ({"size": 0}, "size: expected a whole number"),
        ({"size": (224, 224, 3)}, "one whole number or a pair"),
        ({"size": "224"}, "one whole number or a pair"),
        ({"size": 224.0}, "one whole number or a pair"),
        ({"size": True}, "size: expected a whole number"),
        ({"crop": 0}, "crop must be above 0"),
        ({"crop": float("nan")}, "crop: expected a number"),
        ({"crop": 1e-9}, "expected 1 to 16384: set crop from 0.0136719 to 2"),
        ({"crop": 1e-307}, "sides of inf to inf pixels, expected 1 to 16384: set crop from 0.0136719 to 2"),
        ({"crop": 5e-324}, "expected 1 to 16384"),
        ({"crop": 224 / 16_385}, "expected 1 to 16384"),
        ({"size": (4, 1), "crop": 1.01}, "expected 1 to 16384: set crop from 0.000244141 to 1"),
        ({"crop": 2.01}, "crop must be above 0 and at most 2"),
        ({"resize": "centre"}, "resize 'centre' is unknown"),
        ({"resize": "pad"}, "needs crop=1.0"),
        ({"interpolation": "bicubik"}, "did you mean 'bicubic'"),
        ({"interpolation": "lanczos", "antialias": False}, "antialias=False needs"),
        ({"antialias": 1}, "antialias 1 is unknown"),
        ({"mean": (0.5, 0.5)}, "mean needs 3 numbers"),
        ({"mean": (123.7, 116.3, 103.5)}, "divide by 255"),
        ({"mean": "0.5"}, "mean: expected a number"),
        ({"std": 0.0}, "std must be positive"),
        ({"std": (0.5, float("inf"), 0.5)}, "std: expected a number"),
        ({"channels": 0}, "channels: expected a whole number from 1 to 64"),
        ({"channels": 65}, "channels: expected a whole number from 1 to 64"),
        ({"channels": True}, "channels: expected a whole number from 1 to 64"),
        ({"channels": 4, "mean": (0.5, 0.5, 0.5)}, "mean needs 4 numbers"),
        ({"channels": 4, "order": "BGR"}, "needs channels=3, got channels=4"),
        ({"range": 0}, "range: expected a number"),
        ({"range": float("inf")}, "range: expected a number"),
        ({"range": 10_000, "mean": 1400}, "the values of the file, expected 0 to 1: divide by 10000"),
        ({"channels": 1, "mean": (0.5, 0.5, 0.5)}, "mean needs 1 numbers"),
        ({"channels": 1, "order": "BGR"}, "needs channels=3"),
        ({"order": "rgb"}, "order 'rgb' is unknown"),
    ],
)
def test_wrong_values_are_told(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocess(**wrong)  # type: ignore[arg-type]


def test_the_smallest_and_largest_crop_can_be_computed() -> None:
    """The frame of a resize to 16,384 pixels a side: of an image of one colour, that colour."""
    least = Preprocess(size=16, crop=16 / 16_384)
    assert least.scaled() == (16_384, 16_384)
    assert (least(Image.new("RGB", (40, 20), "white")) == 1).all()
    assert Preprocess(size=2, crop=2).scaled() == (1, 1)


def test_the_box_is_the_part_of_the_image_that_the_network_sees() -> None:
    """A square of 224 out of 248 x 496, which is half of 496 x 992: 448 of the image's own pixels, in its middle."""
    assert Preprocess().box(496, 992) == (272.0, 24.0, 720.0, 472.0)
    assert Preprocess(size=(64, 64), resize="pad", crop=1.0).box(50, 100) == (0.0, -25.0, 100.0, 75.0)
    assert Preprocess(size=100, resize="squash", crop=0.5).box(400, 800) == (200.0, 100.0, 600.0, 300.0)


@pytest.mark.row("000.25")
def test_files_and_bytes_give_the_same_pixels(tmp_path: Path) -> None:
    file = io.BytesIO()
    noise(40, 60).save(file, "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(file.getvalue())
    sources = (
        path,
        str(path),
        file.getvalue(),
        bytearray(file.getvalue()),
        noise(40, 60),
        np.asarray(noise(40, 60)),
    )
    batch = Preprocess(size=32).batch(sources)
    assert (batch == batch[0]).all()


def test_one_array_is_one_image_also_for_batch() -> None:
    """(H, W, 3) is an image, not H of them."""
    with pytest.raises(
        InputError, match="expected a list of images, got uint8 array of shape .40, 60, 3.: put it in a list"
    ):
        Preprocess(size=32).batch(np.zeros((40, 60, 3), np.uint8))
    assert Preprocess(size=32).batch(np.zeros((2, 40, 60, 3), np.uint8)).shape == (2, 3, 32, 32)


@pytest.mark.parametrize("mode, resize", [("center", "crop"), ("squash", "squash")])
@pytest.mark.parametrize("size", [(300, 451), (500, 375), (97, 260), (224, 224), (100, 100)])
def test_timm_s_own_transform(timm: ModuleType, mode: str, resize: Any, size: tuple[int, int]) -> None:
    """The evaluation transform of timm itself, on odd sizes."""
    from timm.data import create_transform

    transform = create_transform(
        (3, 224, 224), interpolation="bicubic", crop_pct=0.9, crop_mode=mode, mean=(0.5,) * 3, std=(0.5,) * 3
    )
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8))
    np.testing.assert_allclose(Preprocess(resize=resize)(image), transform(image).numpy(), rtol=0, atol=1e-6)
