"""split_jpegs: the images of a stream, byte for byte, however it is cut into pieces."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import ImageError, InputError
from vitrail.inference.jpegs import GAP, split_jpegs


def jpeg(seed: int, size: tuple[int, int] = (64, 48), **options: object) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG", **options)
    return file.getvalue()


def with_thumbnail(data: bytes) -> bytes:
    """A whole other JPEG, start and end marks and all, within a segment."""
    inside = b"Exif\0\0" + jpeg(99, (16, 16))
    return data[:2] + b"\xff\xe1" + (len(inside) + 2).to_bytes(2, "big") + inside + data[2:]


IMAGES = [
    jpeg(0),
    jpeg(1, progressive=True),  # several scans
    jpeg(2, restart_marker_blocks=2),  # marks within a scan
    with_thumbnail(jpeg(3)),
    jpeg(4)[:2] + b"\xff\xff\xff" + jpeg(4)[3:],  # fill bytes before a marker
    jpeg(5, (8, 8), comment=b"\xff\xd9 looks like an end"),
]


def split(data: bytes, seed: int | None = None, most: int = 1 << 20) -> list[bytes]:
    """The images, with the data given in pieces of any length."""
    dice, file = random.Random(seed), io.BytesIO(data)
    return list(split_jpegs(lambda size: file.read(size if seed is None else dice.randint(1, 40)), "cam", most))


def test_every_image_comes_out_as_it_went_in() -> None:
    assert split(b"".join(IMAGES)) == IMAGES
    for seed in range(8):
        assert split(b"".join(IMAGES), seed) == IMAGES


def test_what_stands_between_images_is_left_out() -> None:
    lines = b"\r\n--frame\r\nContent-Type: image/jpeg\r\nContent-Length: 1234\r\n\r\n"
    assert split(lines + lines.join(IMAGES) + b"\r\n--frame--\r\n", 3) == IMAGES
    assert split(b"\0\0".join(IMAGES) + b"\0" * 100) == IMAGES


@pytest.mark.parametrize("kind", range(len(IMAGES)))
def test_a_cut_anywhere_is_an_error(kind: int) -> None:
    before, last = IMAGES[0], IMAGES[kind]
    for end in range(3, len(last), max(1, len(last) // 40)):
        found = split_jpegs(io.BytesIO(before + last[:end]).read, "cam", 1 << 20)
        assert next(found) == before
        with pytest.raises(ImageError, match="cam: cut short, the stream ends within frame 1"):
            next(found)


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "cam: no JPEG in it"),
        (b"nothing", "cam: no JPEG in it"),
        (b"\0" * (GAP + 100), "cam: no JPEG begins in 65,536 bytes before frame 0"),
        (b"\xff\xd8\xff\xe0\0\x04ab" + b"text", "frame 0 is damaged: a segment ends in the wrong place"),
        (b"\xff\xd8\xff\xe0\0\x01ab", "frame 0 is damaged: no segment stands where one should"),
        (b"\xff\xd8\xff\xd8\xff\xd8\xff", "frame 0 is damaged: no segment stands where one should"),
    ],
)
def test_what_is_no_stream_of_images(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        split(data)


def test_an_image_without_end_is_refused() -> None:
    endless = IMAGES[0][:-2] + b"\x55" * (1 << 20)
    with pytest.raises(ImageError, match="refused, frame 0 is larger than 100,000 bytes"):
        split(endless, most=100_000)


def test_text_and_files_that_do_not_wait() -> None:
    for wrong in ("text", None):
        with pytest.raises(InputError, match="cam: expected bytes, got .*: open it in binary mode, and blocking"):
            list(split_jpegs(lambda _, wrong=wrong: wrong, "cam", 100))
