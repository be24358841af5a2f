"""The first bytes of a file tell whether it is an image, of every kind that is read here."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vitrail.images import FORMATS
from vitrail.images.signatures import START, is_image_start


@pytest.mark.parametrize("kind", [*FORMATS, "MPO"])
def test_images_of_every_kind_begin_as_images(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (9, 7), (200, 10, 30)).save(file, kind)
    assert is_image_start(file.getvalue()[:START])


def test_arrays_portable_maps_and_heic_begin_as_images() -> None:
    file = io.BytesIO()
    np.save(file, np.zeros((2, 2, 3), np.uint8))
    assert is_image_start(file.getvalue()[:START])
    for start in (b"P2\n# made by hand\n2 2\n", b"P5 3 3 255\n", b"Pf\n3 3\n", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"):
        assert is_image_start(start)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"RIFF\0\0\0\0WAVEfmt ",
        b"BM is a text that begins so, and goes on",
        b"P6 is a road",
        b"%PDF-1.7",
        b"\0\0\0\x18ftypisom\0\0\x02\0isommp41",
        b"#!/bin/sh\n",
        b"<!doctype html>",
        bytes(64),
    ],
)
def test_other_files_do_not(data: bytes) -> None:
    assert not is_image_start(data)
