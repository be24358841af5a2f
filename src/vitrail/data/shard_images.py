"""Shards -> Reading: their images as a data set has them, each read from its tar file when it is asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np

from vitrail.data.classes import Reading, as_label
from vitrail.data.samples import SPLIT_NAMES, ImageFiles, Sample, as_split
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.file_bytes import FileBytes
from vitrail.images.shards import ShardSet
from vitrail.types import Array


class ShardImages(ImageFiles):
    """The images of some rows of a ShardSet."""

    def __init__(self, shards: ShardSet, rows: Array) -> None:
        self.shards, self.rows, self.folder = shards, rows, shards.folder

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> FileBytes: ...
    @overload
    def __getitem__(self, index: slice) -> ShardImages: ...
    def __getitem__(self, index: int | slice) -> FileBytes | ShardImages:
        """The bytes of one image, or fewer images."""
        if isinstance(index, slice):
            return ShardImages(self.shards, self.rows[index])
        return self.shards.read(int(self.rows[index]))

    def select(self, rows: Sequence[int]) -> ShardImages:
        """The images of these rows, in this order."""
        return ShardImages(self.shards, self.rows[np.asarray(rows, np.int64)])

    def stamps(self) -> Array:
        """Size of each image and times of change of its tar file, (n, 3) int64."""
        return self.shards.stamps()[self.rows]


def read_shards(shards: ShardSet, *, labelled: bool = True) -> Reading:
    """Every image of the shards, in the order of their index.

    Of tar files of others the split is that which their names say, as in train-000001.tar.
    """
    index, where = shards.index, describe(shards.folder)
    spelling = {label: (as_label(label, where),) for label in index.classes}
    kept = {each: tuple(spelling[label][0] for label in each) for each in set(index.labels)}
    splits = [as_split(each, where) for each in dict.fromkeys(index.splits)]
    known = dict(zip(dict.fromkeys(index.splits), splits, strict=True))
    named = [_split_in(each.name) for each in index.shards] if index.digests is None else []
    samples = []
    for row, name in enumerate(index.names):
        labels = kept[index.labels[row]] if labelled else ()
        if labelled and not labels and index.task == "single-label":
            raise InputError(
                f"{where}: nothing says what is on {describe(name)}: expected a .cls or .json with its class beside it"
            )
        split = named[int(index.shard[row])] if named else known[index.splits[row]]
        samples.append(Sample(name, labels, split, index.groups[row]))
    classes = [each for (each,) in spelling.values()] if labelled else ()
    images = ShardImages(shards, np.arange(len(samples)))
    return Reading(samples, images, task=index.task if labelled else "multi-label", named=classes)


def _split_in(name: str) -> str:
    """The split that the name of a tar file says; empty where it says none."""
    words = [word for word in re.split(r"[^a-z]+", Path(name).stem.lower()) if word in SPLIT_NAMES]
    return SPLIT_NAMES[words[0]] if len(words) == 1 else ""
