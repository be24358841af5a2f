"""The state of a sharded run: a folder of safetensors files, written by all processes, and a manifest that proves them.

torch's distributed checkpoints write and read the files (`HuggingFaceStorageWriter`: no pickle); what counts as a state
is said here. A folder is written under another name, synced, read back, given its manifest and renamed; only then are
older ones removed. Before anything of it is opened again, every file is held against the manifest: names, sizes,
SHA-256, the run. Any number of processes reads what any other number wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from vitrail.checkpoint.safetensors_io import DTYPE_NAMES, DTYPES, unique
from vitrail.checks import join_limited
from vitrail.errors import CheckpointError
from vitrail.files import reason
from vitrail.system_calls import replace_file, sync_folder
from vitrail.training.processes import ALONE, Processes
from vitrail.training.state import SHARDED, State, prune, reached, remove

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
LARGEST_MANIFEST: Final = 64 * 2**20  # bytes
FILE_BYTES: Final = 2**28  # that a process puts into one file, about: while it writes them they are in memory twice
PIECE: Final = 2**20  # bytes read at once


class StateShard(NamedTuple):
    """A file as it was written."""

    name: str
    size: int
    sha256: str


class ShardManifest(NamedTuple):
    """What a sharded state consists of."""

    run: str  # whose state it is
    world: int  # processes that wrote it
    facts: dict[str, Any]
    tensors: dict[str, tuple[str, list[int]]]  # kind of number and shape of each, all parts together
    shards: tuple[StateShard, ...]

    def to_json(self) -> str:
        """One text for one manifest; `from_json` gives it back."""
        plain = {"format": FORMAT, **self._asdict(), "shards": [each._asdict() for each in self.shards]}
        text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
        return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "state": text}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ShardManifest:
        """The manifest that `to_json` wrote, every byte of it; ValueError says what is wrong."""
        outer = json.loads(text, object_pairs_hook=unique)
        plain = json.loads(outer["state"], object_pairs_hook=unique)
        if plain.pop("format") != FORMAT:
            raise ValueError("it may need a newer Vitrail")
        tensors = {name: (str(kind), list(shape)) for name, (kind, shape) in plain.pop("tensors").items()}
        manifest = cls(shards=tuple(StateShard(**each) for each in plain.pop("shards")), tensors=tensors, **plain)
        if manifest.to_json() != text:
            raise ValueError("its checksum is wrong")
        return manifest


# ---- writing -------------------------------------------------------------------------------------------------------


def write_sharded_state(folder: Path, state: State, run: str, processes: Processes) -> Path:
    """Write a state together, prove it, and only then remove those no longer needed. Every process gives its parts."""
    path = (folder / state.name).with_suffix(SHARDED)
    temporary = folder / f".{path.name}.tmp"
    with _alike(processes, path):
        if processes.is_first:
            folder.mkdir(parents=True, exist_ok=True)
            remove(temporary)
            temporary.mkdir()
    reached("before-write")
    tensors = {name: _at_least_one_dimension(each) for name, each in state.tensors.items()}
    written = _write_files(temporary, tensors, processes, path)
    reached("written")
    own: list[StateShard] = []
    with _alike(processes, path):
        own = [_read_back(temporary / name, digest) for name, digest in written.items()]
    shards = [StateShard(*each) for rows in processes.collect(own) for each in rows]
    with _alike(processes, path):
        if processes.is_first:
            kinds = {name: (DTYPE_NAMES[each.dtype], list(each.shape)) for name, each in state.tensors.items()}
            manifest = ShardManifest(run, processes.world, dict(state.facts), kinds, tuple(sorted(shards)))
            _finish(temporary, path, manifest)
            prune(folder, path)
    return path


def _write_files(folder: Path, tensors: Mapping[str, Tensor], processes: Processes, path: Path) -> dict[str, str]:
    """The files of all processes; of this one's, names and what their SHA-256 should be."""
    writer = HuggingFaceStorageWriter(str(folder), _file_numbers(tensors, processes), save_distributed=True)
    writer.fs = hashing = _HashingFileSystem()
    try:
        with _quiet():
            save(dict(tensors), storage_writer=writer)
    except CheckpointException as error:
        rank, (why, _) = next(iter(sorted(error.failures.items())))
        raise CheckpointError(f"could not write {path} (rank {rank}): {_plain_reason(why)}") from error
    return hashing.digests


def _file_numbers(tensors: Mapping[str, Tensor], processes: Processes) -> dict[str, int]:
    """Which file of a process a tensor goes to: as many in each as may be in memory twice."""
    numbers, filled = {}, 0
    for name, each in tensors.items():
        filled += each.nbytes // processes.world
        numbers[name] = 1 + filled // FILE_BYTES
    return numbers


class _HashingFileSystem(FileSystem):
    """Keeps the SHA-256 of what is written, to hold the files against."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        hashed = hashlib.sha256()
        with super().create_stream(path, mode) as stream:
            yield _HashingStream(stream, hashed)
        self.digests[os.path.basename(path)] = hashed.hexdigest()


class _HashingStream:
    """A file that is written, and hashed on the way."""

    def __init__(self, stream: Any, hashed: Any) -> None:
        self._stream, self._hashed = stream, hashed

    def write(self, data: bytes) -> int:
        self._hashed.update(data)
        return int(self._stream.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _read_back(path: Path, digest: str) -> StateShard:
    """A file of ours, if the disk has what was written."""
    found = _shard_of(path)
    if found.sha256 != digest:
        raise CheckpointError(f"{path} does not read back as it was written: its checksum is wrong: check the disk")
    return found


def _finish(temporary: Path, path: Path, manifest: ShardManifest) -> None:
    """The manifest beside proven files, and the name that makes them a state."""
    with open(temporary / MANIFEST, "w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    _check_files(temporary, manifest)
    sync_folder(temporary)
    reached("synced")
    if path.exists() or path.is_symlink():  # of a run that went back, or not ours
        remove(path)
    replace_file(temporary, path)
    reached("renamed")
    sync_folder(path.parent)
    reached("verified")


@contextmanager
def _alike(processes: Processes, path: Path) -> Iterator[None]:
    """What goes wrong on one process goes wrong on all, by the same error."""
    error = ""
    try:
        yield
    except OSError as caught:
        error = f"could not write {path}: {reason(caught)}"
    except CheckpointError as caught:
        error = str(caught)
    errors = [each for each in processes.collect(error) if each]
    if errors:
        raise CheckpointError(errors[0])


# ---- reading -------------------------------------------------------------------------------------------------------


def check_sharded_state(path: Path, run: str) -> ShardManifest:
    """The manifest of a sharded state of this run, if everything in the folder is as it was written."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise CheckpointError(f"{path} is damaged: expected a folder of shards")
        manifest = _manifest_of(path)
        if manifest.run != run:
            raise CheckpointError(f"{path} is of another run: its {MANIFEST} names {_short(manifest.run)}")
        if State({}, manifest.facts).name != path.with_suffix(".state").name:
            raise CheckpointError(f"{path} is damaged: its {MANIFEST} is that of another state")
        _check_files(path, manifest)
        for shard in manifest.shards:
            _check_shard(path / shard.name, shard)
    except OSError as error:
        raise CheckpointError(f"could not read {error.filename or path}: {reason(error)}") from error
    return manifest


def read_sharded_state(path: Path, run: str) -> State:
    """All of a state in memory, if every bit of it is as it was written."""
    manifest = check_sharded_state(path, run)
    tensors = {name: torch.empty(shape, dtype=DTYPES[kind]) for name, (kind, shape) in manifest.tensors.items()}
    read_into(path, tensors)
    return State(tensors, manifest.facts)


def read_into(path: Path, tensors: Mapping[str, Tensor], processes: Processes = ALONE) -> None:
    """The values of a state that was checked into these tensors; of one that is sharded only this process's part."""
    with _alike(processes, path):
        _read_into(path, tensors)


def _read_into(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        views = {name: _at_least_one_dimension(each) for name, each in tensors.items()}
        with _quiet():
            load(views, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
    except CheckpointException as error:
        why = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"could not read {path}: {_plain_reason(why)}") from error


def _manifest_of(folder: Path) -> ShardManifest:
    """What the manifest in a folder says."""
    path = folder / MANIFEST
    names = os.listdir(folder)
    if ".metadata" in names:
        raise CheckpointError(
            f"{folder} holds .metadata, the pickle of torch's own distributed checkpoints: refused, and not opened"
        )
    if MANIFEST not in names:
        raise CheckpointError(f"{folder} is damaged: {MANIFEST} is missing")
    if not stat.S_ISREG(os.lstat(path).st_mode) or path.stat().st_size > LARGEST_MANIFEST:
        raise CheckpointError(f"{path} is damaged: expected a file of at most {LARGEST_MANIFEST:,} bytes")
    try:
        return ShardManifest.from_json(path.read_bytes().decode())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None


def _check_files(folder: Path, manifest: ShardManifest) -> None:
    """The files that the manifest names, and no others."""
    expected, found = {each.name for each in manifest.shards} | {MANIFEST}, set(os.listdir(folder))
    if missing := sorted(expected - found):
        raise CheckpointError(f"{folder} is damaged: missing {join_limited(missing)}")
    if extra := sorted(found - expected):
        raise CheckpointError(
            f"{folder} is damaged: its {MANIFEST} does not name {join_limited(extra)}, which is there"
        )


def _check_shard(path: Path, expected: StateShard) -> None:
    """One file as it was written."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise CheckpointError(f"{path} is damaged: expected an ordinary file")
    size = path.stat().st_size
    if size != expected.size:
        cut = "it is cut short" if size < expected.size else "it is another file"
        raise CheckpointError(f"{path} is damaged: expected {expected.size:,} bytes, got {size:,}: {cut}")
    if _shard_of(path).sha256 != expected.sha256:
        raise CheckpointError(f"{path} is damaged, or the shard of another state: its checksum is wrong")


def _shard_of(path: Path) -> StateShard:
    """Size and SHA-256 of a file, read piece by piece."""
    hashed, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            hashed.update(piece)
            size += len(piece)
    return StateShard(path.name, size, hashed.hexdigest())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that one process works alone, where that is so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _at_least_one_dimension(tensor: Tensor) -> Tensor:
    """A single number as a row of one: such a file has slices of rows only. It shares its memory."""
    return tensor.detach() if tensor.dim() else tensor.detach().view(1)


def _plain_reason(error: BaseException) -> str:
    return reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"[:200]


def _short(run: str) -> str:
    return f"{run:.12}" or "none"
