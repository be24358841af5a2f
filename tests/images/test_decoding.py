"""decode: the value of every kind of pixel, written down, and images turned upright."""

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

from vitrail.errors import ImageError, InputError
from vitrail.images import FORMATS, Limits, Preprocess, decode
from vitrail.images.decoding import decode_pages
from vitrail.images.headers import webp_size


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


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
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

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
    assert pixel(encoded(palette, "PNG")) == (10, 20, 30)
    assert pixel(encoded(palette, "PNG", transparency=1)) == (255, 255, 255)
    assert pixel(encoded(palette, "PNG", transparency=2)) == (10, 20, 30)
    assert pixel(encoded(palette, "PNG", transparency=b"\xff\x33")) == (206, 208, 210)  # 51/255 of the colour
    assert pixel(encoded(palette, "GIF", transparency=1)) == (255, 255, 255)
    assert pixel(encoded(one("L", 9), "PNG", transparency=9)) == (255, 255, 255)
    assert pixel(encoded(one("L", 9), "PNG", transparency=8)) == (9, 9, 9)
    assert pixel(encoded(one("L", 9), "PNG", transparency=9), "L") == 255
    assert pixel(encoded(one("RGB", (1, 2, 3)), "PNG", transparency=(1, 2, 3))) == (255, 255, 255)
    assert pixel(encoded(one("1", 0), "PNG")) == (0, 0, 0)
    assert pixel(encoded(one("I;16", 300), "PNG")) == (1, 1, 1)  # 300 / 257; clipping would give 255
    assert pixel(encoded(one("I;16", 300), "TIFF")) == (1, 1, 1)
    assert pixel(encoded(one("I", 300), "TIFF")) == (1, 1, 1)
    assert pixel(encoded(one("F", 0.2), "TIFF")) == (51, 51, 51)
    assert pixel(encoded(one("CMYK", (0, 255, 255, 0)), "TIFF")) == (255, 0, 0)
    assert np.abs(np.subtract(pixel(encoded(one("LAB", (255, 128, 128)), "TIFF")), 255)).max() <= 1
    assert pixel(encoded(one("RGBA", (100, 0, 255, 51)), "PNG")) == (224, 204, 255)
    assert pixel(encoded(one("LA", (100, 51)), "PNG")) == (224, 224, 224)
    assert pixel(encoded(one("RGBA", (100, 0, 255, 51)), "WEBP", lossless=True)) == (224, 204, 255)
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
    plain = encoded(cyan, "JPEG", quality=100)
    assert np.abs(np.subtract(pixel(plain), (55, 255, 255))).max() <= 3
    # YCCK holds the luma and chroma of 255 - ink as it is stored, and inks are stored inverted:
    # cyan 200 is stored as 55, which gives the colour (200, 0, 0): Y = 60, Cb = 94, Cr = 228.
    inks = Image.merge("CMYK", [Image.new("L", (16, 16), 255 - value) for value in (60, 94, 228, 255)])
    marked = bytearray(encoded(inks, "JPEG", quality=100, subsampling=0))
    marked[marked.index(b"Adobe") + 11] = 2
    assert np.abs(np.subtract(pixel(bytes(marked)), (55, 255, 255))).max() <= 4


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
        data = encoded(image, kind, exif=exif.tobytes() if kind != "TIFF" else exif, **lossless)
        for source in (data, Image.open(io.BytesIO(data))):
            got = decode(source)
            assert got.size == upright.size, orientation
            assert np.abs(np.asarray(got).astype(int) - np.asarray(upright)).max() <= (
                3 if kind in ("JPEG", "AVIF") else 0
            )
            assert np.abs(preprocess(source) - preprocess(upright)).max() <= 0.03
        if kind == "TIFF":
            data = encoded(image, kind, exif=exif, compression="tiff_lzw")
            assert decode(data).tobytes() == upright.tobytes()


@pytest.mark.fault("I6")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_i6_an_image_is_turned_once_however_often_it_is_decoded(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.new("RGB", (40, 24)), kind, exif=exif)
    upright = decode(data)
    assert upright.size == (24, 40)
    assert decode(upright) is upright
    with Image.open(io.BytesIO(data)) as image:
        assert decode(decode(image)).size == (24, 40)


@pytest.mark.fault("I6")
def test_i6_an_orientation_in_xmp_alone_is_ignored_in_files_for_good() -> None:
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    found = decode(encoded(Image.new("RGB", (40, 24)), "JPEG", xmp=xmp))
    assert found.size == (40, 24)
    assert decode(found) is found


@pytest.mark.fault("I6")
@pytest.mark.parametrize(
    "exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\x08\0\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"junk"]
)
def test_i6_a_broken_exif_block_turns_nothing(exif: bytes) -> None:
    image = Image.new("RGB", (3, 5), (1, 2, 3))
    assert decode(encoded(image, "PNG", exif=exif) if exif else encoded(image, "PNG")).size == (3, 5)
    assert decode(encoded(image, "JPEG", exif=exif)).size == (3, 5)


def test_an_orientation_set_on_an_image_in_memory_counts() -> None:
    image = Image.new("RGB", (3, 5))
    image.getexif()[0x0112] = 6
    assert decode(image).size == (5, 3)


@pytest.mark.fault("I6")
@pytest.mark.parametrize("order", ["<", ">"])
def test_i6_both_byte_orders_of_exif_turn_the_image(order: str) -> None:
    """A block of one tag, the orientation, as cameras of either kind write it."""
    block = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    assert decode(encoded(Image.new("RGB", (40, 24)), "JPEG", exif=b"Exif\0\0" + block)).size == (24, 40)


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}])
def test_the_size_in_a_webp_header_is_that_of_the_image(options: dict[str, Any]) -> None:
    data = encoded(Image.new("RGB", (40, 24)), "WEBP", **options)
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
    data = encoded(pages[0], kind, save_all=True, append_images=pages[1:])
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
    data = encoded(first, kind, save_all=True, append_images=rest, **options)
    assert Image.open(io.BytesIO(data)).n_frames == 3  # type: ignore[attr-defined]
    assert np.abs(np.subtract(pixel(data), (255, 0, 0))).max() <= (4 if kind == "AVIF" else 0)


@pytest.mark.fault("I8")
def test_i8_an_mpo_is_its_first_jpeg() -> None:
    first, second = Image.new("RGB", (16, 16), (255, 0, 0)), Image.new("RGB", (16, 16), (0, 0, 255))
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    assert np.abs(np.subtract(pixel(data), (255, 0, 0))).max() <= 3


@pytest.mark.fault("I10")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_i10_colour_profiles_are_ignored(kind: str) -> None:
    image = Image.new("RGB", (16, 16), (200, 40, 90))
    wide = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    options = {"lossless": True} if kind == "WEBP" else {}
    without = decode(encoded(image, kind, **options)).tobytes()
    for profile in (wide, wide[:50], b"not a profile", b"\0" * 4000):
        assert decode(encoded(image, kind, icc_profile=profile, **options)).tobytes() == without


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
    for source in (levels, levels.astype(np.int32), Image.fromarray(levels), encoded(Image.fromarray(levels), "PNG")):
        np.testing.assert_array_equal(np.asarray(decode(source, "L")), expected)


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
    data = encoded(Image.new("RGB", (60, 60)), "TIFF")
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
