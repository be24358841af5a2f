"""Images in arrays (.npz, or a folder of idx files) -> Reading, with one array (n, H, W) or (n, H, W, C)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from vitrail.checks import join_limited
from vitrail.data.classes import Reading, as_label
from vitrail.data.folder_walk import entries
from vitrail.data.idx import read_idx
from vitrail.data.samples import SPLITS, Sample, as_split
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.types import Array

IDX: Final = re.compile(r"(train|t10k)-(images|labels)[-.]idx\d-ubyte(?:\.gz)?")
PIXELS: Final = tuple(np.dtype(each) for each in ("u1", "u2", "?", "f2", "f4", "f8"))
_OTHER_NAMES = {"x": "images", "y": "labels"}  # as in x_train, y_train


class ArrayPart(NamedTuple):
    """The images of one split, or of none yet."""

    split: str
    images: Array  # (n, H, W) or (n, H, W, C)
    labels: Array  # (n,) numbers or names, or (n, K) of 0 and 1


def has_idx(folder: Path) -> bool:
    """Whether a folder holds idx files as MNIST and its kin name them."""
    return any(IDX.fullmatch(each.name) for each in entries(folder))


def read_idx_folder(folder: Path, classes: Sequence[str] | None = None) -> Reading:
    """train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz] -> train; t10k-… -> test; `classes` names numbers."""
    files: dict[tuple[str, str], Path] = {}
    for name in sorted(each.name for each in entries(folder)):
        if match := IDX.fullmatch(name):
            key = ("train" if match[1] == "train" else "test", match[2])
            files.setdefault(key, folder / name)  # the unpacked one first, where both are there
    splits = [split for split in ("train", "test") if (split, "images") in files or (split, "labels") in files]
    parts = []
    for split in splits:
        if missing := {"images", "labels"} - {what for part, what in files if part == split}:
            raise InputError(f"{describe(folder)} has no {missing.pop()} of {split}, which is half of an idx set")
        parts.append(ArrayPart(split, read_idx(files[split, "images"]), read_idx(files[split, "labels"])))
    return joined(parts, classes, describe(folder))


def read_npz_file(path: Path, classes: Sequence[str] | None = None) -> Reading:
    """train_images, train_labels, and the same for val and test; or images, labels and perhaps splits.

    `classes`, here or in the file, may name the numbers. x_train and y_train stand for train_images and train_labels.
    """
    name = describe(path)
    others = {f"{old}_{split}": f"{split}_{new}" for old, new in _OTHER_NAMES.items() for split in SPLITS}
    wanted = {f"{split}_{what}" for split in SPLITS for what in ("images", "labels")} | others.keys()
    from vitrail.data.npz import read_npz  # here, since it imports torch, which plain folders do without

    arrays = read_npz(path, wanted | {"images", "labels", "splits", "classes"})
    arrays = {others.get(key, key): array for key, array in arrays.items()}
    names = _texts(arrays["classes"], f"{name}: classes") if "classes" in arrays else classes
    parts = []
    for split in [split for split in SPLITS if f"{split}_images" in arrays] or [""]:
        images, labels = (f"{split}_{what}".lstrip("_") for what in ("images", "labels"))
        if images not in arrays:
            raise InputError(
                f"{name} has no images: expected the arrays train_images and train_labels, or images and labels"
            )
        if labels not in arrays:
            raise InputError(f"{name} has images but no array {labels!r}")
        parts.append(ArrayPart(split, arrays[images], arrays[labels]))
    reading = joined(parts, names, name)
    if "splits" not in arrays or parts[0].split:
        return reading
    splits = _texts(arrays["splits"], f"{name}: splits")
    if len(splits) != len(reading.samples):
        raise InputError(f"{name}: {len(splits):,} splits for {len(reading.samples):,} images")
    samples = [
        each._replace(split=as_split(split, f"{name}: splits"))
        for each, split in zip(reading.samples, splits, strict=True)
    ]
    return reading._replace(samples=samples)


def joined(parts: Sequence[ArrayPart], classes: Sequence[str] | None, where: str) -> Reading:
    """The parts one after the other; classes[number] names a number, which else is its own name."""
    names = None if classes is None else [as_label(each, f"{where}: classes") for each in classes]
    if names is not None and len(set(names)) < len(names):
        raise InputError(f"{where}: classes: expected every name once")
    samples: list[Sample] = []
    for part in parts:
        _check_images(part.images, where)
        if len(part.images) != len(part.labels):
            raise InputError(
                f"{where}: {len(part.labels):,} labels for {len(part.images):,} images in {part.split or 'all'}"
            )
        before = f"{part.split}/" if part.split else ""
        labels = _named(part.labels, names, where)
        samples += [Sample(f"{before}{number}", each, part.split) for number, each in enumerate(labels)]
    kinds = {(part.images.shape[1:], part.images.dtype) for part in parts}
    if len(kinds) > 1:
        shapes = join_limited([f"{part.split} {part.images.dtype} {list(part.images.shape)}" for part in parts])
        raise InputError(f"{where}: images of one set must be alike in size and kind, got {shapes}")
    images = parts[0].images if len(parts) == 1 else np.concatenate([part.images for part in parts])
    task = "single-label" if all(len(each.labels) == 1 for each in samples) else "multi-label"
    return Reading(samples, images, task=task, named=names or ())


def _check_images(images: Array, where: str) -> None:
    shape = list(images.shape)
    if images.dtype not in PIXELS or images.ndim not in (3, 4) or 0 in shape[1:]:
        raise InputError(
            f"{where}: images are {images.dtype} {shape}, expected (n, H, W) or (n, H, W, C), uint8, uint16 or float"
        )
    if images.ndim == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4):
        raise InputError(f"{where}: images {shape} seem to have channels first: use images.transpose(0, 2, 3, 1)")


def _named(labels: Array, names: Sequence[str] | None, where: str) -> list[tuple[str, ...]]:
    """The labels of every image by name."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        return _marked(labels, names, where)
    if labels.ndim != 1:
        raise InputError(f"{where}: labels of shape {list(labels.shape)}, expected (n,), or (n, K) of 0 and 1")
    if labels.dtype.kind in "US":
        texts = _texts(labels, f"{where}: labels")
        known = {each: (as_label(each, f"{where}: labels"),) for each in set(texts)}
        if names is not None and (unknown := {label for (label,) in known.values()} - set(names)):
            raise InputError(
                f"{where}: labels that classes does not name: {join_limited(sorted(map(repr, unknown)), ', ')}"
            )
        return [known[each] for each in texts]
    if labels.dtype.kind not in "iu":
        raise InputError(f"{where}: labels of kind {labels.dtype}, expected whole numbers or names")
    if len(labels) and (labels.min() < 0 or (names is not None and labels.max() >= len(names))):
        most = "" if names is None else f" to {len(names) - 1}, as classes has {len(names)} names"
        raise InputError(f"{where}: labels from {labels.min()} to {labels.max()}, expected 0{most or ' or more'}")
    numbers = {int(each): (str(each) if names is None else names[each],) for each in np.unique(labels)}
    return [numbers[each] for each in labels.tolist()]


def _marked(labels: Array, names: Sequence[str] | None, where: str) -> list[tuple[str, ...]]:
    """The names of the columns marked 1."""
    if labels.dtype.kind not in "biuf" or not np.isin(labels, (0, 1)).all():
        raise InputError(f"{where}: labels of shape {list(labels.shape)}, expected nothing but 0 and 1 in them")
    columns = labels.shape[1]
    if names is not None and len(names) != columns:
        raise InputError(f"{where}: labels have {columns} columns, but classes has {len(names)} names")
    names = names or [str(each) for each in range(columns)]
    found: list[list[str]] = [[] for _ in labels]
    for row, column in np.argwhere(labels != 0).tolist():
        found[row].append(names[column])
    return [tuple(each) for each in found]


def _texts(array: Array, where: str) -> list[str]:
    """A list of text; bytes are UTF-8."""
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise InputError(f"{where}: expected a list of text, got {array.dtype} {list(array.shape)}")
    try:
        return [each.decode() if isinstance(each, bytes) else each for each in array.tolist()]
    except UnicodeDecodeError:
        raise InputError(f"{where}: text that is not UTF-8") from None
