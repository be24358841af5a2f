"""What systems do in ways of their own, each with another way: reading at a place, locks, names that last, processes.

No other module calls what one of Linux, macOS and Windows lacks (a test holds it).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final


def _optional(name: str) -> ModuleType | None:
    """A module that not every system has."""
    try:
        return import_module(name)
    except ImportError:
        return None


IS_WINDOWS: Final = sys.platform == "win32"  # where an open file can be neither replaced, nor removed, nor moved
READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # a pipe must not hold us up
PIECE: Final = 1 << 26  # bytes read at once where a copy is made of them; macOS reads less than 2 GB
PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)  # seconds; a scanner or an indexer soon lets go of a new file
LARGE_BLOCK: Final = 1 << 20  # bytes
M_MMAP_THRESHOLD: Final = -3  # of glibc's malloc.h
LOCKED_AT: Final = 1 << 30  # the byte that is locked: on Windows nobody else can read it
_fcntl, _msvcrt = _optional("fcntl"), _optional("msvcrt")
_seeking = threading.Lock()


def read_at(number: int, view: memoryview, start: int) -> int:
    """Fill memory with the bytes of an open file from a place on, as many as come; any thread may."""
    if hasattr(os, "preadv"):
        return os.preadv(number, [view], start)
    count = min(len(view), PIECE)
    if hasattr(os, "pread"):  # macOS
        piece = os.pread(number, count, start)
    else:
        with _seeking:
            os.lseek(number, start, os.SEEK_SET)
            piece = os.read(number, count)
    view[: len(piece)] = piece
    return len(piece)


def sync_file(path: Path) -> None:
    """Make what was written to a file last through a power cut. It is opened to be written: Windows wants that."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a new name last through a power cut; Windows opens no folders, and sees to that by itself."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def replace_file(source: Path, target: Path) -> None:
    """Give a file or folder another's name, at once. Windows refuses while anybody has either open: then once more."""
    for pause in PAUSES if IS_WINDOWS else ():
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(pause)
    os.replace(source, target)


def lock_file(number: int) -> bool:
    """Hold an open file for this process, until it is closed or the process ends; False where another one holds it."""
    try:
        if _fcntl is not None:
            _fcntl.flock(number, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        elif _msvcrt is not None:
            os.lseek(number, LOCKED_AT, os.SEEK_SET)
            _msvcrt.locking(number, _msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return True


def is_alive(process: int) -> bool:
    """Whether a process of this number is there, as far as can be known: on Windows the question would end it."""
    if IS_WINDOWS:
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def give_back_large_blocks() -> bool:
    """From now on, have memory of a megabyte or more go back to the system when it is freed; False where that is moot.

    glibc keeps blocks of up to 32 MB for later, and soon has many that fit nothing. What the user has set stays.
    """
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK))
    except (OSError, AttributeError):  # another C library
        return False
