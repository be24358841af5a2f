"""The state of a run, in files that are whole or not there: a kill at any moment loses one interval at most.

A file is a mark, a safetensors file with everything in it, and the SHA-256 of both. It is written under another name,
synced, renamed, its folder synced, read back; only then are older ones removed. The newest is the one of most
rollbacks and steps, never the one of the latest time. A damaged one is passed over, and that is told.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Protocol, TypeVar

import safetensors.torch
from torch import Tensor

from vitrail.checkpoint.safetensors_io import bytes_of, lay_out
from vitrail.errors import CheckpointError
from vitrail.files import reason
from vitrail.system_calls import replace_file, sync_folder
from vitrail.types import LogCallback

MARK: Final = b"VITRAIL STATE 1\n"
DIGEST: Final = 32  # bytes of a SHA-256
KEPT: Final = 2  # states besides the newest epoch's: the newest may be damaged
SHARDED: Final = ".shards"  # what the name of a state ends in that is a folder, a part from each process
NAME: Final = re.compile(rf"r(\d{{3}})-s(\d{{9}})(-epoch)?\.(state|{SHARDED[1:]})")

Read = TypeVar("Read")


def reached(point: str) -> None:
    """Called at every named point of a save; the tests kill the process here."""


class FindState(Protocol):
    """The newest state, or the newest at the end of an epoch, of those that `read` finds whole."""

    def __call__(self, folder: Path, log: LogCallback, read: Callable[[Path], Read]) -> Read | None: ...


class State(NamedTuple):
    """Everything a run needs to go on: tensors under names, and facts for JSON (step, rollbacks, epoch_end, ...)."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The file's name; rollbacks count before steps, since a rollback starts a new line of steps."""
        mark = "-epoch" if self.facts["epoch_end"] else ""
        return f"r{self.facts['rollbacks']:03d}-s{self.facts['step']:09d}{mark}.state"


def write_state(folder: Path, state: State) -> int:
    """Write a state, prove it, and only then remove those no longer needed; gives its size in bytes."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    layout = lay_out(tensors, {"facts": json.dumps(dict(state.facts), allow_nan=False)})
    path = folder / state.name
    temporary = folder / f".{state.name}.tmp"
    needed = len(MARK) + layout.size + DIGEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reached("before-write")
        with open(temporary, "wb") as file:
            digest = _write(file, [layout.header, *(bytes_of(tensors[name]) for name in layout.order)])
            file.flush()
            reached("written")
            os.fsync(file.fileno())
        reached("synced")
        if path.is_dir() and not path.is_symlink():
            os.rename(path, path.with_suffix(".aside"))  # not ours: a file of that name is
        replace_file(temporary, path)
        reached("renamed")
        sync_folder(folder)
        if _digest_of(path) != digest:
            raise CheckpointError(f"{path} does not read back as it was written: its checksum is wrong: check the disk")
        reached("verified")
    except OSError as error:
        raise CheckpointError(f"could not write {path} ({needed:,} bytes needed): {reason(error)}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    prune(folder, path)
    return needed


def read_newest(folder: Path, log: LogCallback) -> State | None:
    """The newest state that is whole, of a run that is not sharded."""
    return find_newest(folder, log, read_state)


def read_epoch(folder: Path, log: LogCallback) -> State | None:
    """The newest of those that were saved at the end of an epoch, of a run that is not sharded."""
    return find_epoch(folder, log, read_state)


def find_newest(folder: Path, log: LogCallback, read: Callable[[Path], Read]) -> Read | None:
    """The newest state that is whole; None where none was ever written. Damaged ones are told, and passed over.

    `read` raises CheckpointError where one is damaged.
    """
    states = _states(folder)
    newest = _first_whole(states, "state", log, read)
    if newest is None and states:
        raise CheckpointError(
            f"none of the {len(states)} states in {folder} can be read: start anew under another name, or with --fresh"
        )
    return newest


def find_epoch(folder: Path, log: LogCallback, read: Callable[[Path], Read]) -> Read | None:
    """The newest state of those that were saved at the end of an epoch, by a way to read: where a rollback goes."""
    return _first_whole(_epochs(_states(folder)), "epoch", log, read)


def _first_whole(paths: list[Path], what: str, log: LogCallback, read: Callable[[Path], Read]) -> Read | None:
    for path in paths:
        try:
            return read(path)
        except CheckpointError as error:
            log(f"{error}: falling back to the {what} before it")
    return None


def read_state(path: Path) -> State:
    """One state, if every bit of it is as it was written."""
    body = memoryview(_whole(path))[len(MARK) : -DIGEST]
    length = int.from_bytes(body[:8], "little")
    header = json.loads(bytes(body[8 : 8 + length]))
    return State(safetensors.torch.load(bytes(body)), json.loads(header["__metadata__"]["facts"]))


def has_state(folder: Path) -> bool:
    """Whether any state was ever written there."""
    return bool(_states(folder))


def forget_later(folder: Path, rollbacks: int, step: int) -> None:
    """Remove the states of steps that a rollback has undone."""
    for path in _states(folder):
        before, steps, _ = _age(path)
        if before < rollbacks and steps > step:
            remove(path)
    sync_folder(folder)


def clean(folder: Path) -> None:
    """Remove what killed saves left behind; only for the one who holds the lock."""
    for path in folder.glob(".*.tmp"):
        remove(path)


def remove(path: Path) -> None:
    """A file or a folder; one that cannot be removed stays. What is left of a folder has no name of a state."""
    with suppress(OSError):
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return
        aside = path if path.name.startswith(".") else path.with_name(f".{path.name}.old.tmp")
        path.rename(aside)
        shutil.rmtree(aside)


def _write(file: IO[bytes], parts: list[Any]) -> bytes:
    """Mark, parts and digest into a file; gives the digest."""
    hashed = hashlib.sha256(MARK)
    file.write(MARK)
    half = len(parts) // 2
    for number, part in enumerate(parts):
        if number == half:
            file.flush()
            reached("mid-write")
        file.write(part)
        hashed.update(part)
    file.write(hashed.digest())
    return hashed.digest()


def _digest_of(path: Path) -> bytes:
    """The digest of what a file holds before its own, piece by piece: a state may be larger than the memory left."""
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size - DIGEST
        while left > 0 and (piece := file.read(min(left, 1 << 20))):
            hashed.update(piece)
            left -= len(piece)
        return hashed.digest() if file.read() == hashed.digest() else b""


def _whole(path: Path) -> bytes:
    """The bytes of a file whose digest is right."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise CheckpointError(f"{path} is no ordinary file")
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"could not read {path}: {reason(error)}") from error
    if len(raw) < len(MARK) + 8 + DIGEST or not raw.startswith(MARK):
        raise CheckpointError(f"{path} is cut short or damaged ({len(raw):,} bytes)")
    if hashlib.sha256(memoryview(raw)[:-DIGEST]).digest() != raw[-DIGEST:]:
        raise CheckpointError(f"{path} is damaged: its checksum is wrong")
    return raw


def _states(folder: Path) -> list[Path]:
    """Every state, the newest first."""
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(paths, key=_age, reverse=True)


def _epochs(states: list[Path]) -> list[Path]:
    return [path for path in states if path.stem.endswith("-epoch")]


def _age(path: Path) -> tuple[int, int, bool]:
    rollbacks, steps, mark, _ = NAME.findall(path.name)[0]
    return int(rollbacks), int(steps), bool(mark)


def prune(folder: Path, newest: Path) -> None:
    """Keep the newest few, and the newest two ends of epochs, which a rollback may need."""
    remove(newest.with_suffix(SHARDED if newest.suffix != SHARDED else ".state"))  # the same, in another form
    states = _states(folder)
    for path in states:
        if path not in states[:KEPT] and path not in _epochs(states)[:KEPT]:
            reached("pruning")
            remove(path)
