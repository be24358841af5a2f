"""What the C library does with memory that is freed: keep it for the next step, or give it back at once.

Every step of a training asks for the same large arrays. By default the C library gives them back to the system and the
system hands them out again page by page, zeroed: on two cores that took up to a tenth of the time of training small
images. Kept, they lie in huge pages where the system has them: 2 MB at a time instead of 4 KB.

A runtime that opens a file needs the opposite: it makes a second copy of every weight and frees the first, and what the
C library keeps of those is of no use to it: of ViT-B/16 that was a quarter more memory than needed.
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
ROOM: Final = 1 << 30  # bytes that the heap grows by at once, to be huge pages; untouched they take no memory
HUGE_PAGE: Final = 2 << 20
MADV_HUGEPAGE: Final = 14
GROWN: Final = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}  # where glibc itself ends up after large arrays


@contextmanager
def keeping_memory() -> Iterator[None]:
    """Freed memory is kept inside, and returned at the end; elsewhere than on glibc nothing changes."""
    with _options(KEEPING, USUAL) as library:
        if library is not None:
            _make_room(library)
        yield


@contextmanager
def returning_memory() -> Iterator[None]:
    """Arrays of more than 1 MiB that are freed inside go back to the system at once, on glibc."""
    with _options(RETURNING, GROWN):
        yield


@contextmanager
def _options(inside: dict[int, int], after: dict[int, int]) -> Iterator[ctypes.CDLL | None]:
    """glibc with options of mallopt(3), or None where it is another C library; what is free in the end goes back."""
    library = _glibc()
    if library is None:
        yield None
        return
    _set(library, inside)
    try:
        yield library
    finally:
        _set(library, after)
        library.malloc_trim(0)


def _make_room(library: ctypes.CDLL) -> None:
    """Let the heap grow, and ask for huge pages there; where the system refuses, nothing is lost."""
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = library.malloc(ROOM)
    library.free(start)  # the heap keeps it
    if start:
        first = -(-start // HUGE_PAGE) * HUGE_PAGE
        library.madvise(first, ROOM - 2 * HUGE_PAGE, MADV_HUGEPAGE)


def _set(library: ctypes.CDLL, options: dict[int, int]) -> None:
    for name, value in options.items():
        library.mallopt(name, value)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    known = all(hasattr(library, name) for name in ("mallopt", "malloc_trim", "madvise", "gnu_get_libc_version"))
    return library if known else None
