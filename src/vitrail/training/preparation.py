"""Data as the user named it -> images that can be read, split, and listed one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from vitrail.data.exclusions import exclude as leave_out
from vitrail.data.image_scan import scan
from vitrail.data.manifest import Entry
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset
from vitrail.data.splits import split
from vitrail.data.subsets import subset
from vitrail.errors import InputError

Done = Callable[[int], None]


class Prepared(NamedTuple):
    """Images that are ready for training, and what was found on the way."""

    dataset: Dataset  # every sample has a split
    entries: tuple[Entry, ...]  # beside the samples: size and hash
    bad: tuple[tuple[str, str], ...]  # unreadable images: name, reason
    notes: tuple[str, ...]


def prepare(
    data: str | os.PathLike[str] | Dataset,
    *,
    pattern: str | None = None,
    exclude: str | os.PathLike[str] | None = None,
    unreadable: str = "skip",
    val: float = 0.1,
    test: float = 0.2,
    limit: int = 0,
    seed: int = 0,
    threads: int = 2,
    done: Done | None = None,
) -> Prepared:
    """Read, leave out what was excluded, open every image once, and split what is not split yet.

    With a `limit`, so many images of each split are used, drawn class by class.
    """
    dataset = data if isinstance(data, Dataset) else read_data(data, pattern=pattern)
    notes = [f"{count} left out: {why}" for why, count in dataset.left_out.items()]
    if exclude is not None:
        dataset, count = leave_out(dataset, Path(exclude))
        notes.append(f"{count} left out, as {exclude} asks")
    scanned = scan(dataset, policy=unreadable, threads=threads, done=done)
    if scanned.bad:
        notes.append(f"{len(scanned.bad)} of {len(dataset)} images cannot be read, and are skipped")
    whole = split(scanned.dataset, val=val, test=0.0 if scanned.dataset.splits else test, seed=seed)
    if "train" not in whole.dataset.splits:
        raise InputError(f"{dataset.source} has no images to train on: it has only {', '.join(whole.dataset.splits)}")
    notes += whole.notes
    used, entries = whole.dataset, tuple(scanned.entries)
    if limit:
        rows = subset(used, limit, seed)
        notes.append(f"{len(rows):,} of {len(used):,} images are used: at most {limit:,} of each split, class by class")
        used, entries = used.select(rows), tuple(entries[row] for row in rows)
    return Prepared(used, entries, tuple(scanned.bad), tuple(notes))
