"""Files on disk: ReadOnlyFile, read piece by piece into memory of our own, never mapped; and atomic writes."""

from __future__ import annotations

import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from vitrail.errors import CheckpointError, InputError
from vitrail.system_calls import READ, read_at, replace_file, sync_file, sync_folder


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text, or an error that says what came instead."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InputError(f"expected the path of a file or folder of weights, got {type(path).__name__}")
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InputError(f"expected the path of a file or folder of weights, got {text!r:.80}")
    return text


CACHE: Final = "VITRAIL_CACHE"  # names the folder of caches; empty: none are kept


def cache_folder() -> Path | None:
    """Where caches are kept: $VITRAIL_CACHE, else the system's folder for them; None where none are wanted."""
    if CACHE in os.environ:
        return Path(os.path.abspath(os.environ[CACHE])) if os.environ[CACHE] else None
    usual = {"win32": ("LOCALAPPDATA", "AppData/Local"), "darwin": ("", "Library/Caches")}
    variable, below = usual.get(sys.platform, ("XDG_CACHE_HOME", ".cache"))
    named = os.environ.get(variable, "") if variable else ""
    try:
        folder = Path(named) if os.path.isabs(named) else Path.home() / below
    except RuntimeError:  # a user without a home
        return None
    return folder / "vitrail"


HUB: Final = ("hf:", "timm:")  # how the names of published checkpoints begin


def is_name(path: str) -> bool:
    """Whether this names a checkpoint that lies in no file of the user's."""
    return path.startswith(("vitrail:", *HUB))


def best_of_run(path: str) -> str:
    """The best checkpoint of a run, where the folder of one is given; else the path as it is."""
    return os.path.join(path, "best.safetensors") if os.path.isfile(os.path.join(path, "data.json")) else path


class ReadOnlyFile:
    """An open file that closes when nothing of it is wanted any more; any thread may read from it."""

    def __init__(self, path: str | os.PathLike[str], name: str = "") -> None:
        text = path_text(path)
        self.name = name or text  # as messages call it
        try:
            self.number = os.open(text, READ)
            weakref.finalize(self, os.close, self.number)
            status = os.fstat(self.number)
        except FileNotFoundError:
            raise CheckpointError(
                f"no checkpoint {self.name}: expected a file or folder of weights, or a name: vitrail:fashion, "
                "hf:owner/name or timm:name (`vitrail models --pretrained` lists some)"
            ) from None
        except OSError as error:
            why = "is a folder: expected a file of weights" if os.path.isdir(text) else ""  # which Windows never opens
            raise CheckpointError(
                f"{self.name} {why}" if why else f"could not read {self.name}: {reason(error)}"
            ) from error
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or device"
            raise CheckpointError(f"{self.name} is {what}: expected a file of weights")
        self.size, self.changed = status.st_size, status.st_mtime_ns

    def read(self, start: int, count: int) -> bytes:
        """The bytes there, fewer where the file ends: for headers and other small pieces."""
        raw = bytearray(max(0, min(count, self.size - start)))
        self.fill(memoryview(raw), start)
        return bytes(raw)

    def fill(self, view: memoryview, start: int) -> None:
        """Fill memory with what stands there: all of it, or an error."""
        try:
            while view and (count := read_at(self.number, view, start)):
                view, start = view[count:], start + count
            status = os.fstat(self.number)
        except OSError as error:
            raise CheckpointError(f"could not read {self.name}: {reason(error)}") from error
        if view or status.st_size < self.size:
            raise CheckpointError(f"{self.name} was cut short while being read: get the file anew")
        if (status.st_size, status.st_mtime_ns) != (self.size, self.changed):
            raise CheckpointError(f"{self.name} was changed while being read: load it again")


def reason(error: OSError) -> str:
    return error.strerror or str(error)


@contextmanager
def atomic_write(path: Path, prove: Callable[[Path], object] | None = None) -> Iterator[Path]:
    """A temporary path beside this one, all or nothing: what the block writes there is synced to disk, `prove` reads it
    back, and it takes the name. After an error in any of that nothing is left of it, and an older file stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        if prove is not None:
            prove(temporary)
        replace_file(temporary, path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()
