"""Dataset: images with their labels, splits and groups; what every reader gives and everything else takes."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, overload

import numpy as np

from vitrail.errors import InputError, nearest
from vitrail.images.file_bytes import FileBytes
from vitrail.types import Array

SPLITS: Final = ("train", "val", "test")
_SPLIT_NAMES = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}
_BLOCK: Final = 512  # files that a thread looks at, at a time
_STAT_THREADS: Final = 8
SPLIT_NAMES: Final = {name: split for split, names in _SPLIT_NAMES.items() for name in names}


class Sample(NamedTuple):
    """One image, by a name that no other has: its path below the root, or its number in an array."""

    name: str
    labels: tuple[str, ...]  # one; any number for several labels
    split: str = ""  # train, val or test; empty: not yet decided
    group: str = ""  # images of one group (a patient, a video) stay in one split; empty: a group of its own


def labels_of(samples: Iterable[Sample], splits: Collection[str] = ("", *SPLITS)) -> set[str]:
    """All labels that samples of these splits have."""
    return {label for sample in samples if sample.split in splits for label in sample.labels}


def as_split(text: str, where: str) -> str:
    """train, val or test, from any of their usual names; empty stays empty."""
    name = text.strip().lower()
    if name and name not in SPLIT_NAMES:
        raise InputError(f"{where}: the split {text!r} is unknown: {nearest(name, SPLIT_NAMES)}")
    return SPLIT_NAMES[name] if name else ""


class ImageFiles(Sequence[Path | FileBytes]):
    """Images that lie in files, each made when asked for: a million paths would take seconds and much memory."""

    folder: Path  # of the names

    @abstractmethod
    def select(self, rows: Sequence[int]) -> ImageFiles:
        """The images of these rows, in this order."""

    @abstractmethod
    def stamps(self) -> Array:
        """Size and times of change of every image's file, (n, 3) int64 in bytes and nanoseconds; -1: not to be had."""


class Files(ImageFiles):
    """The paths of names below a folder."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, place: int) -> Path: ...
    @overload
    def __getitem__(self, place: slice) -> Files: ...
    def __getitem__(self, place: int | slice) -> Path | Files:
        """One path, or fewer files."""
        if isinstance(place, slice):
            return Files(self.folder, self.names[place])
        return self.folder / self.names[place]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Files):
            return (self.folder, list(self.names)) == (other.folder, list(other.names))
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def select(self, rows: Sequence[int]) -> Files:
        """The files of these rows, in this order."""
        return Files(self.folder, [self.names[row] for row in rows])

    def stamps(self) -> Array:
        """Size and times of change of every file, by threads: on a network each takes its time."""
        stamps = np.full((len(self), 3), -1, np.int64)
        folder = os.fspath(self.folder)

        def look(start: int) -> None:
            for row in range(start, min(start + _BLOCK, len(self))):
                with suppress(OSError, ValueError):
                    status = os.stat(os.path.join(folder, self.names[row]))
                    stamps[row] = status.st_size, status.st_mtime_ns, status.st_ctime_ns

        with ThreadPoolExecutor(_STAT_THREADS) as pool:
            for _ in pool.map(look, range(0, len(self), _BLOCK)):
                pass
        return stamps


@dataclass(frozen=True)
class Dataset:
    """Images and what is known of them; classes are names, and numbers only follow from them."""

    source: str  # as the user named it
    samples: tuple[Sample, ...]
    images: (
        Sequence[Path | FileBytes] | Array
    )  # beside the samples: a file each, or one array (n, H, W) or (n, H, W, C)
    classes: tuple[str, ...]  # in natural order: "2" before "10"
    task: str = "single-label"  # or "multi-label": labels independent of each other
    left_out: Mapping[str, int] = field(default_factory=dict)  # files that are no samples: why, and how many
    left_out_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # why, and the first of them
    marked_by: tuple[str, ...] = ()  # the runs whose splits these are: what they trained on, or chose by

    def __post_init__(self) -> None:
        if len(self.samples) != len(self.images):
            raise InputError(f"{self.source}: {len(self.samples)} samples, but {len(self.images)} images")

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that hold images."""
        return tuple(split for split in SPLITS if any(each.split == split for each in self.samples))

    def select(self, rows: Sequence[int] | Array) -> Dataset:
        """The images of these rows, in this order; the classes stay."""
        chosen = [int(row) for row in rows]
        samples = tuple(self.samples[row] for row in chosen)
        if isinstance(self.images, np.ndarray):
            return replace(self, samples=samples, images=self.images[chosen])
        if isinstance(self.images, ImageFiles):
            return replace(self, samples=samples, images=self.images.select(chosen))
        return replace(self, samples=samples, images=[self.images[row] for row in chosen])

    def part(self, split: str) -> Dataset:
        """The images of one split."""
        rows = [row for row, each in enumerate(self.samples) if each.split == split]
        if not rows:
            found = ", ".join(self.splits) or "no splits"
            raise InputError(f"{self.source} has no split {split!r}: it has {found}")
        return self.select(rows)

    def targets(self, classes: Sequence[str] | None = None) -> Array:
        """Class numbers (n,) int64; for several labels 0 and 1, (n, K) float32. By name, in the order of `classes`."""
        order = tuple(self.classes if classes is None else classes)
        number = {name: place for place, name in enumerate(order)}
        for sample in self.samples:
            for label in sample.labels:
                if label not in number:
                    raise InputError(f"{sample.name}: class {label!r} is unknown: {nearest(label, order)}")
        if self.task == "single-label":
            return np.array([number[each.labels[0]] for each in self.samples], np.int64)
        marks = np.zeros((len(self), len(order)), np.float32)
        for row, sample in enumerate(self.samples):
            marks[row, [number[label] for label in sample.labels]] = 1
        return marks
