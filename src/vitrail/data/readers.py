"""read_data: a folder, a table, arrays or a built-in set -> Dataset."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vitrail.data.arrays import has_idx, read_idx_folder, read_npz_file
from vitrail.data.cifar import find_cifar, read_cifar
from vitrail.data.classes import Reading, build_dataset
from vitrail.data.fashion_mnist import fashion, fashion_full
from vitrail.data.folders import read_folders, read_images, read_names
from vitrail.data.samples import Dataset
from vitrail.data.shard_images import read_shards
from vitrail.data.tables import read_table
from vitrail.errors import InputError, nearest
from vitrail.images import describe
from vitrail.images.file_names import SUFFIXES
from vitrail.images.foreign_shards import find_shards

BUILT_IN: Final = {"vitrail:fashion": fashion, "vitrail:fashion-full": fashion_full}
KINDS: Final = (
    "a folder of class folders, of shards (.tar) or of CIFAR, a table (.csv, .tsv), arrays (.npz), or vitrail:fashion"
)


def read_data(
    source: str | os.PathLike[str], *, pattern: str | None = None, classes: Sequence[str] | None = None
) -> Dataset:
    """Images and labels from wherever they are; no image is opened yet.

    A folder holds class folders, or split folders of class folders, or shards (tar files), idx files, or CIFAR's own
    files; with `pattern`, a regular expression with a group named label that matches the whole path below the folder,
    file names carry the labels.
    Splits are train, val and test, also called training, valid, validation and testing; all must have the same
    class folders, and an empty one says that a split has no images of a class.
    A table has the columns path and label, and perhaps split and group; `|` stands between several labels.
    `classes` are the names that a checkpoint has: labels are matched to them by name, any difference is an error.
    """
    text = _text(source)
    if text.startswith("vitrail:"):
        if text not in BUILT_IN:
            raise InputError(f"no built-in data {text!r}: {nearest(text, BUILT_IN)}")
        _no_pattern(text, pattern)
        return BUILT_IN[text](classes)
    return build_dataset(text, _read(Path(text), pattern), classes)


def read_unlabelled(source: str | os.PathLike[str]) -> Dataset:
    """Every image below a folder, whatever the folders in it are called: to learn from without labels."""
    text = _text(source)
    folder = Path(text)
    if not stat.S_ISDIR(_kind(folder)):
        raise InputError(f"{describe(folder)}: expected a folder of images")
    if (shards := find_shards(folder)) is not None:
        return build_dataset(text, read_shards(shards, labelled=False))
    return build_dataset(text, read_images(folder)._replace(task="multi-label"))


def _read(path: Path, pattern: str | None) -> Reading:
    kind, name = _kind(path), describe(path)
    if stat.S_ISDIR(kind):
        if (shards := find_shards(path)) is not None:
            _no_pattern(name, pattern)
            return read_shards(shards)
        if pattern is not None:
            return read_names(path, pattern)
        if has_idx(path):
            return read_idx_folder(path)
        layout = find_cifar(path)
        return read_folders(path) if layout is None else read_cifar(path, layout)
    if not stat.S_ISREG(kind):
        raise InputError(f"{name} is a pipe, socket or device: expected {KINDS}")
    _no_pattern(name, pattern)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return read_table(path)
    if suffix == ".npz":
        return read_npz_file(path)
    if (shards := find_shards(path)) is not None:
        return read_shards(shards)
    hints = {
        **dict.fromkeys((".zip", ".gz", ".tgz", ".7z"), "an archive: unpack it first"),
        **dict.fromkeys(SUFFIXES, "one image"),
        **dict.fromkeys(
            (".parquet", ".xlsx", ".xls", ".ods", ".json", ".txt"), "of another kind: save the table as CSV"
        ),
    }
    raise InputError(f"{name} is {hints.get(suffix, 'of a kind that is not known')}: expected {KINDS}")


def _no_pattern(name: str, pattern: str | None) -> None:
    if pattern is not None:
        raise InputError(f"{name}: a pattern reads labels from the names of files in a folder, which this is not")


def _text(source: str | os.PathLike[str]) -> str:
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else source
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"data: expected {KINDS}, got {source!r:.80}")
    return text


def _kind(path: Path) -> int:
    try:
        return os.stat(path).st_mode
    except OSError as error:
        raise InputError(f"no data in {describe(path)} ({error.strerror}): expected {KINDS}") from error
