"""A lock on a run's folder, held by one process at a time; the system lets go of it when the process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitrail.errors import InputError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, or say who does; a killed process holds nothing."""
    path = folder / "lock"
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(number, 32, 0).decode(errors="replace").strip() or "another process"
            raise InputError(
                f"{folder} is being trained by process {holder}: wait for it, stop it, or choose another --name"
            ) from None
        os.truncate(number, 0)
        os.pwrite(number, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(number)
