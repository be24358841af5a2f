"""decode: images turned upright, frames and pages, and what is no image."""

from __future__ import annotations

import io
import struct
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile

from images.band_files import saved
from vitrail.errors import ImageError, InputError
from vitrail.images import FORMATS, Limits, Preprocess, decode
from vitrail.images.decoding import decode_pages
from vitrail.images.headers import webp_size


def pixel(source: object, mode: str = "RGB") -> object:
    return decode(source, mode).getpixel((0, 0))  # type: ignore[arg-type]


@pytest.mark.fault("I6")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_i6_eight_orientations_are_the_upright_image(kind: str) -> None:
    if kind not in FORMATS:
        pytest.skip(f"this Pillow has no {kind}")
    upright = Image.fromarray(np.kron(np.arange(24, dtype=np.uint8).reshape(4, 6) * 10, np.ones((16, 16), np.uint8)))
    upright = upright.convert("RGB")
    Flip = Image.Transpose
    # What the camera stored, given how it was held: the inverse of the turn that shows it upright.
    stored = {2: Flip.FLIP_LEFT_RIGHT, 3: Flip.ROTATE_180, 4: Flip.FLIP_TOP_BOTTOM, 5: Flip.TRANSPOSE,
              6: Flip.ROTATE_90, 7: Flip.TRANSVERSE, 8: Flip.ROTATE_270}  # fmt: skip
    preprocess = Preprocess(size=32)
    for orientation in range(1, 9):
        image = upright if orientation == 1 else upright.transpose(stored[orientation])
        exif = Image.Exif()
        exif[0x0112] = orientation
        lossless = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100}, "AVIF": {"quality": 100}}.get(kind, {})
        data = saved(image, kind, exif=exif.tobytes() if kind != "TIFF" else exif, **lossless)
        for source in (data, Image.open(io.BytesIO(data))):
            got = decode(source)
            assert got.size == upright.size, orientation
            assert np.abs(np.asarray(got).astype(int) - np.asarray(upright)).max() <= (
                3 if kind in ("JPEG", "AVIF") else 0
            )
            assert np.abs(preprocess(source) - preprocess(upright)).max() <= 0.03
        if kind == "TIFF":
            data = saved(image, kind, exif=exif, compression="tiff_lzw")
            assert decode(data).tobytes() == upright.tobytes()


@pytest.mark.fault("I6")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_i6_an_image_is_turned_once_however_often_it_is_decoded(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(Image.new("RGB", (40, 24)), kind, exif=exif)
    upright = decode(data)
    assert upright.size == (24, 40)
    assert decode(upright) is upright
    with Image.open(io.BytesIO(data)) as image:
        assert decode(decode(image)).size == (24, 40)


@pytest.mark.fault("I6")
def test_i6_an_orientation_in_xmp_alone_is_ignored_in_files_for_good() -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    found = decode(saved(Image.new("RGB", (40, 24)), "JPEG", xmp=xmp))
    assert found.size == (40, 24)
    assert decode(found) is found


@pytest.mark.fault("I6")
@pytest.mark.parametrize(
    "exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\x08\0\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"junk"]
)
def test_i6_a_broken_exif_block_turns_nothing(exif: bytes) -> None:
    image = Image.new("RGB", (3, 5), (1, 2, 3))
    assert decode(saved(image, "PNG", exif=exif) if exif else saved(image, "PNG")).size == (3, 5)
    assert decode(saved(image, "JPEG", exif=exif)).size == (3, 5)


def test_an_orientation_set_on_an_image_in_memory_counts() -> None:
    image = Image.new("RGB", (3, 5))
    image.getexif()[0x0112] = 6
    assert decode(image).size == (5, 3)


@pytest.mark.fault("I6")
@pytest.mark.parametrize("order", ["<", ">"])
def test_i6_both_byte_orders_of_exif_turn_the_image(order: str) -> None:
    """A block of one tag, the orientation, as cameras of either kind write it."""
    block = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    assert decode(saved(Image.new("RGB", (40, 24)), "JPEG", exif=b"Exif\0\0" + block)).size == (24, 40)


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}])
def test_the_size_in_a_webp_header_is_that_of_the_image(options: dict[str, Any]) -> None:
    data = saved(Image.new("RGB", (40, 24)), "WEBP", **options)
    assert webp_size(data) == (40, 24)
    assert decode(data, limits=Limits(side=40)).size == (40, 24)
    with pytest.raises(ImageError, match="raise Limits.side"):
        decode(data, limits=Limits(side=39))
    assert webp_size(b"\x89PNG" + bytes(40)) is None


@pytest.mark.fault("I8")
@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_every_nth_page_is_that_page_upright(kind: str) -> None:
    """All of them first and only then looked at: each is an image of its own."""
    colours = [(50 * number, 0, 255 - 50 * number) for number in range(5)]
    pages = [Image.new("RGB", (8, 6), colour) for colour in colours]
    data = saved(pages[0], kind, save_all=True, append_images=pages[1:])
    for every, kept in ((1, colours), (2, colours[::2]), (3, colours[::3]), (9, colours[:1])):
        found = list(decode_pages(data, "pages", every))
        assert [page.getpixel((7, 5)) for page in found] == kept
        assert {page.size for page in found} == {(8, 6)}


@pytest.mark.fault("I8")
@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_i8_the_first_frame(kind: str) -> None:
    if kind not in FORMATS:
        pytest.skip(f"this Pillow has no {kind}")
    first, *rest = [Image.new("RGB", (16, 16), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(first, kind, save_all=True, append_images=rest, **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    assert np.abs(np.subtract(pixel(data), (255, 0, 0))).max() <= (4 if kind == "AVIF" else 0)


@pytest.mark.fault("I8")
def test_i8_an_mpo_is_its_first_jpeg() -> None:
    first, second = Image.new("RGB", (16, 16), (255, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 255))
    data = saved(first, "MPO", save_all=True, append_images=[second])
    assert np.abs(np.subtract(pixel(data), (255, 0, 0))).max() <= 3


@pytest.mark.fault("I10")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_i10_colour_profiles_are_ignored(kind: str) -> None:
    image = Image.new("RGB", (16, 16), (200, 40, 90))
    wide = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    options = {"lossless": True} if kind == "WEBP" else {}
    without = decode(saved(image, kind, **options)).tobytes()
    for profile in (wide, wide[:50], b"not a profile", b"\0" * 4000):
        assert decode(saved(image, kind, icc_profile=profile, **options)).tobytes() == without


def test_an_upright_rgb_image_is_not_copied() -> None:
    image = Image.new("RGB", (4, 4))
    assert decode(image) is image


def test_wrong_types_are_told() -> None:
    for wrong in (None, 3, [1, 2], object()):
        with pytest.raises(InputError, match="expected a path, bytes, PIL image or numpy array"):
            decode(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="mode must be"):
        decode(Image.new("RGB", (2, 2)), "RGBA")  # type: ignore[arg-type]


def test_pillows_state_and_the_warning_filters_stay_as_they_were(tmp_path: Path) -> None:
    before = (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, list(warnings.filters))
    data = saved(Image.new("RGB", (60, 60)), "TIFF")
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda cut: _size(data[:cut]), [len(data), 3000, len(data), 100] * 50))
    assert sizes[0] == (60, 60)
    assert None in sizes
    assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def _size(data: bytes) -> tuple[int, int] | None:
    try:
        return decode(data).size
    except ImageError:
        return None
