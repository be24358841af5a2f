"""KnownImages: what an earlier scan found of a data set's images, kept in a cache, for those not changed since.

A file of the cache is one data set: its names in their order, and a column for each fact, with a SHA-256 behind them.
An image is known where its size and both its times of change are those of the scan. One that had changed within a tick
of the clock before it was looked at is not: it may have changed once more within the same tick.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image, ImageFile, features
from PIL import __version__ as pillow_version

from vitrail import __version__
from vitrail.data.manifest import ImageFacts
from vitrail.data.samples import Dataset, ImageFiles
from vitrail.files import atomic_write, cache_folder
from vitrail.images import DEFAULT_LIMITS
from vitrail.types import Array

FORMAT: Final = 1  # a new number whenever the same bytes would be decoded to another image, or the file changes
MAGIC: Final = b"vitrail scan\n"
TICK: Final = 2_000_000_000  # nanoseconds: of the coarsest clock that a file system keeps (FAT)
MOST: Final = 200  # data sets that are remembered; the one not asked for the longest goes
CODECS: Final = ("jpg", "libjpeg_turbo", "zlib", "zlib_ng", "libtiff", "webp", "avif")
_COLUMNS: Final = (
    *(("<i8", 3), ("<i4", 1), ("<i4", 1), ("<i8", 1)),  # stamps, heights, widths, sizes
    ("|u1", 32),  # digests
)


class KnownImages:
    """A data set's images: what is known of them, and of which that still holds."""

    def __init__(self, dataset: Dataset, images: ImageFiles, path: Path) -> None:
        self.path = path
        self.note = ""  # what was wrong with the cache
        self.facts = ImageFacts.empty(len(dataset))
        self.fresh = np.zeros(len(dataset), bool)  # (n,)
        self._names = "\0".join(each.name for each in dataset.samples).encode("utf-8", "surrogateescape")
        self._since = time.time_ns()
        self._stamps = images.stamps()  # (n, 3)

    def keep(self, unread: Collection[int]) -> None:
        """Write down what a scan has found, but for the rows that could not be read; a full disk is no error."""
        stamps = self._stamps.copy()
        stamps[(stamps[:, 1:] >= self._since - TICK).any(axis=1)] = -1
        stamps[list(unread)] = -1
        header = json.dumps({"format": FORMAT, "decoder": decoder(), "rows": len(stamps)}).encode()
        columns = (np.ascontiguousarray(column, kind) for column, (kind, _) in self._columns(stamps))
        parts = [MAGIC, struct.pack("<Q", len(header)), header, *(each.tobytes() for each in columns), self._names]
        check = hashlib.sha256()
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _forget_oldest(self.path.parent)
            with atomic_write(self.path) as temporary, open(temporary, "wb") as file:
                for part in parts:
                    check.update(part)
                    file.write(part)
                file.write(check.digest())

    def _recall(self) -> None:
        """Take over what the cache has, where the images are those of then."""
        try:
            raw = memoryview(self.path.read_bytes())
        except FileNotFoundError:
            return
        except OSError as error:
            self.note = f"{self.path} cannot be read ({error.strerror}): all images are read again"
            return
        try:
            stamps, facts, names = _parse(raw)
        except _Unusable as error:
            self.note = f"{self.path} {error}: all images are read again"
            return
        rows, others = self._rows_in(bytes(names))
        same = (self._stamps[rows] == stamps[others]).all(axis=1) & (stamps[others] >= 0).all(axis=1)
        rows, others = rows[same], others[same]
        for column, old in zip(self.facts, facts, strict=True):
            column[rows] = old[others]
        self.fresh[rows] = True
        with suppress(OSError):
            os.utime(self.path)

    def _rows_in(self, names: bytes) -> tuple[Array, Array]:
        """The rows of the images that are in a cache too, and their rows there."""
        if names == self._names:
            everything = np.arange(len(self.fresh))
            return everything, everything
        places = {name: row for row, name in enumerate(names.split(b"\0"))}
        pairs = [(row, places[name]) for row, name in enumerate(self._names.split(b"\0")) if name in places]
        both = np.array(pairs, np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]

    def _columns(self, stamps: Array) -> zip[tuple[Array, tuple[str, int]]]:
        return zip((stamps, *self.facts), _COLUMNS, strict=True)


class _Unusable(Exception):  # noqa: N818
    """Why a cache is not used."""


def recall(dataset: Dataset) -> KnownImages | None:
    """What is known of a data set in files; None of one in memory, and where no cache is wanted."""
    folder, images = cache_folder(), dataset.images
    if folder is None or not isinstance(images, ImageFiles):
        return None
    place = "\0".join(os.path.realpath(each) for each in (dataset.source, images.folder))
    name = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    known = KnownImages(dataset, images, folder / "scans" / f"{name}.scan")
    known._recall()
    return known


def decoder() -> dict[str, Any]:
    """Everything but its bytes that decides what an image is decoded to, and whether it is."""
    try:
        heif = version("pillow_heif")
    except PackageNotFoundError:
        heif = ""
    return {
        "vitrail": __version__,
        "pillow": pillow_version,
        "codecs": {name: _codec(name) for name in CODECS},
        "heif": heif,
        "limits": asdict(DEFAULT_LIMITS),
        "truncated": bool(ImageFile.LOAD_TRUNCATED_IMAGES),
        "pixels": Image.MAX_IMAGE_PIXELS,
    }


def _codec(name: str) -> str:
    try:
        return str(features.version(name) or features.check(name))
    except ValueError:  # a Pillow that does not know of it
        return ""


def _parse(raw: memoryview) -> tuple[Array, ImageFacts, memoryview]:
    """The stamps, the facts and the names in a cache; _Unusable where it is not whole, or not ours."""
    start = len(MAGIC) + 8
    if bytes(raw[: len(MAGIC)]) != MAGIC:
        raise _Unusable("is no cache of ours")
    if len(raw) < start + 32 or hashlib.sha256(raw[:-32]).digest() != bytes(raw[-32:]):
        raise _Unusable("is damaged")
    (length,) = struct.unpack("<Q", raw[len(MAGIC) : start])
    header = json.loads(bytes(raw[start : start + length]))
    if header["format"] != FORMAT or header["decoder"] != decoder():
        raise _Unusable("was made with other decoders, or other limits")
    start += length
    columns = []
    for kind, width in _COLUMNS:
        count = header["rows"] * width
        column = np.frombuffer(raw, kind, count, start)
        columns.append(column.reshape(-1, width) if width > 1 else column)
        start += column.nbytes
    return columns[0], ImageFacts(*columns[1:]), raw[start:-32]


def _forget_oldest(folder: Path) -> None:
    """Leave room for one more."""
    caches = sorted(folder.glob("*.scan"), key=lambda path: path.stat().st_mtime_ns)
    for path in caches[: max(0, len(caches) - MOST + 1)]:
        path.unlink(missing_ok=True)
