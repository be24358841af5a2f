"""Images of other bands and ranges: every number of the file reaches the network, or the image is refused."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from images.band_files import FULL, Array, handmade, noise, npy, png16, saved, tags, written
from vitrail.checkpoint import Checkpoint, load, save
from vitrail.errors import ConfigError, ImageError
from vitrail.images import Bands, Limits, Preprocess, decode, decode_bands, describe_bands
from vitrail.inference import find_images, predict
from vitrail.network import ViT, ViTConfig

ROOT = Path(__file__).resolve().parents[2]


def plain(size: int | tuple[int, int], channels: int, full: float, **more: Any) -> Preprocess:
    """A Preprocess that keeps the numbers: mean 0, std 1."""
    return Preprocess(size, **{"crop": 1.0, "mean": 0.0, "std": 1.0, "channels": channels, "range": full} | more)


# ---- 16 bits stay 16 bits -----------------------------------------------------------------------------------------

LEVELS = np.arange(65536, dtype=np.uint16).reshape(256, 256)
GREY: dict[str, Any] = {
    "array": LEVELS,
    "array (H, W, 1)": LEVELS[:, :, None],
    "big-endian array": LEVELS.astype(">u2"),
    "int32 array": LEVELS.astype(np.int32),
    "npy": npy(LEVELS),
    "npy by columns": npy(np.asfortranarray(LEVELS)),
    "PIL I;16": Image.fromarray(LEVELS),
    "PIL I": Image.fromarray(LEVELS.astype(np.int32)),
    "png": saved(Image.fromarray(LEVELS), "PNG"),
    "tiff": saved(Image.fromarray(LEVELS), "TIFF"),
    "tiff lzw": saved(Image.fromarray(LEVELS), "TIFF", compression="tiff_lzw"),
    "tiff lzw of differences": saved(Image.fromarray(LEVELS), "TIFF", compression="tiff_lzw", tiffinfo={317: 2}),
    "pgm": b"P5 256 256 65535\n" + LEVELS.astype(">u2").tobytes(),
}


@pytest.mark.parametrize("name", GREY)
def test_every_one_of_65536_levels_stays_apart(name: str) -> None:
    source = GREY[name]
    assert describe_bands(source) == Bands(256, 256, 1, "uint16")
    keep = plain(256, 1, FULL)
    np.testing.assert_array_equal(keep.array(source), LEVELS[:, :, None].astype(np.float32))
    pixels = keep(source)
    assert pixels.shape == (1, 256, 256)
    assert (np.diff(pixels.ravel()) > 0).all()
    np.testing.assert_allclose(pixels[0], LEVELS / 65535, rtol=1e-6, atol=0)
    assert len(np.unique(plain(256, 1, 255.0)(source))) == 256  # the default goes by 8 bits, as ever


@pytest.mark.parametrize("resize, crop", [("crop", 0.8), ("crop", 1.5), ("squash", 1.0), ("pad", 1.0)])
@pytest.mark.parametrize(
    "interpolation, antialias",
    [("bicubic", True), ("lanczos", True), ("nearest", True), ("box", True), ("bilinear", False), ("bicubic", False)],
)
def test_reduced_to_8_bits_it_is_the_8_bit_image(resize: str, crop: float, interpolation: str, antialias: bool) -> None:
    """The same frame and kernels on 8-bit values and on 257 times them: they differ by the rounding of 8 bits alone.

    No kernel leaves 0 to 255 here, for Pillow cuts that off after the first of its two passes; it rounds after both.
    """
    image = 70 + noise(41, 67, 3, kind="uint8") % 100
    options = {"resize": resize, "crop": crop, "interpolation": interpolation, "antialias": antialias, "mean": 0.4}
    for size in (24, (32, 20), (90, 70)):
        few = plain(size, 3, 255.0, **options)(image)
        many = plain(size, 3, FULL, **options)(image.astype(np.uint16) * 257)
        assert np.abs(few - many).max() * 255 <= (1.5 if antialias and interpolation != "nearest" else 0.51)
        assert interpolation in ("nearest", "box") or len(np.unique(many)) > 2 * len(np.unique(few))


# ---- bands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [2, 4, 5, 13, 64])
@pytest.mark.parametrize("kind, full", [("uint8", 255.0), ("uint16", 10_000.0), ("float32", 1.0), ("float64", 2.5)])
def test_every_band_is_resized_and_normalised_by_itself(channels: int, kind: str, full: float) -> None:
    image = noise(20, 31, channels, kind=kind)
    mean, std = np.linspace(0.1, 0.5, channels), np.linspace(0.2, 0.9, channels)
    pixels = Preprocess(16, channels=channels, mean=mean, std=std, range=full)(image)  # type: ignore[arg-type]
    assert pixels.shape == (channels, 16, 16)
    assert pixels.dtype == np.float32
    for place in range(channels):
        band = Image.fromarray(image[:, :, place].astype(np.float32))
        seen = np.asarray(band.resize((26, 17), Image.Resampling.BICUBIC).crop((5, 0, 21, 16)), np.float64)
        if kind.startswith("u"):
            seen = seen.clip(0, np.iinfo(kind).max)
        np.testing.assert_allclose(pixels[place], (seen / full - mean[place]) / std[place], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind, full", [("uint8", 255.0), ("uint16", FULL)])
def test_no_kernel_leaves_what_whole_numbers_can_be(kind: str, full: float) -> None:
    """A bicubic kernel overshoots beside an edge: above the brightest and below the darkest there is nothing."""
    image = np.zeros((16, 16, 4), kind)
    image[:, 8:] = np.iinfo(kind).max
    seen = plain(48, 4, full).array(image)
    assert (seen.min(), seen.max()) == (0, full)
    free = plain(48, 4, 1.0).array(image.astype(np.float32) / np.float32(full))
    assert free.min() < -0.01
    assert free.max() > 1.01


def test_resizing_is_torchs_interpolate_with_antialias_and_without() -> None:
    image = noise(40, 52, 6, kind="float32")
    tensor = torch.from_numpy(image).permute(2, 0, 1)[None]
    for interpolation in ("bilinear", "bicubic"):
        expected = F.interpolate(tensor, (24, 18), mode=interpolation, align_corners=False)[0].numpy()
        got = plain((24, 18), 6, 1.0, resize="squash", interpolation=interpolation, antialias=False)(image)
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)
        expected = F.interpolate(tensor, (24, 18), mode=interpolation, antialias=True)[0].numpy()
        got = plain((24, 18), 6, 1.0, resize="squash", interpolation=interpolation)(image)
        np.testing.assert_allclose(got, expected, rtol=0, atol=5e-6)


def test_bars_have_the_mean_of_their_band_and_a_small_image_stands_on_zero() -> None:
    image = noise(10, 20, 4)
    padded = Preprocess(16, "pad", 1.0, mean=(0.1, 0.2, 0.3, 0.4), std=0.5, channels=4, range=FULL)
    assert np.abs(padded(image)[:, :4]).max() < 1e-6
    np.testing.assert_allclose(padded.array(image)[0, 0], np.array((0.1, 0.2, 0.3, 0.4)) * FULL, rtol=1e-6)
    assert np.abs(padded(image)[:, 4:12]).max() > 0.1
    small = plain(6, 4, FULL, crop=1.5).array(image)
    assert (small[0] == 0).all()
    assert (small[1:5, 1:5] != 0).any()


def test_the_order_of_three_bands() -> None:
    image = noise(8, 8, 3)
    one, other = plain(8, 3, FULL)(image), plain(8, 3, FULL, order="BGR")(image)
    np.testing.assert_array_equal(one, other[::-1])
    np.testing.assert_allclose(one[0], image[:, :, 0] / 65535, rtol=1e-6)


def test_a_batch_is_its_images_one_by_one() -> None:
    preprocess = plain(12, 5, FULL)
    images = [noise(20 + step, 15, 5) for step in range(3)]
    batch = preprocess.batch(images)
    assert batch.shape == (3, 5, 12, 12)
    for image, pixels in zip(images, batch, strict=True):
        np.testing.assert_array_equal(preprocess(image), pixels)


def test_view_is_an_image_to_look_at() -> None:
    image = noise(8, 8, 5)
    image[0, 0] = (0, 5000, 10_000, 7, 7)
    image[0, 1] = 20_000
    seen = plain(8, 5, 10_000).visible_image(image)
    assert (seen.mode, seen.getpixel((0, 0)), seen.getpixel((1, 0))) == ("RGB", (0, 128, 255), (255, 255, 255))
    for channels in (1, 2):
        seen = plain(8, channels, 10_000).visible_image(image[:, :, 1 : 1 + channels])
        assert (seen.mode, seen.getpixel((0, 0))) == ("L", 128)


def test_the_numbers_of_an_ordinary_image_are_its_view() -> None:
    image = noise(30, 40, 3, kind="uint8")
    for channels in (1, 3):
        preprocess = Preprocess(16, channels=channels)
        numbers = preprocess.array(image)
        assert numbers.dtype == np.float32
        np.testing.assert_array_equal(numbers.squeeze(), np.asarray(preprocess.visible_image(image)))
        assert numbers.shape == (16, 16, channels)


# ---- PNG ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bands", [3, 4])
@pytest.mark.parametrize("interlaced", [False, True])
def test_16_bit_colour_png_is_read_exactly(bands: int, interlaced: bool) -> None:
    values = noise(23, 19, bands)
    data = png16(values, interlaced)
    assert describe_bands(data) == Bands(23, 19, bands, "uint16")
    np.testing.assert_array_equal(decode_bands(data, bands, FULL), values)
    np.testing.assert_array_equal(np.asarray(decode(png16(values[:, :, :3], interlaced))), values[:, :, :3] >> 8)


def test_16_bit_grey_with_alpha_is_refused() -> None:
    with pytest.raises(ImageError, match="16-bit grey with alpha, which Pillow cuts to 8"):
        describe_bands(png16(noise(9, 9, 2)))


@pytest.mark.fault("I7")
def test_transparency_is_a_band_of_its_own() -> None:
    """Alpha as it is stored, not laid on the background; a transparent colour makes one too."""
    rgba, key = noise(9, 7, 4, kind="uint8"), np.full((4, 4), 3, np.uint8)
    for kind in ("PNG", "TIFF", "WEBP"):
        data = saved(Image.fromarray(rgba), kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
        assert describe_bands(data) == Bands(9, 7, 4, "uint8")
        np.testing.assert_array_equal(decode_bands(data, 4), rgba)
    np.testing.assert_array_equal(decode_bands(saved(Image.fromarray(rgba[:, :, :2], "LA"), "PNG"), 2), rgba[:, :, :2])
    key[0, 0] = 5
    palette = Image.fromarray(key, "P")
    palette.putpalette(bytes(range(48)))
    clear = decode_bands(saved(palette, "PNG", transparency=5), 4)
    assert clear[0, 0].tolist() == [15, 16, 17, 0]
    assert clear[1, 1].tolist() == [9, 10, 11, 255]
    pixels = plain((9, 7), 4, 255.0, mean=0.5, std=0.5)(rgba)
    np.testing.assert_allclose(pixels, rgba.transpose(2, 0, 1) / 127.5 - 1, rtol=0, atol=1e-6)


# ---- TIFF ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("I4")
@pytest.mark.parametrize("name", ["npy", "tiff", "tiff by tiles", "tiff of pages", "png"])
def test_i4_cut_at_every_byte(name: str) -> None:
    """An error, or all of the image: the last bytes of some files say nothing of it."""
    values = noise(6, 5, 3)
    data = {
        "npy": lambda: npy(values),
        "tiff": lambda: written(values, compression="zlib", predictor=True),
        "tiff by tiles": lambda: written(values, tile=(16, 16), planarconfig="contig"),
        "tiff of pages": lambda: written(values.transpose(2, 0, 1), planarconfig=None),
        "png": lambda: png16(values),
    }[name]()
    whole = 0
    for end in range(len(data)):
        try:
            np.testing.assert_array_equal(decode_bands(data[:end], 3, FULL), values)
            whole += 1
        except ImageError:
            pass
    assert whole <= 20  # the end of a PNG: a checksum and the last chunk


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, channels, full, message",
    [
        (noise(9, 9, 5), 4, FULL, "expected 4 bands, got 5: choose 4 of them, or set Preprocess.channels=5."),
        (noise(9, 9), 4, FULL, "expected 4 bands, got 1"),
        (noise(9, 9, 3, kind="uint8"), 4, 255.0, "expected 4 bands, got 3"),
        (noise(5, 9, 9), 5, FULL, "expected 5 bands, got 9: channels come last, use array.transpose.1, 2, 0."),
        (noise(5, 9, 90), 5, FULL, "at most 64 bands, got 90: channels come last"),
        (noise(90, 9, 90), 5, FULL, "at most 64 bands, got 90$"),
        (noise(9), 1, FULL, "expected .H, W. or .H, W, C."),
        (noise(2, 9, 9, 5), 5, FULL, "expected .H, W. or .H, W, C."),
        (np.zeros((0, 4, 5), np.uint16), 5, FULL, "has no pixels"),
        (np.zeros((4, 4, 5), np.int64), 5, FULL, "expected uint8, uint16 or float values, got int64"),
        (np.zeros((4, 4, 5), bool), 5, FULL, "expected uint8, uint16 or float values, got bool"),
        (np.zeros((4, 4, 5), object), 5, FULL, "expected uint8, uint16 or float values, got object"),
        (np.zeros((4, 4, 5), complex), 5, FULL, "expected uint8, uint16 or float values, got complex128"),
        (noise(9, 9, 3, kind="uint8"), 3, FULL, "uint8 values, and range=65535: 8-bit values go with range=255"),
        (noise(9, 9, kind="uint8"), 1, 1.0, "uint8 values, and range=1: 8-bit values go with range=255"),
        (noise(9, 9, 5), 5, 255.0, "uint16 values, and range=255: .* Preprocess.range=65535."),
        (noise(9, 9, 5), 5, 1.0, "uint16 values, and range=1: 16-bit values go with a range above 255"),
        (noise(9, 9, 5), 5, 1e5, "uint16 values, and range=100000"),
        (noise(9, 9, 5, kind="float32"), 5, 255.0, "float32 values, and range=255: .* Preprocess.range=1.0."),
        (np.full((2, 2), 255.0), 1, 1.0, "values 255 to 255, and range=1 counts as 1.0: set the range"),
        (np.full((2, 2), -9999.0), 1, 1.0, "values -9999 to -9999, .* what marks missing data"),
        (np.full((2, 2), 0.7), 1, 10_000.0, "values 0.7 to 0.7, and range=10000 counts as 1.0"),
        (np.array([[1.0, np.nan]]), 1, 1.0, "holds NaN or infinite values"),
        (np.array([[1.0, np.inf]], np.float32), 1, 1.0, "holds NaN or infinite values"),
        (np.array([[1.0, 1e300]]), 1, 1.0, "holds NaN or infinite values"),
        (np.array([[1, -1]], np.int16), 1, FULL, "values -1 to 1, expected 0 to 65535"),
        (np.array([[1, 65536]], np.int32), 1, FULL, "values 1 to 65536, expected 0 to 65535"),
    ],
)
def test_what_cannot_be_meant_is_refused(source: Array, channels: int, full: float, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        plain(8, channels, full)(source)


@pytest.mark.parametrize("low, high", [(0.0, 101.0), (0.5, 255.0), (-101.0, 0.0), (-200.0, 1.0)])
def test_values_far_beyond_the_range_are_refused_on_either_side(low: float, high: float) -> None:
    values = np.linspace(low, high, 48, dtype=np.float32).reshape(4, 4, 3)
    with pytest.raises(ImageError, match=f"values {low:g} to {high:g}, and range=1 counts as 1.0"):
        decode_bands(values, 3, 1.0)
    np.testing.assert_array_equal(decode_bands(values, 3, 3.0), values)  # up to a hundred times the range are meant


def test_numbers_without_a_range_are_any() -> None:
    """An audit reads what is there; only NaN has no meaning anywhere."""
    for values in (noise(4, 5, 3, kind="uint8"), noise(4, 5), np.full((4, 5, 2), -9999.0, np.float32)):
        np.testing.assert_array_equal(decode_bands(values), values.reshape(4, 5, -1))
    with pytest.raises(ImageError, match="expected 3 bands, got 2"):
        decode_bands(noise(4, 5, 2), 3)
    with pytest.raises(ImageError, match="holds NaN"):
        decode_bands(np.full((2, 2), np.nan))


def test_an_empty_image_of_floats_fits_any_range() -> None:
    """All zero is dark, not of another range."""
    assert not plain(4, 1, 10_000)(np.zeros((4, 4), np.float32)).any()


@pytest.mark.fault("I2")
def test_i2_bands_count_in_the_limits() -> None:
    """Many bands of a small image are as heavy as a large one, and packed ones say nothing of it by their size."""
    data = written(np.zeros((400, 500, 13), np.uint16), compression="zlib")
    assert len(data) < 20_000
    assert decode_bands(data, 13, FULL, Limits(pixels=400 * 500 * 13 // 2)).shape == (400, 500, 13)
    with pytest.raises(ImageError, match="500x400 in 13 bands takes 5,200,000 bytes, over the limit of 5,199,996"):
        describe_bands(data, Limits(pixels=400 * 500 * 13 // 2 - 1))
    for limits, field in ((Limits(side=499), "side"), (Limits(aspect=1.2), "aspect"), (Limits(file_bytes=9), "bytes")):
        with pytest.raises(ImageError, match=f"raise Limits.*{field}"):
            describe_bands(data, limits)
    huge = handmade([b"x"], {**tags(noise(1, 1, 13), 8), 256: (16_000,), 257: (4000,), 278: (4000,)})
    with pytest.raises(ImageError, match="16000x4000 in 13 bands takes 1,664,000,000 bytes"):
        decode_bands(huge, 13, FULL)


@pytest.mark.fault("I1")
def test_i1_mutants_end_in_an_image_error_or_in_an_image() -> None:
    spec = importlib.util.spec_from_file_location("stress_images", ROOT / "stress" / "image_campaign.py")
    assert spec is not None
    assert spec.loader is not None
    stress: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["stress_images"] = stress
    spec.loader.exec_module(stress)
    values = noise(24, 30, 5)
    seeds = [
        npy(values),
        written(values),
        written(values, compression="zlib", predictor=True, tile=(16, 16)),
        written(values.transpose(2, 0, 1), planarconfig="separate"),
        written(values.transpose(2, 0, 1), planarconfig=None),
        png16(values[:, :, :4]),
    ]
    ends = {"decoded": 0, "refused": 0}
    for number in range(1500):
        chance = stress.random.Random(f"bands {number}")
        data = stress.mutated(seeds[number % len(seeds)], chance, seeds)
        try:
            found = describe_bands(data)
            full = {"uint8": 255.0, "uint16": FULL, "float32": 1.0}[found.kind]
            assert decode_bands(data, found.channels, full).shape[2] == found.channels
            ends["decoded"] += 1
        except ImageError:
            ends["refused"] += 1
    assert min(ends.values()) > 75  # the mutants are neither harmless nor all dead at the door


# ---- descriptions and the way through -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, expected",
    [
        (noise(4, 6, 3, kind="uint8"), (4, 6, 3, "uint8")),
        (noise(4, 6, 13), (4, 6, 13, "uint16")),
        (noise(4, 6, 2, kind="float64"), (4, 6, 2, "float32")),
        (saved(Image.new("RGB", (6, 4)), "JPEG"), (4, 6, 3, "uint8")),
        (saved(Image.new("L", (6, 4)), "JPEG"), (4, 6, 1, "uint8")),
        (saved(Image.new("CMYK", (6, 4)), "JPEG"), (4, 6, 3, "uint8")),
        (saved(Image.new("P", (6, 4)), "GIF"), (4, 6, 3, "uint8")),
        (saved(Image.new("1", (6, 4)), "PNG"), (4, 6, 1, "uint8")),
        (saved(Image.new("F", (6, 4)), "TIFF"), (4, 6, 1, "float32")),
        (b"Pf 6 4 -1.0\n" + bytes(96), (4, 6, 1, "float32")),
        (Image.new("RGBA", (6, 4)), (4, 6, 4, "uint8")),
        (Image.new("F", (6, 4)), (4, 6, 1, "float32")),
        (Image.new("I", (6, 4)), (4, 6, 1, "uint16")),
    ],
)
def test_the_header_tells_bands_and_kind(source: Any, expected: tuple[int, int, int, str]) -> None:
    assert describe_bands(source) == expected


def test_floats_of_a_file(tmp_path: Path) -> None:
    values = noise(12, 10, kind="float32")
    Image.fromarray(values).save(tmp_path / "a.tiff")
    np.save(tmp_path / "a.npy", values.astype(np.float64))
    for name in ("a.tiff", "a.npy"):
        np.testing.assert_array_equal(plain((12, 10), 1, 1.0)(tmp_path / name)[0], values)


def test_range_in_a_dictionary_there_and_back() -> None:
    deep = Preprocess(32, channels=5, range=10_000, mean=(0.1, 0.2, 0.3, 0.4, 0.5))
    written_out = json.loads(json.dumps(deep.to_dict()))
    assert written_out["range"] == 10_000
    assert Preprocess.from_dict(written_out) == deep
    assert "range" not in Preprocess(channels=5).to_dict()  # files of older versions stay the same bytes
    assert Preprocess.from_dict({"channels": 5}).range == 255
    assert dataclasses.replace(deep, range=255) != deep
    with pytest.raises(ConfigError, match="range: expected a number"):
        Preprocess.from_dict({"range": "65535"})


@pytest.mark.parametrize("kind", ["uint16", "float32"])
def test_a_network_of_five_bands_from_folder_to_answer(tmp_path: Path, kind: Literal["uint16", "float32"]) -> None:
    """Saved and loaded with its range; .npy and .tif files of a folder give the answers of their arrays."""
    config = ViTConfig(image_size=16, patch_size=8, channels=5, width=16, depth=1, heads=2, mlp_width=16, classes=3)
    full = {"uint16": 10_000.0, "float32": 1.0}[kind]
    preprocess = Preprocess(16, channels=5, mean=0.3, std=0.2, range=full)
    model = ViT(config)
    torch.nn.init.normal_(model.head.classify.weight)  # type: ignore[arg-type, union-attr]
    save(Checkpoint(model, preprocess, ("a", "b", "c")), tmp_path / "five.safetensors")
    ckpt = load(tmp_path / "five.safetensors")
    assert ckpt.preprocess == preprocess
    images = [noise(20, 22 + step, 5, kind=kind) for step in range(2)]
    folder = tmp_path / "tiles"
    folder.mkdir()
    np.save(folder / "1.npy", images[0])
    (folder / "2.tif").write_bytes(written(images[1]))
    found = find_images([folder])
    assert [path.name for path in found] == ["1.npy", "2.tif"]
    by_file, by_array = predict(ckpt, found, top=3), predict(ckpt, images, top=3)
    assert [each[1:] for each in by_file] == [each[1:] for each in by_array]
    assert by_file[0].probabilities != by_file[1].probabilities
