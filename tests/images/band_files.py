"""Images of many bands and 16 bits as files made by hand: PNG and TIFF."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

Array = np.ndarray[Any, Any]
FULL = 65535.0
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def noise(*shape: int, kind: str = "uint16") -> Array:
    chance = np.random.default_rng(sum(shape))
    if kind.startswith("float"):
        return chance.normal(0.3, 0.2, shape).astype(kind)
    return chance.integers(0, np.iinfo(kind).max + 1, shape).astype(kind)


def npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def filtered(rows: Array, step: int) -> bytes:
    """Rows of bytes, each by the next of PNG's five filters."""
    before, out = np.zeros(rows.shape[1], int), b""
    for number, row in enumerate(rows.astype(int)):
        left = np.concatenate([np.zeros(step, int), row[:-step]])
        corner = np.concatenate([np.zeros(step, int), before[:-step]])
        away = np.abs(np.stack([before - corner, left - corner, left + before - 2 * corner]))
        paeth = np.choose(away.argmin(axis=0), [left, before, corner])
        guess = (0, left, before, (left + before) // 2, paeth)[number % 5]
        out += bytes([number % 5]) + ((row - guess) % 256).astype(np.uint8).tobytes()
        before = row
    return out


def png16(values: Array, interlaced: bool = False, after: bytes = b"") -> bytes:
    """A 16-bit PNG of 2, 3 or 4 bands, with every filter."""
    height, width, bands = values.shape
    big = values.astype(">u2")
    parts = [big[y::down, x::across] for x, y, across, down in ADAM7] if interlaced else [big]
    body = b"".join(filtered(np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1), 2 * bands)
                    for part in parts if part.size)  # fmt: skip
    header = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[bands], 0, 0, interlaced)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(body)) + after + chunk(b"IEND", b"")


def written(values: Array, **options: Any) -> bytes:
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    tifffile.imwrite(file, values, **{"photometric": "minisblack", "planarconfig": "contig"} | options)
    return file.getvalue()


def handmade(pieces: list[bytes], tags: dict[int, tuple[int, ...]]) -> bytes:
    """A little-endian TIFF of one strip after the other; tags are LONGs."""
    body, places = bytearray(8), []
    for piece in pieces:
        places.append(len(body))
        body += piece
    entries = b""
    for tag, values in sorted({**tags, 273: (*places,), 279: (*map(len, pieces),)}.items()):
        packed = struct.pack(f"<{len(values)}I", *values)
        if len(values) > 1:
            body += packed
            packed = struct.pack("<I", len(body) - len(packed))
        entries += struct.pack("<HHI", tag, 4, len(values)) + packed
    struct.pack_into("<2sHI", body, 0, b"II", 42, len(body))
    return bytes(body) + struct.pack("<H", len(entries) // 12) + entries + bytes(4)


def tags(values: Array, compression: int, predictor: int = 1, **more: Any) -> dict[int, tuple[int, ...]]:
    height, width, bands = values.shape
    bits, form = 8 * values.itemsize, {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    found = {256: (width,), 257: (height,), 258: (bits,) * bands, 259: (compression,), 262: (1,), 277: (bands,)}
    return {**found, 278: (height,), 317: (predictor,), 339: (form,) * bands, **more}
