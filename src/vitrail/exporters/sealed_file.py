"""Exported files, whole and as they were written: mapped into memory, with a checksum of everything at their end."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from vitrail.errors import CheckpointError
from vitrail.system_calls import READ

PIECE: Final = 8 << 20  # bytes that are hashed at once


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, which must be the same file when they have been looked at."""
    try:
        number = os.open(path, READ)
    except FileNotFoundError:
        raise CheckpointError(f"no exported file {path}") from None
    except OSError as error:
        raise CheckpointError(f"could not read {path}: {error.strerror}") from error
    with ExitStack() as closing:
        closing.callback(os.close, number)
        before = os.fstat(number)
        if not stat.S_ISREG(before.st_mode):
            raise CheckpointError(f"{path} is no file: expected one that `vitrail export` wrote")
        if not before.st_size:
            raise CheckpointError(f"{path} is empty: get it anew, or export it again")
        # Never closed by hand: an error on its way out still holds pieces of it.
        yield memoryview(mmap.mmap(number, 0, access=mmap.ACCESS_READ))
        after = os.stat(path)
        if any(getattr(before, each) != getattr(after, each) for each in ("st_ino", "st_size", "st_mtime_ns")):
            raise CheckpointError(f"{path} was changed while being read: open it again")


def digest_of(*parts: bytes | memoryview | mmap.mmap) -> str:
    """A SHA-256 over the SHA-256 of every piece of 8 MiB, so that all cores can work on it: 64 hexadecimal digits.

    Every part starts a piece of its own.
    """
    views = [memoryview(part) for part in parts]
    pieces = [view[start : start + PIECE] for view in views for start in range(0, len(view), PIECE)]
    if len(pieces) == 1:
        return hashlib.sha256(_hash(pieces[0])).hexdigest()
    with ThreadPoolExecutor(max(1, min(len(pieces), os.cpu_count() or 1, 8))) as pool:
        return hashlib.sha256(b"".join(pool.map(_hash, pieces))).hexdigest()


def _hash(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()  # lets other threads run


class Seal(NamedTuple):
    """The end of a file: the checksum of all that stands before it, and of the files beside it, between two marks."""

    before: bytes
    after: bytes = b""
    damaged: str = "is damaged"

    @property
    def size(self) -> int:
        return len(self.before) + 64 + len(self.after)

    def of(self, *parts: bytes | memoryview | mmap.mmap) -> bytes:
        return self.before + digest_of(*parts).encode() + self.after

    def check(self, data: memoryview, name: str, again: str, *beside: memoryview) -> None:
        """The file, and what lies beside it, are as they were written, to the last byte."""
        end = max(len(data) - self.size, 0)
        last = bytes(data[end:])
        if len(last) != self.size or not (last.startswith(self.before) and last.endswith(self.after)):
            raise CheckpointError(
                f"{name} has no checksum at its end: it was cut short, or something else rewrote it, or it is no file "
                f"of `vitrail export`: {again}"
            )
        found, expected = digest_of(data[:end], *beside), last[len(self.before) :][:64].decode("latin-1")
        if found != expected:
            raise CheckpointError(f"{name} {self.damaged}: its checksum is {found}, expected {expected}: {again}")
