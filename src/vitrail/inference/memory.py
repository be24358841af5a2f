"""What the C library does with memory that is freed: keep it for the next step, or give it back at once.

Every step of a training asks for the same large arrays. By default the C library gives them back to the system and the
system hands them out again page by page, zeroed: on two cores that took up to a tenth of the time of training small
images. A runtime that opens a file does the opposite: it makes a second copy of every weight and frees the first, whose
places too small for the next are kept: of ViT-B/16 that was a quarter more memory than needed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# The names of mallopt(3), and what glibc starts with.
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
MMAP_MAX: Final = -4
USUAL: Final = {TRIM_THRESHOLD: 128 * 1024, MMAP_MAX: 65536}
KEEPING: Final = {TRIM_THRESHOLD: 2**31 - 1, MMAP_MAX: 0}
RETURNING: Final = {MMAP_THRESHOLD: 1 << 20}
GROWN: Final = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}  # where glibc itself ends up after large arrays


@contextmanager
def keeping_memory() -> Iterator[None]:
    """Freed memory is kept inside, and returned at the end; elsewhere than on glibc nothing changes."""
    library = _glibc()
    if library is None:
        yield
        return
    _set(library, KEEPING)
    try:
        yield
    finally:
        _set(library, USUAL)
        library.malloc_trim(0)


@contextmanager
def returning_memory() -> Iterator[None]:
    """Arrays of more than 1 MiB that are freed inside go back to the system at once, on glibc."""
    library = _glibc()
    if library is None:
        yield
        return
    _set(library, RETURNING)
    try:
        yield
    finally:
        _set(library, GROWN)


def _set(library: ctypes.CDLL, options: dict[int, int]) -> None:
    for name, value in options.items():
        library.mallopt(name, value)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    known = all(hasattr(library, name) for name in ("mallopt", "malloc_trim", "gnu_get_libc_version"))
    return library if known else None
