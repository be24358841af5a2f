"""What the first bytes of an image tell: its kind, its orientation, the size of a WebP canvas."""

from __future__ import annotations

import io
import struct

import pytest
from PIL import Image

from vitrail.errors import ImageError
from vitrail.images.headers import SCANS, check_metadata, guess_format, orientation, webp_size


@pytest.mark.parametrize(
    "data, words",
    [
        (b"%PDF-1.7", "a PDF document"),
        (b"\0\0\0\x18ftypisom", "a video"),
        (bytes(32), "nothing but zero bytes"),
        (b"  <svg xmlns='x'>", "an SVG drawing"),
        (b"<!DOCTYPE html>", "a web page"),
        (b"hello", "text"),
        (b"\x01\x02\xfe\xff", "not known"),
    ],
)
def test_other_files_are_named(data: bytes, words: str) -> None:
    assert words in guess_format(data)


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_orientation_of_an_exif_block(order: str) -> None:
    start = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8)
    for asked, told in ((1, 1), (6, 6), (8, 8), (9, 1), (0, 1)):
        entry = struct.pack(f"{order}HHHIHH", 1, 0x0112, 3, 1, asked, 0)
        assert orientation(b"Exif\0\0" + start + entry) == told
        assert orientation(b"Exif\0\0" + start + entry[:6]) == 1  # cut short: it asks for nothing
    assert orientation(b"") == 1


@pytest.mark.parametrize("lossless", [True, False])
def test_the_canvas_of_a_webp(lossless: bool) -> None:
    file = io.BytesIO()
    Image.new("RGB", (37, 21)).save(file, "WEBP", lossless=lossless)
    assert webp_size(file.getvalue()) == (37, 21)
    assert webp_size(b"RIFF" + bytes(40)) is None


def test_scans_without_end_are_refused() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    data = file.getvalue()
    scan = data.index(b"\xff\xda")
    check_metadata(data, "a.jpg", 10_000)
    with pytest.raises(ImageError, match=f"a.jpg: refused, a JPEG of more than {SCANS} scans"):
        check_metadata(data[:scan] + data[scan:-2] * (SCANS + 1) + data[-2:], "a.jpg", 10_000)
    with pytest.raises(ImageError, match="metadata of over 10 bytes"):
        check_metadata(data, "a.jpg", 10)
