"""The value of every kind of pixel, written down, from images of every mode and from arrays."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from images.band_files import chunk, saved
from vitrail.errors import ImageError
from vitrail.images import decode


def pixel(source: object, mode: str = "RGB") -> object:
    return decode(source, mode).getpixel((0, 0))  # type: ignore[arg-type]


def one(mode: str, value: object) -> Image.Image:
    return Image.new(mode, (2, 2), value)  # type: ignore[arg-type]


def premultiplied(mode: str, *values: int) -> Image.Image:
    return Image.frombytes(mode, (2, 2), bytes(values) * 4)


# Each mode with a value, and the RGB value it must become. docs/images.md shows the rules.
GOLDEN = [
    ("1", one("1", 1), (255, 255, 255)),
    ("L", one("L", 77), (77, 77, 77)),
    ("LA", one("LA", (100, 51)), (224, 224, 224)),  # 100 * 0.2 + 255 * 0.8
    ("La", premultiplied("La", 20, 51), (224, 224, 224)),  # already multiplied
    ("RGB", one("RGB", (1, 2, 3)), (1, 2, 3)),
    ("RGBA", one("RGBA", (100, 0, 255, 51)), (224, 204, 255)),
    ("RGBA hidden colour", one("RGBA", (9, 9, 9, 0)), (255, 255, 255)),
    ("RGBa", premultiplied("RGBa", 20, 0, 51, 51), (224, 204, 255)),
    ("RGBX", one("RGBX", (1, 2, 3, 0)), (1, 2, 3)),
    ("CMYK", one("CMYK", (255, 0, 0, 0)), (0, 255, 255)),
    ("CMYK key", one("CMYK", (0, 0, 0, 255)), (0, 0, 0)),
    ("YCbCr", one("YCbCr", (128, 128, 128)), (128, 128, 128)),
    ("YCbCr red", one("YCbCr", (76, 85, 255)), (254, 0, 0)),
    ("HSV", one("HSV", (0, 255, 255)), (255, 0, 0)),
    ("LAB white", one("LAB", (255, 128, 128)), (255, 255, 255)),
    ("LAB grey", one("LAB", (138, 128, 128)), (129, 129, 129)),  # L* = 54.1
    ("I;16", one("I;16", 65535), (255, 255, 255)),
    ("I;16 middle", one("I;16", 100 * 257), (100, 100, 100)),
    ("I;16 rounds", one("I;16", 100 * 257 + 129), (101, 101, 101)),
    ("I", one("I", 200 * 257), (200, 200, 200)),
    ("F", one("F", 0.4), (102, 102, 102)),
]


@pytest.mark.fault("I7")
@pytest.mark.parametrize("name,image,expected", GOLDEN, ids=[each[0] for each in GOLDEN])
def test_i7_every_mode_has_its_value(name: str, image: Image.Image, expected: tuple[int, int, int]) -> None:
    got = decode(image)
    assert got.mode == "RGB"
    assert got.size == (2, 2)
    # littleCMS rounds LAB by one grey level
    assert np.abs(np.subtract(got.getpixel((1, 1)), expected)).max() <= (1 if image.mode == "LAB" else 0)
    grey = decode(image, "L")
    assert grey.mode == "L"
    assert abs(grey.getpixel((1, 1)) - Image.new("RGB", (1, 1), expected).convert("L").getpixel((0, 0))) <= 1  # type: ignore[operator]


def png16(colour_type: int, samples: list[int], extra: bytes = b"") -> bytes:
    """A 1x1 PNG of 16 bits a sample, which Pillow itself cannot write in colour."""
    row = b"\0" + struct.pack(f">{len(samples)}H", *samples)
    header = struct.pack(">IIBBBBB", 1, 1, 16, colour_type, 0, 0, 0)
    transparent = chunk(b"tRNS", extra) if extra else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + transparent
        + chunk(b"IDAT", zlib.compress(row))
        + chunk(b"IEND", b"")
    )


@pytest.mark.fault("I7")
def test_i7_files_of_every_mode() -> None:
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30, 200, 100, 50])
    assert pixel(saved(palette, "PNG")) == (10, 20, 30)
    assert pixel(saved(palette, "PNG", transparency=1)) == (255, 255, 255)
    assert pixel(saved(palette, "PNG", transparency=2)) == (10, 20, 30)
    assert pixel(saved(palette, "PNG", transparency=b"\xff\x33")) == (206, 208, 210)  # 51/255 of the colour
    assert pixel(saved(palette, "GIF", transparency=1)) == (255, 255, 255)
    assert pixel(saved(one("L", 9), "PNG", transparency=9)) == (255, 255, 255)
    assert pixel(saved(one("L", 9), "PNG", transparency=8)) == (9, 9, 9)
    assert pixel(saved(one("L", 9), "PNG", transparency=9), "L") == 255
    assert pixel(saved(one("RGB", (1, 2, 3)), "PNG", transparency=(1, 2, 3))) == (255, 255, 255)
    assert pixel(saved(one("1", 0), "PNG")) == (0, 0, 0)
    assert pixel(saved(one("I;16", 300), "PNG")) == (1, 1, 1)  # 300 / 257; clipping would give 255
    assert pixel(saved(one("I;16", 300), "TIFF")) == (1, 1, 1)
    assert pixel(saved(one("I", 300), "TIFF")) == (1, 1, 1)
    assert pixel(saved(one("F", 0.2), "TIFF")) == (51, 51, 51)
    assert pixel(saved(one("CMYK", (0, 255, 255, 0)), "TIFF")) == (255, 0, 0)
    assert np.abs(np.subtract(pixel(saved(one("LAB", (255, 128, 128)), "TIFF")), 255)).max() <= 1
    assert pixel(saved(one("RGBA", (100, 0, 255, 51)), "PNG")) == (224, 204, 255)
    assert pixel(saved(one("LA", (100, 51)), "PNG")) == (224, 224, 224)
    assert pixel(saved(one("RGBA", (100, 0, 255, 51)), "WEBP", lossless=True)) == (224, 204, 255)
    assert pixel(png16(2, [65535, 25700, 300])) == (255, 100, 1)  # the high byte of each
    assert pixel(png16(0, [25700])) == (100, 100, 100)
    assert pixel(png16(0, [25700], b"\x64\x64")) == (255, 255, 255)  # a 16-bit grey key
    assert pixel(png16(2, [65535, 25700, 300], b"\xff\xff\x64\x64\x01\x2c")) == (255, 255, 255)
    assert pixel(b"P6 1 1 65535\n" + b"\xff\xff\x64\x64\x01\x2c") == (255, 100, 1)
    assert pixel(b"P5 1 1 65535\n" + b"\x64\x64") == (100, 100, 100)
    assert pixel(b"Pf 1 1 -1.0\n" + np.float32(0.4).tobytes()) == (102, 102, 102)


@pytest.mark.fault("I7")
def test_i7_adobe_jpegs_of_four_inks() -> None:
    """Adobe writes CMYK and YCCK inverted; both come out as the colour that was meant."""
    cyan = Image.new("CMYK", (16, 16), (200, 0, 0, 0))
    plain = saved(cyan, "JPEG", quality=100)
    assert np.abs(np.subtract(pixel(plain), (55, 255, 255))).max() <= 3
    # YCCK holds the luma and chroma of 255 - ink as it is stored, and inks are stored inverted:
    # cyan 200 is stored as 55, which gives the colour (200, 0, 0): Y = 60, Cb = 94, Cr = 228.
    inks = Image.merge("CMYK", [Image.new("L", (16, 16), 255 - value) for value in (60, 94, 228, 255)])
    marked = bytearray(saved(inks, "JPEG", quality=100, subsampling=0))
    marked[marked.index(b"Adobe") + 11] = 2
    assert np.abs(np.subtract(pixel(bytes(marked)), (55, 255, 255))).max() <= 4


@pytest.mark.parametrize(
    "array,expected",
    [
        (np.full((3, 4), 7, np.uint8), (7, 7, 7)),
        (np.full((3, 4, 1), 7, np.uint8), (7, 7, 7)),
        (np.full((3, 4, 3), 7, np.uint8)[::-1, ::-1], (7, 7, 7)),
        (np.full((3, 4, 4), 51, np.uint8), (214, 214, 214)),
        (np.full((3, 4), 25700, np.uint16), (100, 100, 100)),
        (np.full((3, 4), 25700, ">u2"), (100, 100, 100)),
        (np.full((3, 4, 3), 65535, np.uint16), (255, 255, 255)),
        (np.full((3, 4, 3), 0.4, np.float32), (102, 102, 102)),
        (np.full((3, 4), 0.4, np.float64), (102, 102, 102)),
        (np.full((3, 4), 0.4, np.float16), (102, 102, 102)),
        (np.ones((3, 4), np.bool_), (255, 255, 255)),
    ],
)
def test_arrays(array: np.ndarray, expected: tuple[int, int, int]) -> None:
    got = decode(array)
    assert got.mode == "RGB"
    assert got.size == (4, 3)
    assert got.getpixel((0, 0)) == expected


@pytest.mark.parametrize(
    "array,message",
    [
        (np.zeros((3, 8, 8), np.uint8), "channels come last"),
        (np.zeros((8, 8, 2), np.uint8), r"expected \(H, W\)"),
        (np.zeros(8, np.uint8), r"expected \(H, W\)"),
        (np.zeros((0, 8, 3), np.uint8), "no pixels"),
        (np.zeros((8, 8), np.int64), "astype"),
        (np.full((8, 8), 255.0), "divide 8-bit values by 255"),
        (np.full((8, 8), np.nan), "expected 0 to 1"),
        (np.full((8, 8), -0.1), "expected 0 to 1"),
        (np.zeros((8, 8), object), "expected uint8"),
        (np.zeros((8, 8), complex), "expected uint8"),
    ],
)
def test_arrays_that_are_no_images(array: np.ndarray, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        decode(array)


@pytest.mark.fault("I7")
def test_i7_values_out_of_range_are_refused_not_clipped() -> None:
    for image in (one("I", 70_000), one("I", -1)):
        with pytest.raises(ImageError, match="expected 0 to 65535"):
            decode(image)
    for image in (one("F", 255.0), one("F", float("nan"))):
        with pytest.raises(ImageError, match="expected 0 to 1"):
            decode(image)


def test_16_bits_are_rounded_to_8_and_not_cut() -> None:
    """The nearest of 256 levels, each 257 of the 65,536 apart."""
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = np.rint(levels / 257).astype(np.uint8)
    for source in (levels, levels.astype(np.int32), Image.fromarray(levels), saved(Image.fromarray(levels), "PNG")):
        np.testing.assert_array_equal(np.asarray(decode(source, "L")), expected)
