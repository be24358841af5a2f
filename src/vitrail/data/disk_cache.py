"""DiskCache: views too many for memory, in a file on disk; made once, used again by every run on the same images.

It is an ordinary .npy file with a checksum of every view behind the views, each checked whenever it is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from vitrail.errors import InputError
from vitrail.files import atomic_write, reason
from vitrail.images import Preprocess
from vitrail.system_calls import IS_WINDOWS, is_alive
from vitrail.types import Array

FORMAT: Final = 1  # a new number whenever a view of the same image changes
SPARE: Final = 1 << 30  # bytes of the disk that stay free


class DiskCache:
    """The views of one file, row by row; ValueError where the file is not whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            np.lib.format.read_magic(file)
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
            self._start = file.tell()
            self._bytes = math.prod(self.shape[1:]) * self.dtype.itemsize  # of a view
            behind = self._start + self.shape[0] * self._bytes
            if os.fstat(file.fileno()).st_size != behind + 4 * self.shape[0]:
                raise ValueError("cut short")
            file.seek(behind)
            self._checks = np.frombuffer(file.read(), np.uint32)  # (n,)

    def read(self, row: int) -> Array:
        """One view, (C, H, W). Read and not mapped: a file that is cut meanwhile is then an error, not a crash."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._start + row * self._bytes)
                raw = file.read(self._bytes)
        except OSError as error:
            raise InputError(f"{self.path} can no longer be read: {reason(error)}") from error
        if len(raw) != self._bytes or zlib.crc32(raw) != self._checks[row]:
            raise InputError(f"{self.path} is damaged at view {row}: delete it, and it is made again")
        return np.frombuffer(raw, self.dtype).reshape(self.shape[1:])


def disk_cache_path(folder: Path, digests: Sequence[str], preprocess: Preprocess) -> Path:
    """Where the views of these very images, seen this way, would stand."""
    text = json.dumps([FORMAT, preprocess.to_dict(), list(digests)])
    return folder / f"views-{hashlib.sha256(text.encode()).hexdigest()[:24]}.npy"


def open_disk_cache(path: Path, shape: tuple[int, ...]) -> DiskCache | None:
    """The cache that stands there; None where there is none, or only the rest of one."""
    try:
        cache = DiskCache(path)
    except (OSError, ValueError, EOFError):
        return None
    return cache if cache.shape == shape else None


def write_disk_cache(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterable[Array]) -> DiskCache:
    """Write views, in order, a part (b, C, H, W) at a time; the name appears when all of it is on the disk."""
    needed = math.prod(shape) * dtype.itemsize
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean(path.parent)
        free = shutil.disk_usage(path.parent).free
        if needed + SPARE > free:
            raise InputError(
                f"the cache of {shape[0]:,} views needs {needed / 1e9:.1f} GB in {path.parent}, where {free / 1e9:.1f} "
                "GB are free: give --cache another folder, or take a smaller --size"
            )
        checks = []
        with atomic_write(path) as temporary, open(temporary, "wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts:
                for view in part:
                    plain = np.ascontiguousarray(view).data
                    checks.append(zlib.crc32(plain))
                    file.write(plain)
            file.write(np.array(checks, np.uint32).data)
    except OSError as error:
        raise InputError(f"the cache could not be written to {path.parent}: {reason(error)}") from error
    return DiskCache(path)


def _clean(folder: Path) -> None:
    """Remove what killed processes left half-written, also under the names of earlier releases."""
    for path in (*folder.glob(".views-*.*.tmp"), *folder.glob("views-*.*.tmp")):
        number = path.suffixes[-2].removeprefix(".")
        if number.isdigit() and (IS_WINDOWS or not is_alive(int(number))):
            with suppress(OSError):  # Windows removes no file that somebody still writes
                path.unlink(missing_ok=True)
