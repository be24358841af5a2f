"""The bands of a TIFF file as they are stored, whatever colours Pillow would make of them.

Compression knows nothing of bands: a row of W pixels in S bands of k bytes unpacks like a row of W * S * k grey bytes.
So Pillow is handed each page under a new directory that says just that, and the numbers are put together here.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from PIL import Image

from vitrail.errors import ImageError
from vitrail.images.bands import MOST_BANDS, Bands, Raster, convert_kind, kind_of, upright
from vitrail.images.headers import tiff_directories, tiff_entries
from vitrail.types import Array

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 256, 257, 258, 259, 262, 266
STRIPS, ORIENTATION, SAMPLES, STRIP_ROWS, STRIP_BYTES, PLANAR = 273, 274, 277, 278, 279, 284
SUBFILE, PREDICTOR, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES, FORMAT = 254, 317, 322, 323, 324, 325, 339
TAGS: Final = {
    *(WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, STRIPS, ORIENTATION, SAMPLES, STRIP_ROWS),
    *(STRIP_BYTES, PLANAR, SUBFILE, PREDICTOR, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES, FORMAT),
}

MOST_PAGES: Final = 4 * MOST_BANDS  # an image's bands, and smaller copies of them
MOST_TAGS: Final = 1000  # of a page; real ones have about thirty
PLAIN: Final = (1, 32773)  # as it is, PackBits: these never keep differences
PREDICTING: Final = (5, 8, 32946, 34925, 50000)  # LZW, Deflate, Deflate, LZMA, ZSTD

_DEFAULTS = {SUBFILE: 0, COMPRESSION: 1, FILL_ORDER: 1, ORIENTATION: 1, SAMPLES: 1, PLANAR: 1, PREDICTOR: 1, FORMAT: 1}
_WORDS = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}  # the types of tag that are whole numbers
_TYPES = {(8, 1): "u1", (16, 1): "u2", (16, 2): "i2", (16, 3): "f2", (32, 3): "f4", (64, 3): "f8"}  # by bits, format


class Page(NamedTuple):
    """One directory of a TIFF file that is plain bands."""

    height: int
    width: int
    samples: int
    dtype: np.dtype[Any]
    tags: Mapping[int, Array]

    def one(self, tag: int) -> int:
        return _one(self.tags, tag)


def of_tiff(data: bytes, name: str) -> Raster | None:
    """The bands of the first page, or of pages that are one band each; None where Pillow knows better."""
    directories = [tags for tags in _directories(data, name) if not _one(tags, SUBFILE) & 5]  # smaller copies, masks
    pages = [_page(tags, data[:2] == b"MM") for tags in directories]
    first = pages[0] if pages else None
    if first is None or first.samples > MOST_BANDS:
        return None
    together = [page for page in pages if page is not None and page[:4] == first[:4] and page.samples == 1]
    if len(together) < len(pages) or len(together) > MOST_BANDS:
        together = [first]  # further pages are further images, as anywhere else
    bands = Bands(first.height, first.width, sum(page.samples for page in together), kind_of(first.dtype, name))

    def read() -> Array:
        parts = [_values(data, page, name) for page in together]
        bands_together = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)  # (H, W, C)
        return upright(convert_kind(bands_together, name), first.one(ORIENTATION))

    return Raster(bands, read)


# ---- directories -------------------------------------------------------------------------------------------------


def _directories(data: bytes, name: str) -> Iterator[dict[int, Array]]:
    """The tags of every page that matter here; nothing is copied."""
    order = ">" if data[:2] == b"MM" else "<"
    try:
        for start, count in islice(tiff_directories(data), MOST_PAGES):
            if count > MOST_TAGS:
                raise ImageError(f"{name}: refused, a page of {count:,} tags: save it again without metadata")
            tags: dict[int, Array] = {}
            for tag, kind, size, _, at in tiff_entries(data, start):
                if tag in TAGS and kind in _WORDS and size:
                    word = np.dtype(order + _WORDS[kind])
                    tags[tag] = np.frombuffer(data, word, size // word.itemsize, at)
            yield tags
    except struct.error:
        raise ImageError(f"{name}: cut short, a page is not all there: copy or download it again") from None


def _one(tags: Mapping[int, Array], tag: int) -> int:
    return int(tags[tag][0]) if tag in tags else _DEFAULTS.get(tag, 0)


def _page(tags: Mapping[int, Array], big_endian: bool) -> Page | None:
    """A page of plain bands, or None: palettes, inks, JPEG and odd numbers of bits are for Pillow."""
    bits, formats = tags.get(BITS, np.ones(1)), tags.get(FORMAT, np.ones(1))
    alike = (bits == bits[0]).all() and (formats == formats[0]).all()
    kind = _TYPES.get((int(bits[0]), int(formats[0]))) if alike else None
    size = (_one(tags, HEIGHT), _one(tags, WIDTH), _one(tags, SAMPLES))
    if kind is None or min(size) < 1:
        return None
    predictors = (1, 2, 3) if kind[0] == "f" else (1, 2)
    known = {
        PHOTOMETRIC: (1, 2),  # grey, colour
        FILL_ORDER: (1,),
        COMPRESSION: PLAIN + PREDICTING,
        PREDICTOR: predictors if _one(tags, COMPRESSION) in PREDICTING else (1,),
    }
    if any(_one(tags, tag) not in values for tag, values in known.items()):
        return None
    return Page(*size, np.dtype((">" if big_endian else "<") + kind), tags)


# ---- numbers -----------------------------------------------------------------------------------------------------


def _values(data: bytes, page: Page, name: str) -> Array:
    """The numbers of one page, (H, W, S)."""
    tiled = TILES in page.tags
    across = page.one(TILE_WIDTH) if tiled else page.width
    down = page.one(TILE_HEIGHT) if tiled else min(page.one(STRIP_ROWS) or page.height, page.height)
    if min(across, down) < 1:
        raise ImageError(f"{name}: damaged, it claims tiles of {across}x{down}")
    apart = page.one(PLANAR) == 2  # the bands stand one after the other
    planes, together = (page.samples, 1) if apart else (1, page.samples)
    columns, row = -(-page.width // across), across * together * page.dtype.itemsize
    count = columns * -(-page.height // down)  # of strips or tiles in a plane
    pieces = _pieces(data, page, count * planes, name)
    if page.one(COMPRESSION) == 1:
        rows = [down] * count if tiled else [min(down, page.height - top) for top in range(0, page.height, down)]
        if any(len(piece) < each * row for piece, each in zip(pieces, rows * planes, strict=True)):
            raise ImageError(f"{name}: cut short, a strip or tile is too small: copy or download it again")
    planes_read = []
    for first in range(0, len(pieces), count):
        file = _grey(page, (columns * row, page.height), (row, down), pieces[first : first + count])
        with Image.open(io.BytesIO(file), formats=("TIFF",)) as image:
            raw = np.asarray(image).reshape(page.height, columns, row)
        planes_read.append(_numbers(raw, page, together))
    bands = planes_read[0] if planes == 1 else np.concatenate(planes_read, axis=2)
    return bands[:, : page.width]


def _pieces(data: bytes, page: Page, expected: int, name: str) -> list[bytes]:
    """The strips or tiles of a page, packed as they are."""
    tags = (TILES, TILE_BYTES) if TILES in page.tags else (STRIPS, STRIP_BYTES)
    got = [len(page.tags.get(tag, ())) for tag in tags]
    if got != [expected, expected]:
        raise ImageError(f"{name}: damaged, expected {expected} strips or tiles, got {got[0]} of {got[1]} lengths")
    starts, lengths = (page.tags[tag].tolist() for tag in tags)
    if sum(lengths) > len(data):
        raise ImageError(f"{name}: cut short, or its strips overlap: {sum(lengths):,} bytes in {len(data):,}")
    pieces = [data[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    if min(lengths) < 1 or [*map(len, pieces)] != lengths:
        raise ImageError(f"{name}: cut short, a strip or tile is not all there: copy or download it again")
    return pieces


def _grey(page: Page, size: tuple[int, int], piece: tuple[int, int], pieces: list[bytes]) -> bytes:
    """A TIFF file of 8-bit grey, its size and that of a piece (width, height) in bytes, its pieces packed already."""
    tiled = TILES in page.tags
    ends = np.cumsum([8, *map(len, pieces)]).tolist()
    body = bytearray(b"".join((bytes(8), *pieces)))
    tags = {
        WIDTH: [size[0]],
        HEIGHT: [size[1]],
        BITS: [8],
        COMPRESSION: [page.one(COMPRESSION)],
        PHOTOMETRIC: [1],
        SAMPLES: [1],
        TILES if tiled else STRIPS: ends[:-1],
        TILE_BYTES if tiled else STRIP_BYTES: [*map(len, pieces)],
        **({TILE_WIDTH: [piece[0]], TILE_HEIGHT: [piece[1]]} if tiled else {STRIP_ROWS: [piece[1]]}),
    }
    entries = b""
    for tag, values in sorted(tags.items()):
        value = packed = struct.pack(f"<{len(values)}I", *values)
        if len(values) > 1:
            value = struct.pack("<I", len(body))  # where they stand
            body += packed
        entries += struct.pack("<HHI", tag, 4, len(values)) + value
    struct.pack_into("<2sHI", body, 0, b"II", 42, len(body))
    return bytes(body + struct.pack("<H", len(tags)) + entries + bytes(4))


def _numbers(raw: Array, page: Page, together: int) -> Array:
    """Bytes (H, columns of tiles, bytes of a row) as numbers (H, W of all tiles, bands), differences summed up."""
    height, columns, row = raw.shape
    size, predictor = page.dtype.itemsize, page.one(PREDICTOR)
    if predictor == 2:  # each number is the difference to its left neighbour in the tile
        words = raw.view(page.dtype.str[0] + f"u{size}").reshape(height, columns, -1, together)
        values = np.cumsum(words, axis=2, dtype=f"u{size}").view(page.dtype.newbyteorder("="))
    elif predictor == 3:  # so are bytes, and those of one weight stand together, the highest first
        summed = np.cumsum(raw.reshape(height, columns, -1, together), axis=2, dtype="u1")
        bytes_of = summed.reshape(height, columns, size, row // size).swapaxes(2, 3)
        values = np.ascontiguousarray(bytes_of).view(f">f{size}")
    else:
        values = raw.view(page.dtype)
    return values.reshape(height, -1, together)
