"""TIFF of any bands and kind, read without a library; files that lie are refused."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from images.band_files import FULL, Array, chunk, handmade, noise, png16, saved, tags, written
from vitrail.errors import ImageError
from vitrail.images import Bands, decode, decode_bands, describe_bands


@pytest.mark.parametrize("bands", [2, 3, 4, 5, 13])
@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "float16", "float32", "float64"])
@pytest.mark.parametrize("apart", [False, True])
def test_tiff_of_any_bands(bands: int, kind: str, apart: bool) -> None:
    """Strips and tiles, both byte orders, with and without compression, as tifffile writes them."""
    values = noise(37, 53, bands, kind=kind)
    stored = values.transpose(2, 0, 1) if apart else values
    read_as, full = {"uint8": ("uint8", 255.0), "uint16": ("uint16", FULL), "int16": ("uint16", FULL)}.get(
        kind, ("float32", 1.0)
    )
    for options in (
        {},
        {"byteorder": ">", "rowsperstrip": 5},
        {"compression": "zlib", "rowsperstrip": 9, "bigtiff": True},
        {"tile": (16, 32)},
        {"tile": (32, 16), "compression": "zlib", "predictor": not kind.startswith("float"), "byteorder": ">"},
    ):
        data = written(stored, planarconfig="separate" if apart else "contig", **options)
        assert describe_bands(data) == (37, 53, bands, read_as)
        got = decode_bands(data, bands, full)
        assert got.dtype == read_as
        np.testing.assert_array_equal(got, values.astype(read_as))


@pytest.mark.parametrize("bands", [1, 3, 5])
def test_differences_of_floats_are_summed_up(bands: int) -> None:
    """Predictor 3: the bytes of a row by weight, the highest first, each as its difference from one pixel before."""
    values = noise(11, 17, bands, kind="float32")
    weights = np.ascontiguousarray(values.astype(">f4").reshape(11, -1, 1).view(np.uint8).swapaxes(1, 2))
    row = weights.reshape(11, -1)  # (H, 4 * W * bands)
    row = np.concatenate([row[:, :bands], np.diff(row.reshape(11, -1, bands), axis=1).reshape(11, -1)], axis=1)
    data = handmade([zlib.compress(row.astype(np.uint8).tobytes())], tags(values, 8, 3))
    np.testing.assert_array_equal(decode_bands(data, bands, 1.0), values)
    lone = Image.fromarray(values[:, :, 0])
    theirs = saved(lone, "TIFF", compression="tiff_lzw", tiffinfo={317: 3})  # as libtiff writes it
    np.testing.assert_array_equal(decode_bands(theirs, 1, 1.0), values[:, :, :1])


def test_lzw_of_many_bands() -> None:
    """LZW knows nothing of bands: the strips of a grey image that is as wide as all bytes of a row."""
    values = noise(30, 20, 13)
    grey = Image.fromarray(values.view(np.uint8).reshape(30, -1))
    data = saved(grey, "TIFF", compression="tiff_lzw")
    with Image.open(io.BytesIO(data)) as image:
        starts, lengths = (image.tag_v2[tag] for tag in (273, 279))
        rows = image.tag_v2[278]
    pieces = [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    made = handmade(pieces, {**tags(values, 5), 278: (rows,)})
    np.testing.assert_array_equal(decode_bands(made, 13, FULL), values)


@pytest.mark.fault("I8")
def test_pages_of_one_band_are_bands() -> None:
    """Smaller copies do not count; pages that differ, or have colours, are further images."""
    values = noise(24, 30, 6)
    pages = written(values.transpose(2, 0, 1), planarconfig=None)
    with Image.open(io.BytesIO(pages)) as image:
        assert image.n_frames == 6
    assert describe_bands(pages) == Bands(24, 30, 6, "uint16")
    np.testing.assert_array_equal(decode_bands(pages, 6, FULL), values)
    tifffile = pytest.importorskip("tifffile")

    def several(*parts: Array, flags: tuple[int, ...]) -> bytes:
        file = io.BytesIO()
        with tifffile.TiffWriter(file) as writer:
            for part, flag in zip(parts, flags, strict=True):
                kind = "rgb" if part.shape[-1] == 3 else "minisblack"
                writer.write(part, photometric=kind, subfiletype=flag, metadata=None)
        return file.getvalue()

    first, second, small = values[:, :, 0], values[:, :, 1], values[::2, ::2, 0]
    copies = several(first, small, second, small, flags=(0, 1, 0, 1))
    np.testing.assert_array_equal(decode_bands(copies, 2, FULL), values[:, :, :2])
    np.testing.assert_array_equal(decode_bands(several(first, small, flags=(0, 0)), 1, FULL), values[:, :, :1])
    colours = noise(9, 9, 3)
    np.testing.assert_array_equal(decode_bands(several(colours, 65535 - colours, flags=(0, 0)), 3, FULL), colours)


@pytest.mark.fault("I6")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_bands_stand_upright(orientation: int) -> None:
    """As the ordinary image does: the same turn in TIFF, PNG and Pillow's images."""
    values = noise(7, 5, 4, kind="uint8")
    exif = Image.Exif()
    exif[0x0112] = orientation
    expected = np.asarray(decode(saved(Image.fromarray(values[:, :, :3]), "PNG", exif=exif)))
    for kind in ("PNG", "TIFF"):
        data = saved(Image.fromarray(values), kind, exif=exif)
        np.testing.assert_array_equal(decode_bands(data, 4)[:, :, :3], expected)
        with Image.open(io.BytesIO(data)) as image:
            if kind == "PNG":
                np.testing.assert_array_equal(decode_bands(image, 4)[:, :, :3], expected)
    late = png16(values.astype(np.uint16) * 257, after=chunk(b"eXIf", exif.tobytes()[6:]))
    np.testing.assert_array_equal(decode_bands(late, 4, FULL)[:, :, :3] // 257, expected)


def test_what_is_no_band_is_left_to_pillow() -> None:
    """Inks, palettes, JPEG and odd numbers of bits in a TIFF are images for Pillow."""
    photo = Image.fromarray(noise(16, 16, 3, kind="uint8"))
    for image, options, channels in (
        (photo.convert("CMYK"), {}, 3),
        (photo.quantize(8), {}, 3),
        (photo, {"compression": "jpeg"}, 3),
        (photo.convert("1"), {}, 1),
    ):
        assert describe_bands(saved(image, "TIFF", **options)) == Bands(16, 16, channels, "uint8")
    with pytest.raises(ImageError, match="not an image that can be read"):
        describe_bands(written(noise(8, 8, 7).astype(np.uint32)))


@pytest.mark.fault("I3")
def test_i3_strips_that_overlap_cannot_multiply_a_file() -> None:
    """Many strips may each claim the whole file: together no more than there is."""
    values = noise(12, 4, 3, kind="uint8")
    pieces = [part.tobytes() for part in np.split(values, 3)]
    right = handmade(pieces, {**tags(values, 1), 278: (4,)})
    np.testing.assert_array_equal(decode_bands(right, 3), values)
    lie, lengths = bytearray(right), struct.pack("<3I", 48, 48, 48)
    assert lie.count(lengths) == 1
    claimed = len(lie) // 2
    struct.pack_into("<3I", lie, lie.index(lengths), claimed, claimed, claimed)
    start = lie.index(struct.pack("<3I", 8, 56, 104))
    struct.pack_into("<3I", lie, start, 8, 8, 8)
    with pytest.raises(ImageError, match=f"its strips overlap: {3 * claimed} bytes in {len(lie)}"):
        decode_bands(bytes(lie), 3)


@pytest.mark.fault("I3")
@pytest.mark.parametrize(
    "change, message",
    [
        ({273: (8, 8, 8), 279: (144, 144, 144)}, "expected 1 strips or tiles, got 3 of 3 lengths"),
        ({278: (1,)}, "expected 12 strips or tiles, got 1"),
        ({322: (16,), 323: (0,), 324: (8,), 325: (144,)}, "claims tiles of 16x0"),
        ({322: (1,), 323: (1,), 324: (8,), 325: (144,)}, "expected 48 strips or tiles, got 1"),
        ({322: (2**31,), 323: (16,), 324: (8,), 325: (144,)}, "cut short"),
        ({279: (10**9,)}, "cut short, or its strips overlap: 1,000,000,000 bytes"),
        ({279: (100,)}, "a strip or tile is too small"),
        ({279: (0,)}, "a strip or tile is not all there"),
        ({273: (400,)}, "a strip or tile is not all there"),
        ({259: (8,)}, "damaged or cut short"),
    ],
)
def test_i3_a_tiff_that_lies_about_its_strips(change: dict[int, tuple[int, ...]], message: str) -> None:
    values = noise(12, 4, 3, kind="uint8")
    rest = {**tags(values, 1), **change}
    right = handmade([values.tobytes()], tags(values, 1))
    np.testing.assert_array_equal(decode_bands(right, 3), values)
    lie = bytearray(handmade([values.tobytes()], rest))
    for tag in set(change) & {273, 279}:  # which `handmade` knows better: put the lie in its place
        entry = lie.index(struct.pack("<HHI", tag, 4, 1))
        if len(change[tag]) == 1:
            struct.pack_into("<I", lie, entry + 8, change[tag][0])
        else:
            struct.pack_into("<I", lie, entry + 4, len(change[tag]))
            struct.pack_into("<I", lie, entry + 8, 8)  # any numbers will do
    with pytest.raises(ImageError, match=message):
        decode_bands(bytes(lie), 3)


@pytest.mark.fault("I3")
def test_i3_directories_without_end_and_of_many_tags() -> None:
    values = noise(6, 5, 1)
    loop = bytearray(handmade([values.tobytes()], tags(values, 1)))
    struct.pack_into("<I", loop, len(loop) - 4, struct.unpack_from("<I", loop, 4)[0])  # its next page is itself
    np.testing.assert_array_equal(decode_bands(bytes(loop), 1, FULL), values)
    many = b"II*\0\x08\0\0\0" + struct.pack("<H", 60_000) + bytes(12 * 60_000 + 4)
    with pytest.raises(ImageError, match="a page of 60,000 tags"):
        describe_bands(many)
