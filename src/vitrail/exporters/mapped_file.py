"""mapped: the path of an exported file -> its bytes, not copied, and the same file when they have been looked at."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from vitrail.errors import CheckpointError

_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, which must be the same file when they have been looked at."""
    try:
        number = os.open(path, _READ)  # a pipe must not hold us up
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
