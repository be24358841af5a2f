"""ShardSet: images in tar files, listed in an index, each read by its place; nothing is unpacked.

The index is one JSON object: a list a column, a row an image, the SHA-256 of all of it at its end. Tar files of others,
as webdataset writes them, are listed in the same way when they are first read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.errors import InputError
from vitrail.images.decoding import DEFAULT_LIMITS, describe
from vitrail.images.file_bytes import FileBytes
from vitrail.types import Array

FORMAT: Final = 1
INDEX: Final = "index.json"
KIND: Final = "vitrail shards"
MOST_OPEN: Final = 64  # tar files at a time
LARGEST_INDEX: Final = 8 * 2**30
_END: Final = re.compile(r',"sha256":"([0-9a-f]{64})"\}\n?$')
_COLUMNS: Final = ("names", "labels", "splits", "groups", "shard", "offsets", "sizes", "digests")


class Shard(NamedTuple):
    """A tar file."""

    name: str  # below the folder
    bytes: int
    sha256: str  # of the whole file; empty: not known
    stamp: tuple[int, int] = (0, 0)  # times of change when it was listed; not of our own


@dataclass(frozen=True)
class ShardIndex:
    """What lies where in some tar files; the columns stand beside the names."""

    task: str
    classes: tuple[str, ...]
    shards: tuple[Shard, ...]
    names: Sequence[str]
    labels: Sequence[tuple[str, ...]]
    splits: Sequence[str]
    groups: Sequence[str]
    shard: Array  # (n,) int32: which of the tar files
    offsets: Array  # (n,) int64: where its bytes begin
    sizes: Array  # (n,) int64
    digests: Array | None  # (n, 32) uint8; None: not known

    def __len__(self) -> int:
        return len(self.names)

    def to_json(self) -> str:
        """The index as it is written."""
        number = {name: place for place, name in enumerate(self.classes)}
        digests = b"" if self.digests is None else self.digests.tobytes()
        text = json.dumps(
            {
                "kind": KIND,
                "format": FORMAT,
                "task": self.task,
                "classes": list(self.classes),
                "shards": [{**each._asdict(), "stamp": list(each.stamp)} for each in self.shards],
                "names": list(self.names),
                "labels": [[number[label] for label in each] for each in self.labels],
                "splits": list(self.splits),
                "groups": list(self.groups) if any(self.groups) else [],
                "shard": self.shard.tolist(),
                "offsets": self.offsets.tolist(),
                "sizes": self.sizes.tolist(),
                "digests": [digests[start : start + 32].hex() for start in range(0, len(digests), 32)],
            },
            separators=(",", ":"),
        )
        return f'{text[:-1]},"sha256":"{hashlib.sha256(text.encode()).hexdigest()}"}}\n'

    @classmethod
    def from_json(cls, text: str, where: str) -> ShardIndex:
        """The index that to_json wrote; InputError where a letter of it differs."""
        try:
            end = _END.search(text, max(0, len(text) - 200))
            check = "" if end is None else hashlib.sha256((text[: end.start()] + "}").encode()).hexdigest()
            if end is None or check != end[1]:
                got = f"expected SHA-256 {end[1][:16]}..., got {check[:16]}..." if end else "its end is missing"
                raise InputError(f"{where} is damaged ({got}): copy it again, or make the shards anew")
            plain = json.loads(text)
            if plain["kind"] != KIND or plain["format"] != FORMAT:
                raise InputError(f"{where} has format {plain['format']!r:.20}, expected {FORMAT}: update vitrail")
            return cls._of(plain)
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
            raise InputError(f"{where} is no index of shards ({type(error).__name__}: {error!s:.80})") from None

    @classmethod
    def _of(cls, plain: dict[str, Any]) -> ShardIndex:
        classes = tuple(map(str, plain["classes"]))
        known = [(name,) for name in classes]  # shared, not one an image
        labels = [
            known[each[0]] if len(each) == 1 else tuple(classes[number] for number in each) for each in plain["labels"]
        ]
        shards = tuple(
            Shard(each["name"], each["bytes"], each["sha256"], (each["stamp"][0], each["stamp"][1]))
            for each in plain["shards"]
        )
        digests: Array | None = None
        if plain["digests"]:
            raw = bytes.fromhex("".join(plain["digests"]))
            digests = np.frombuffer(raw, np.uint8).reshape(-1, 32)
        index = cls(
            plain["task"],
            classes,
            shards,
            plain["names"],
            labels,
            plain["splits"],
            plain["groups"] or [""] * len(labels),
            np.array(plain["shard"], np.int32),
            np.array(plain["offsets"], np.int64),
            np.array(plain["sizes"], np.int64),
            digests,
        )
        index.check()
        return index

    def check(self) -> None:
        """ValueError where the columns do not fit each other, or name what no tar file can hold."""
        count = len(self.names)
        columns: list[Sequence[Any] | Array] = [self.labels, self.splits, self.groups]
        columns += [self.shard, self.offsets, self.sizes, *([] if self.digests is None else [self.digests])]
        if any(len(each) != count for each in columns):
            raise ValueError("columns of different lengths")
        if len(set(self.names)) != count:
            raise ValueError("a name that stands twice")
        if not all(map(is_plain, (*self.names, *(each.name for each in self.shards)))):
            raise ValueError("a name that is absolute or leads out of the folder")
        if count and not (self.shard.min() >= 0 and self.shard.max() < len(self.shards)):
            raise ValueError("a shard that is not listed")
        ends = np.array([each.bytes for each in self.shards], np.int64)[self.shard]
        if ((self.offsets < 0) | (self.sizes < 0) | (self.offsets + self.sizes > ends)).any():
            raise ValueError("a place beyond the end of its shard")
        if count and self.sizes.max() > DEFAULT_LIMITS.file_bytes:
            row = int(self.sizes.argmax())
            raise ValueError(f"{self.names[row]!r} has {self.sizes[row]:,} bytes, over the limit")


def is_plain(name: str) -> bool:
    """Whether a name stays below the folder it stands in."""
    return bool(name) and "\0" not in name and not os.path.isabs(name) and ".." not in re.split(r"[/\\]", name)


@dataclass
class ShardSet:
    """The images of an index, read from the tar files in a folder; any thread may read."""

    folder: Path
    index: ShardIndex
    _files: OrderedDict[int, TarFile] = field(default_factory=OrderedDict, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "index": self.index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["folder"], state["index"])  # type: ignore[misc]

    def __len__(self) -> int:
        return len(self.index)

    def path(self, row: int) -> Path:
        """What an image is called: its name below the folder, where no file stands."""
        return self.folder / self.index.names[row]

    def read(self, row: int) -> FileBytes:
        """The bytes of an image, held against their digest; InputError, which names the shard, where they differ."""
        index = self.index
        number, start, size = int(index.shard[row]), int(index.offsets[row]), int(index.sizes[row])
        tar = self.folder / index.shards[number].name
        raw = self._file(number, tar).read(start, size)
        where = f"{describe(tar)} is damaged at {describe(index.names[row])} (byte {start:,})"
        if len(raw) != size:
            raise InputError(f"{where}: expected {size:,} bytes, got {len(raw):,}: copy the shard again")
        if index.digests is not None:
            expected, digest = index.digests[row].tobytes(), hashlib.sha256(raw).digest()
            if digest != expected:
                raise InputError(
                    f"{where}: expected SHA-256 {expected.hex()[:16]}..., got {digest.hex()[:16]}...: copy the shard "
                    "again"
                )
        return FileBytes(raw, os.fspath(self.path(row)))

    def stamps(self) -> Array:
        """Size of each image, and the times of change of its tar file, (n, 3) int64; -1: not to be had."""
        times = np.full((len(self.index.shards), 2), -1, np.int64)
        for number, shard in enumerate(self.index.shards):
            status = os.stat(self.folder / shard.name)
            times[number] = status.st_mtime_ns, status.st_ctime_ns
        return np.column_stack((self.index.sizes, times[self.index.shard]))

    def check_files(self) -> None:
        """Whether every tar file is there, with as many bytes as the index says."""
        for shard in self.index.shards:
            path = self.folder / shard.name
            try:
                status = os.stat(path)
            except OSError as error:
                raise InputError(f"the shard {describe(path)} is missing ({error.strerror}): copy it again") from None
            if not stat.S_ISREG(status.st_mode) or status.st_size != shard.bytes:
                raise InputError(
                    f"the shard {describe(path)} has {status.st_size:,} bytes, expected {shard.bytes:,}: copy it again"
                )

    def _file(self, number: int, path: Path) -> TarFile:
        """A tar file, open; the one not read from the longest is closed where there are too many."""
        with self._lock:
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = TarFile(path)
                if len(self._files) > MOST_OPEN:
                    self._files.popitem(last=False)  # closed when nobody reads from it any more
            self._files.move_to_end(number)
            return file


class TarFile:
    """An open file, read at any place by any thread; closed with the last who holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except OSError as error:
            raise InputError(f"{describe(path)} cannot be read: {error.strerror}") from error
        self._lock = threading.Lock()

    def read(self, start: int, count: int) -> bytes:
        """The bytes there, fewer where the file ends."""
        parts = []
        try:
            with self._lock:
                self._file.seek(start)
                while count > 0 and (part := self._file.read(count)):
                    parts.append(part)
                    count -= len(part)
        except OSError as error:
            raise InputError(f"{describe(self.path)} cannot be read: {error.strerror}") from error
        return b"".join(parts)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


def read_index(folder: Path) -> ShardSet:
    """The shards in a folder with an index of ours."""
    path = folder / INDEX
    try:
        if os.path.getsize(path) > LARGEST_INDEX:
            raise InputError(f"{describe(path)} is larger than {LARGEST_INDEX:,} bytes: refused")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{describe(path)} cannot be read ({error}): copy it again") from error
    shards = ShardSet(folder, ShardIndex.from_json(text, describe(path)))
    shards.check_files()
    return shards


def has_index(folder: Path) -> bool:
    """Whether a folder has an index of ours; whether it is whole shows when it is read."""
    try:
        with open(folder / INDEX, "rb") as file:
            return file.read(100).startswith(json.dumps({"kind": KIND}, separators=(",", ":"))[:-1].encode())
    except OSError:
        return False
