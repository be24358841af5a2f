"""Bytes -> their checksum: a SHA-256 over the SHA-256 of every piece of 8 MiB, so that all cores can work on it."""

from __future__ import annotations

import hashlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

PIECE: Final = 8 << 20


def digest_of(*parts: bytes | memoryview | mmap.mmap) -> str:
    """64 hexadecimal digits; every part starts a piece of its own."""
    views = [memoryview(part) for part in parts]
    pieces = [view[start : start + PIECE] for view in views for start in range(0, len(view), PIECE)]
    if len(pieces) == 1:
        return hashlib.sha256(_hash(pieces[0])).hexdigest()
    with ThreadPoolExecutor(max(1, min(len(pieces), os.cpu_count() or 1, 8))) as pool:
        return hashlib.sha256(b"".join(pool.map(_hash, pieces))).hexdigest()


def _hash(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()  # lets other threads run
