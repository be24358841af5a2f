"""Arrays in .npy files: their headers are held against their bytes, and what they hold is an image like any other."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from images.band_files import FULL, noise, npy
from vitrail.errors import ImageError
from vitrail.images import Limits, Preprocess, decode, decode_bands, describe_bands


def test_npy_by_columns_is_the_same_image() -> None:
    values = noise(5, 7, 3)
    for stored in (values, np.asfortranarray(values)):
        np.testing.assert_array_equal(decode_bands(npy(stored), 3, FULL), values)
    assert b"'fortran_order': True" in npy(np.asfortranarray(values))


def test_npy_files_are_images_of_the_8_bit_road_too(tmp_path: Path) -> None:
    colour, grey = noise(20, 30, 3, kind="uint8"), noise(20, 30, kind="uint8")
    np.save(tmp_path / "a.npy", colour)
    np.testing.assert_array_equal(np.asarray(decode(tmp_path / "a.npy")), colour)
    np.testing.assert_array_equal(np.asarray(decode(npy(grey), "L")), grey)
    assert decode(npy(np.full((2, 2), True))).getpixel((0, 0)) == (255, 255, 255)
    assert decode(npy(np.full((2, 2, 3), 0.2, np.float32))).getpixel((0, 0)) == (51, 51, 51)
    preprocess = Preprocess(16)
    np.testing.assert_array_equal(preprocess(tmp_path / "a.npy"), preprocess(colour))
    with pytest.raises(ImageError, match=r"over the limit of 599 .pixels.*raise Limits.pixels"):
        decode(npy(colour), limits=Limits(pixels=599))
    with pytest.raises(ImageError, match="channels come last"):
        decode(npy(colour.transpose(2, 0, 1)))


def header(text: str, body: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    packed = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + packed + text.encode() + body


def claims(shape: str, word: str = "'<u2'", columns: str = "False") -> str:
    return f"{{'descr': {word}, 'fortran_order': {columns}, 'shape': {shape}, }}"


@pytest.mark.fault("I2")
@pytest.mark.parametrize(
    "data, message",
    [
        (header(claims("(1000000, 1000000, 2)"), bytes(64)), "takes 4,000,000,000,000 bytes, 64 are there"),
        (header(claims(f"({2**62}, {2**62})"), bytes(64)), "are there: damaged or cut short"),
        (header(claims("(4, 4)"), bytes(31)), "takes 32 bytes, 31 are there"),
        (header(claims("(4, 4)"), bytes(33)), "takes 32 bytes, 33 are there"),
        (header(claims("(0, 4)")), "has no pixels"),
        (header(claims("()"), bytes(2)), "takes 2 bytes"),
        (header(claims("(4,)"), bytes(8)), "expected .H, W. or .H, W, C."),
        (header(claims("(1, 2, 2, 2)"), bytes(16)), "expected .H, W. or .H, W, C."),
        (header(claims("(-4, -4)"), bytes(32)), "expected plain numbers"),
        (header(claims("(4.0, 4)"), bytes(32)), "expected plain numbers"),
        (header(claims("[4, 4]"), bytes(32)), "expected plain numbers"),
        (header(claims("(True, 16)"), bytes(32)), "expected plain numbers"),
        (header(claims("(4, 4)", columns="0"), bytes(32)), "expected plain numbers"),
        (header(claims("(4, 4)", "'|O'"), bytes(128)), "an array of '.O', expected plain numbers"),
        (header(claims("(2, 2)", "[('a', '<u2')]"), bytes(8)), "expected plain numbers"),
        (header(claims("(2, 2)", "'<U4'"), bytes(64)), "expected plain numbers"),
        (header(claims("(2, 2)", "'<c8'"), bytes(32)), "expected plain numbers"),
        (header(claims("(2, 2)", "'<f16'"), bytes(64)), "expected plain numbers"),
        (header(claims("(2, 2)", "'<i8'"), bytes(32)), "expected uint8, uint16 or float values, got int64"),
        (header("{'descr': '<u2'}"), "cannot be read"),
        (header("__import__('os')"), "cannot be read"),
        (header("(" * 3000), "cannot be read"),
        (header("-" * 4000 + "1"), "cannot be read"),
        (header("\xff" * 10), "cannot be read"),
        (header(claims("(2, 2)"), bytes(8), version=9), "makes no sense"),
        (header(claims("(2, 2)"), bytes(8), version=2, length=2**31), "makes no sense"),
        (header(" " * 5000), "makes no sense"),
        (b"\x93NUMPY", "makes no sense"),
    ],
)
def test_i2_npy_files_that_lie_are_refused_from_the_header(data: bytes, message: str) -> None:
    for read in (describe_bands, lambda source: decode_bands(source, 1, FULL)):
        with pytest.raises(ImageError, match=message):
            read(data)
    with pytest.raises(ImageError, match="image of|expected|pixels"):
        decode(data)


def test_npy_of_later_versions_is_read() -> None:
    body = noise(2, 3).tobytes()
    for version in (1, 2, 3):
        np.testing.assert_array_equal(
            decode_bands(header(claims("(2, 3)"), body, version), 1, FULL)[:, :, 0], noise(2, 3)
        )
