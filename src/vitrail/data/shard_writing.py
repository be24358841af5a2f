"""shard: images in files -> tar files with an index, their bytes unchanged, read back before they get their name."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np

from vitrail.checks import check_int
from vitrail.data.image_scan import scan
from vitrail.data.known_images import recall
from vitrail.data.left_out import left_out_lines, unreadable_lines
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset, ImageFiles
from vitrail.errors import InputError
from vitrail.files import reason
from vitrail.images import describe
from vitrail.images.decoding import read_file
from vitrail.images.shards import INDEX, Shard, ShardIndex, has_index, read_index
from vitrail.images.tar_headers import tar_members
from vitrail.progress import counting
from vitrail.reporting.html_page import counted
from vitrail.system_calls import sync_folder
from vitrail.types import Array, ProgressCallback

SHARD_BYTES: Final = 500_000_000
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class ShardReport:
    """What was written."""

    folder: Path
    images: int
    shards: tuple[Shard, ...]
    unreadable: tuple[tuple[str, str], ...]  # left out: name, reason
    notes: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of all tar files."""
        return sum(each.bytes for each in self.shards)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"{counted(self.images, 'image')} in {counted(len(self.shards), 'shard')}, {self.folder}"

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "folder": str(self.folder),
            "images": self.images,
            "bytes": self.bytes,
            "shards": [{"name": each.name, "bytes": each.bytes, "sha256": each.sha256} for each in self.shards],
            "unreadable": [{"path": name, "reason": why} for name, why in self.unreadable],
            "notes": list(self.notes),
        }


class _Place(NamedTuple):
    shard: int
    offset: int
    size: int


def shard(
    data: Dataset | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    shard_bytes: int = SHARD_BYTES,
    pattern: str | None = None,
    unreadable: str = "skip",
    force: bool = False,
    threads: int = 2,
    done: ProgressCallback | None = None,
    progress: bool | None = None,
) -> ShardReport:
    """Write the images of a data set into tar files with an index, as `train` and webdataset read them.

    Bytes, names, classes, splits and groups stay as they are, so that a training on the shards is the same, bit for
    bit. Every tar file is read back before the folder gets its name.

    - data: a folder, table or other source of `train` whose images are files, or a Dataset.
    - out: the folder to write.
    - shard_bytes: about how large a tar file becomes.
    - pattern: labels from file names: a regular expression with (?P<label>...).
    - unreadable: "skip" leaves out images that cannot be read, "stop" writes nothing.
    - force: write over shards that are there.
    - threads: threads that read images.
    - done: a function that hears how many more images are done: all of them twice, read and written.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never.
    """
    check_int("shard_bytes", shard_bytes, 1, 1 << 40, error=InputError)
    folder = Path(out)
    refuse_other(folder, force)
    dataset = data if isinstance(data, Dataset) else read_data(data, pattern=pattern)
    if not isinstance(dataset.images, ImageFiles):
        raise InputError(f"{dataset.source} holds arrays: expected images in files, which shards keep as they are")
    with counting(done, progress, 2 * len(dataset)) as told:
        known = recall(dataset)
        if told is not None and known is not None:
            told(int(known.fresh.sum()))
        scanned = scan(dataset, policy=unreadable, threads=threads, known=known, done=told)
        notes = left_out_lines(dataset.left_out, dataset.left_out_names)
        notes += [f"left out: {line}" for line in unreadable_lines(scanned.bad)]
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        try:
            temporary.mkdir(parents=True)
            index = _write(scanned.dataset, scanned.entries.facts.digests, temporary, shard_bytes, told)
            _prove(temporary, index)
            _take_name(temporary, folder)
        except OSError as error:
            raise InputError(f"could not write {folder}: {reason(error)}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return ShardReport(folder, len(index), index.shards, scanned.bad, tuple(notes))


def refuse_other(folder: Path, force: bool) -> None:
    """What is there already stays, unless it is shards of ours that may be written over."""
    try:
        inside = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {reason(error)}") from error
    if inside and not has_index(folder):
        raise InputError(f"{folder} is there already, and holds no shards of ours: give another name")
    if inside and not force:
        raise InputError(f"{folder} is there already: give another name, or --force to write over it")


def _write(
    dataset: Dataset, digests: Array, folder: Path, shard_bytes: int, done: ProgressCallback | None
) -> ShardIndex:
    """The tar files of each split, and the index, in the order of the data set."""
    number = {name: place for place, name in enumerate(dataset.classes)}
    places: list[_Place | None] = [None] * len(dataset)
    shards: list[Shard] = []
    for split in dict.fromkeys(each.split for each in dataset.samples):
        rows = [row for row, each in enumerate(dataset.samples) if each.split == split]
        start = 0
        while start < len(rows):
            name = f"{split or 'images'}-{len(shards):06d}.tar"
            with open(folder / name, "wb") as file:
                tar = _TarWriter(file)
                while start < len(rows) and (tar.size < shard_bytes or not tar.size):
                    row = rows[start]
                    offset, size = _add(tar, dataset, row, digests[row].tobytes(), number)
                    places[row] = _Place(len(shards), offset, size)
                    start += 1
                    if done is not None:
                        done(1)
                tar.finish()
                file.flush()
                os.fsync(file.fileno())
            shards.append(Shard(name, tar.size, tar.check.hexdigest()))
    columns = np.array(places, np.int64).reshape(-1, 3)
    samples = dataset.samples
    index = ShardIndex(
        dataset.task,
        dataset.classes,
        tuple(shards),
        [each.name for each in samples],
        [each.labels for each in samples],
        [each.split for each in samples],
        [each.group for each in samples],
        columns[:, 0].astype(np.int32),
        columns[:, 1],
        columns[:, 2],
        digests,
    )
    with open(folder / INDEX, "w", encoding="utf-8") as text:
        text.write(index.to_json())
        text.flush()
        os.fsync(text.fileno())
    sync_folder(folder)
    return index


def _add(tar: _TarWriter, dataset: Dataset, row: int, digest: bytes, number: dict[str, int]) -> tuple[int, int]:
    """One sample: its image, its class and all that is known of it. Where its bytes stand, and how many."""
    sample, data = dataset.samples[row], read_file(dataset.images[row])
    if hashlib.sha256(data).digest() != digest:
        raise InputError(f"{describe(data)} has changed since it was read: start again")
    key, ending = f"{row:09d}", os.path.splitext(sample.name)[1].lower().lstrip(".") or "img"
    offset = tar.add(f"{key}.{ending}", data)
    if dataset.task == "single-label":
        tar.add(f"{key}.cls", str(number[sample.labels[0]]).encode())
    tar.add(f"{key}.json", json.dumps(sample._asdict()).encode())
    return offset, len(data)


class _TarWriter:
    """A tar file whose bytes follow from its members alone: no times, no owners."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.size, self.check = file, 0, hashlib.sha256()

    def add(self, name: str, data: bytes) -> int:
        """A member; where its bytes begin."""
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._put(info.tobuf(tarfile.USTAR_FORMAT))
        start = self.size
        self._put(data)
        self._put(bytes(-len(data) % tarfile.BLOCKSIZE))
        return start

    def finish(self) -> None:
        """The end of the archive, as tar has it."""
        self._put(bytes(2 * tarfile.BLOCKSIZE))
        self._put(bytes(-self.size % tarfile.RECORDSIZE))

    def _put(self, raw: bytes) -> None:
        self.file.write(raw)
        self.check.update(raw)
        self.size += len(raw)


def _prove(folder: Path, index: ShardIndex) -> None:
    """Read everything back: the index, each tar file to its last byte, and what its headers say of each image."""
    shards = read_index(folder)
    if shards.index.to_json() != index.to_json():
        raise InputError(f"{folder / INDEX} came back otherwise than it was written: is the disk in order?")
    for number, shard_file in enumerate(index.shards):
        path = folder / shard_file.name
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != shard_file.sha256:
                raise InputError(
                    f"{path} came back otherwise than it was written: expected SHA-256 {shard_file.sha256[:16]}..., "
                    f"got {digest[:16]}...: is the disk in order?"
                )

            def read(start: int, count: int, file: IO[bytes] = file) -> bytes:
                file.seek(start)
                return file.read(count)

            rows = np.flatnonzero(index.shard == number)
            images = [each for each in tar_members(read, shard_file.bytes, str(path)) if not _is_beside(each.name)]
            expected = [(int(index.offsets[row]), int(index.sizes[row])) for row in rows]
            if [(each.start, each.size) for each in images] != expected:
                raise InputError(f"{path} holds other images than were written: is the disk in order?")


def _is_beside(name: str) -> bool:
    return name.endswith((".cls", ".json"))


def _take_name(temporary: Path, folder: Path) -> None:
    """The finished folder in the place of what was there, which goes once the new one stands."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.is_dir():
        os.rename(folder, aside)
    try:
        os.rename(temporary, folder)
    except OSError:
        if aside.is_dir():
            os.rename(aside, folder)
        raise
    with suppress(OSError):
        sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)
