"""CIFAR-10 and CIFAR-100 in a folder, as they are published -> Reading: the files for Python, or the binary ones.

The files for Python are pickles, which are read and never unpickled (`cifar_pickles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.data.arrays import ArrayPart, joined
from vitrail.data.classes import Reading
from vitrail.data.folder_walk import entries
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.types import Array

SIDE: Final = 32
VALUES: Final = 3 * SIDE * SIDE  # of one image: all red, all green, all blue
LARGEST: Final = 256 * 2**20  # bytes of one file; CIFAR-100's largest has 155 million


class Layout(NamedTuple):
    """One form of one set: its files of each split, where the names of its classes stand, and how a file is read."""

    name: str
    train: tuple[str, ...]
    test: str
    names: str
    key: str  # of the names, in a pickle
    labels: str  # of the classes' numbers, in a pickle
    before: int  # bytes of labels before an image, in a binary file; the last is the class

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.names)

    @property
    def is_binary(self) -> bool:
        return self.before > 0


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS: Final = (
    Layout("CIFAR-10", _BATCHES, "test_batch", "batches.meta", "label_names", "labels", 0),
    Layout("CIFAR-10", tuple(f"{name}.bin" for name in _BATCHES), "test_batch.bin", "batches.meta.txt", "", "", 1),
    Layout("CIFAR-100", ("train",), "test", "meta", "fine_label_names", "fine_labels", 0),
    Layout("CIFAR-100", ("train.bin",), "test.bin", "fine_label_names.txt", "", "", 2),
)


def find_cifar(folder: Path) -> Layout | None:
    """The form in which a folder holds CIFAR; told by the file of class names, for others have folders called train."""
    files = {each.name for each in entries(folder) if each.is_file()}
    return next((each for each in LAYOUTS if each.names in files and files & {*each.train, each.test}), None)


def read_cifar(folder: Path, layout: Layout) -> Reading:
    """The 32x32 images of a set with the split it is published with: train and test."""
    where = describe(folder)
    files = {each.name for each in entries(folder) if each.is_file()}
    if missing := [name for name in layout.files if name not in files]:
        raise InputError(f"{where} is {layout.name}, but lacks {', '.join(missing)}: unpack the archive anew")
    parts = [_read_part(folder, layout, "train", layout.train), _read_part(folder, layout, "test", (layout.test,))]
    return joined(parts, _names(folder, layout), where)


def _read_part(folder: Path, layout: Layout, split: str, names: Sequence[str]) -> ArrayPart:
    """The images and labels of some files, one after the other."""
    read = _read_binary if layout.is_binary else _read_python
    rows, labels = zip(*(read(folder / name, layout) for name in names), strict=True)
    planes = np.concatenate(rows).reshape(-1, 3, SIDE, SIDE)
    return ArrayPart(split, np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.concatenate(labels))


def _names(folder: Path, layout: Layout) -> list[str]:
    path = folder / layout.names
    if layout.is_binary:
        try:
            names: Any = [line for line in _bytes(path).decode().splitlines() if line.strip()]
        except UnicodeDecodeError:
            raise InputError(f"{describe(path)}: names that are not UTF-8") from None
    else:
        names = _pickled(path).get(layout.key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{describe(path)} has no list of class names {layout.key!r}: get the file anew")
    return names


def _read_binary(path: Path, layout: Layout) -> tuple[Array, Array]:
    """Rows of one or two labels and an image -> (n, 3072) values, (n,) labels."""
    raw, row = _bytes(path), layout.before + VALUES
    if not raw or len(raw) % row:
        raise InputError(f"{describe(path)}: {len(raw):,} bytes, expected rows of {row:,} each: get the file anew")
    rows = np.frombuffer(raw, np.uint8).reshape(-1, row)
    return rows[:, layout.before :], rows[:, layout.before - 1].astype(np.int64)


def _read_python(path: Path, layout: Layout) -> tuple[Array, Array]:
    """A dict with data, an array (n, 3072) of bytes, and a list of labels -> the two as arrays."""
    values, where = _pickled(path), describe(path)
    pixels, labels = values.get("data"), values.get(layout.labels)
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != VALUES:
        raise InputError(f"{where} has no array of images (n, {VALUES}) of bytes: get the file anew")
    if not isinstance(labels, list) or not all(type(each) is int for each in labels):
        raise InputError(f"{where} has no list of numbers {layout.labels!r}: get the file anew")
    return pixels, np.array(labels, np.int64)


def _pickled(path: Path) -> dict[str, Any]:
    from vitrail.data.cifar_pickles import read_dict  # here, since it imports torch, which plain folders do without

    return read_dict(_bytes(path), describe(path), longest=LARGEST)


def _bytes(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise InputError(f"{describe(path)}: {size:,} bytes, no file of CIFAR has more than {LARGEST:,}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{describe(path)} cannot be read: {error.strerror}") from error
