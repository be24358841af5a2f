"""Scaled decoding and 8-bit values: near the full image where the first, the same bits where the second."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import ConfigError, ImageError, InputError
from vitrail.images import Limits, Preprocess, decode
from vitrail.images.decoding import decode_scaled

FULL = Preprocess(size=96)
SCALED = dataclasses.replace(FULL, scaled_decoding=True)


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    """The cup of coffee that scikit-image carries, 600x400, at twice its size."""
    folder = Path(pytest.importorskip("skimage.data").__file__).parent
    with Image.open(folder / "coffee.png") as image:
        return image.convert("RGB").resize((1200, 800), Image.Resampling.BICUBIC)


def jpeg(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


def apart(first: Preprocess, second: Preprocess, source: Any) -> tuple[int, float]:
    """Largest and mean difference of what two networks see, in grey levels."""
    gap = np.abs(first.array(source) - second.array(source))
    return int(gap.max()), float(gap.mean())


def turned(image: Image.Image, tag: int) -> bytes:
    """A JPEG stored turned, with the tag that says so."""
    stored = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[tag]
    exif = Image.Exif()
    exif[0x0112] = tag
    return jpeg(image if stored is None else image.transpose(stored), exif=exif)


# ---- scaled decoding ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size, part", [((1200, 800), 2), ((848, 848), 4), ((847, 847), 2), ((846, 423), 1), ((424, 424), 2), ((96, 96), 1)]
)
def test_the_smallest_part_that_is_ample(size: tuple[int, int], part: int) -> None:
    """The short side becomes 106, so at least 212 pixels are decoded: 424 may be halved, 423 may not."""
    data = jpeg(Image.new("RGB", size))
    found = decode_scaled(data, SCALED._ample)
    assert found.image.size == (-(-size[0] // part), -(-size[1] // part))
    assert (found.width, found.height) == size
    assert found.area == (0, 0, size[0] / part, size[1] / part)


@pytest.mark.parametrize("side, part", [(3400, 8), (1700, 8), (1690, 4), (850, 4), (840, 2)])
def test_quarters_and_eighths(side: int, part: int) -> None:
    assert decode_scaled(jpeg(Image.new("L", (side, side))), SCALED._ample).image.width == -(-side // part)


@pytest.mark.parametrize("resize, crop", [("crop", 0.9), ("squash", 0.9), ("pad", 1.0)])
@pytest.mark.parametrize("kernel, most", [("bilinear", 16), ("bicubic", 16), ("lanczos", 16), ("box", 48)])
def test_a_scaled_photo_is_nearly_the_photo(
    photo: Image.Image, resize: Any, crop: float, kernel: Any, most: int
) -> None:
    """A few grey levels, on edges, and less than one on average; Pillow's box takes whole pixels, or does not."""
    full = Preprocess(size=96, resize=resize, crop=crop, interpolation=kernel)
    largest, mean = apart(full, dataclasses.replace(full, scaled_decoding=True), jpeg(photo))
    assert 0 < largest <= most
    assert 0 < mean <= most / 32


def test_as_pillow_would_with_its_own_tools(photo: Image.Image) -> None:
    data = jpeg(photo.crop((0, 0, 1199, 799)))
    with Image.open(io.BytesIO(data)) as image:
        _, box = image.draft("RGB", (318, 212)) or ("", None)
        cut = image.resize((159, 106), Image.Resampling.BICUBIC, box=box).crop((32, 5, 128, 101))
        across, down = 1199 / 2 / 159, 799 / 2 / 106
        frame = (32 * across, 5 * down, 128 * across, 101 * down)
        expected = image.resize((96, 96), Image.Resampling.BICUBIC, box=frame)  # the same, the rest left out
    assert box == (0, 0, 1199 / 2, 799 / 2)
    found = np.asarray(SCALED.visible_image(data))
    assert np.array_equal(found, np.asarray(expected))
    assert np.abs(found.astype(int) - np.asarray(cut)).max() <= 1


@pytest.mark.parametrize("size", [(1200, 800), (1193, 795)])
@pytest.mark.parametrize("tag", range(1, 9))
def test_every_orientation(photo: Image.Image, size: tuple[int, int], tag: int) -> None:
    """Also where the scaled image ends within a pixel, which turning brings to any side."""
    data = turned(photo.crop((0, 0, *size)), tag)
    largest, mean = apart(FULL, SCALED, data)
    assert 0 < largest <= 16
    assert mean <= 0.6
    found = decode_scaled(data, SCALED._ample)
    assert (found.width, found.height) == size
    left, top, right, bottom = found.area
    assert (right - left, bottom - top) == (size[0] / 2, size[1] / 2)
    assert (left > 0, top > 0) == (size[0] % 2 == 1 and tag in (2, 3, 6, 7), size[0] % 2 == 1 and tag in (3, 4, 7, 8))


def test_ends_within_a_pixel_are_kept_apart() -> None:
    """A ramp that ends in the first eighth of a pixel: forgetting so would shrink it by a level and more."""
    ramp = np.tile(np.linspace(0, 255, 801).astype(np.uint8), (801, 1))
    grey = Preprocess(size=48, crop=1.0, resize="squash", channels=1)
    for tag in (1, 2, 3, 6):
        data = turned(Image.fromarray(ramp), tag)
        found = decode_scaled(data, dataclasses.replace(grey, scaled_decoding=True)._ample, "L")
        assert found.image.size == (101, 101)
        largest, mean = apart(grey, dataclasses.replace(grey, scaled_decoding=True), data)
        forgotten, full = (np.asarray(grey.visible_image(each), np.float32) for each in (found.image, data))
        assert (largest, mean < 0.1) == (1, True)
        assert np.abs(forgotten - full).mean() > 1


def test_four_inks_and_grey(photo: Image.Image) -> None:
    for mode in ("CMYK", "L"):
        largest, mean = apart(FULL, SCALED, jpeg(photo.convert(mode)))
        assert 0 < largest <= 20
        assert mean <= 0.7
    grey, scaled = (dataclasses.replace(each, channels=1, mean=0.5, std=0.5) for each in (FULL, SCALED))
    assert apart(grey, scaled, jpeg(photo))[0] <= 16


def test_a_strip_is_scaled_where_the_frame_keeps_it(photo: Image.Image) -> None:
    strip = jpeg(Image.fromarray(np.tile(np.asarray(photo.crop((0, 200, 1200, 640))), (1, 10, 1))))
    largest, mean = apart(FULL, SCALED, strip)
    assert decode_scaled(strip, SCALED._ample).image.height == 220
    assert 0 < largest <= 20
    assert mean <= 0.7


def test_all_else_stays_as_it_was(photo: Image.Image, tmp_path: Path) -> None:
    """Other formats, small JPEGs, arrays and images in memory: the same bits. Paths: as bytes."""
    file = io.BytesIO()
    photo.save(file, "PNG")
    array = np.asarray(photo)
    for source in (file.getvalue(), jpeg(photo.resize((200, 150))), array, photo):
        assert np.array_equal(FULL(source), SCALED(source))
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(photo))
    assert np.array_equal(SCALED(path), SCALED(path.read_bytes()))
    assert SCALED.full_image(path).size == photo.size
    assert np.array_equal(np.asarray(SCALED.full_image(path)), np.asarray(decode(path)))
    assert SCALED.box(800, 1200) == FULL.box(800, 1200)


def test_the_first_of_two_images_of_a_phone(photo: Image.Image) -> None:
    file = io.BytesIO()
    photo.save(file, "MPO", save_all=True, append_images=[Image.new("RGB", photo.size)])
    assert decode_scaled(file.getvalue(), SCALED._ample).image.size == (600, 400)
    assert apart(FULL, SCALED, file.getvalue())[1] <= 0.6


@pytest.mark.fault("I4")
def test_damaged_images_are_errors_all_the_same(photo: Image.Image, tmp_path: Path) -> None:
    data = jpeg(photo)
    for end in (2, 20, 400, len(data) // 2, len(data) - 300):
        with pytest.raises(ImageError):
            SCALED(data[:end])
    with pytest.raises(ImageError, match="no such file"):
        SCALED(tmp_path / "none.jpg")
    with pytest.raises(ImageError, match=r"1200x800 is over the limit of 10,000 \(pixels\)"):
        decode_scaled(data, SCALED._ample, limits=Limits(pixels=10_000))
    with pytest.raises(InputError, match="expected a path, bytes, PIL image or numpy array, got NoneType"):
        SCALED(None)  # type: ignore[arg-type]


def test_it_is_recorded_and_only_where_it_is_on() -> None:
    assert "scaled_decoding" not in FULL.to_dict()
    assert SCALED.to_dict() == FULL.to_dict() | {"scaled_decoding": True}
    assert Preprocess.from_dict(SCALED.to_dict()) == SCALED != FULL


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"antialias": False}, "needs antialias=True and a kernel other than nearest, got antialias=False, 'bicubic'"),
        ({"interpolation": "nearest"}, "got antialias=True, 'nearest'"),
        ({"channels": 4}, "needs ordinary images, 1 or 3 channels of range 255, got 4 of range 255"),
        ({"range": 65535}, "got 3 of range 65535"),
        ({"scaled_decoding": 1}, "scaled_decoding 1 is unknown"),
    ],
)
def test_what_it_does_not_go_with(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocess(**{"scaled_decoding": True} | wrong)


# ---- 8-bit values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "preprocess",
    [
        FULL,
        SCALED,
        Preprocess(size=(40, 56), order="BGR", mean=(0.1, 0.4, 0.7), std=(0.2, 0.3, 0.5)),
        Preprocess(size=50, resize="pad", crop=1.0, channels=1, mean=0.1307, std=0.3081),
        Preprocess(size=64, antialias=False, interpolation="bilinear"),
    ],
)
def test_bytes_normalised_are_the_pixels(photo: Image.Image, preprocess: Preprocess) -> None:
    sources = [jpeg(photo), photo.resize((90, 70)), np.asarray(photo)[:300, :500]]
    values = np.stack([preprocess.to_uint8(each) for each in sources])
    assert values.shape == (3, *preprocess.size, preprocess.channels)
    assert values.dtype == np.uint8
    pixels = preprocess.normalise(values)
    assert pixels.dtype == np.float32
    assert np.array_equal(pixels, preprocess.batch(sources))
    assert np.array_equal(preprocess.normalise(values[0]), preprocess(sources[0]))
    assert preprocess.normalise(values[None]).shape == (1, 3, preprocess.channels, *preprocess.size)


def test_bytes_are_what_the_network_sees(photo: Image.Image) -> None:
    seen = np.asarray(FULL.visible_image(photo))
    assert np.array_equal(FULL.to_uint8(photo), seen)
    other = dataclasses.replace(FULL, order="BGR")
    assert np.array_equal(other.to_uint8(photo), seen)  # RGB whatever the network wants: normalising puts it in order
    assert np.array_equal(other.normalise(other.to_uint8(photo)), other(photo))


def test_bytes_of_ordinary_images_only(photo: Image.Image) -> None:
    assert FULL.is_8bit
    for other in (Preprocess(channels=4), Preprocess(range=65535)):
        assert not other.is_8bit
        with pytest.raises(InputError, match="to_uint8: expected a Preprocess of 1 or 3 channels of range 255, got"):
            other.to_uint8(photo)
        with pytest.raises(InputError, match="normalise: expected uint8"):
            other.normalise(np.zeros((8, 8, other.channels), np.uint8))


@pytest.mark.parametrize(
    "wrong", [np.zeros((8, 8, 3), np.float32), np.zeros((8, 8), np.uint8), np.zeros((3, 8, 8), np.uint8), [[[1, 2, 3]]]]
)
def test_what_is_no_bytes(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"normalise: expected uint8 of shape \(..., H, W, 3\) and range 255, got"):
        FULL.normalise(wrong)
