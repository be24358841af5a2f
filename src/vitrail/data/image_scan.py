"""scan: every image opened and decoded once before a run, so that none stops it later; sizes and hashes recorded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from vitrail.checks import check_choice, check_int, join_limited
from vitrail.data.left_out import LeftOut, reason_of
from vitrail.data.manifest import Entry
from vitrail.data.samples import SPLITS, Dataset, labels_of
from vitrail.data.view_store import ViewStore
from vitrail.errors import ImageError, InputError
from vitrail.images import Bands, decode, decode_bands, describe, describe_bands
from vitrail.types import Array

BLOCK: Final = 64  # images that a thread takes at a time
BANDED: Final = (".npy", ".tif", ".tiff")  # files of any number of bands
UNREADABLE: Final = "unreadable images"


class Scan(NamedTuple):
    """The images that can be read, what they are, and those that cannot be, with the reason."""

    dataset: Dataset
    entries: tuple[Entry, ...]  # beside the samples of the dataset
    bad: tuple[tuple[str, str], ...]  # name, reason


def scan(
    dataset: Dataset,
    *,
    policy: str = "skip",
    threads: int = 2,
    store: ViewStore | None = None,
) -> Scan:
    """Decode every image. Unreadable ones are dropped and listed ("skip"), or an error ("stop").

    A `store` keeps the views that it wants of them, by the rows of this dataset.

    Unreadable images are an error in any case if they are more than half, or all that a class has, or has in train.
    """
    check_choice("policy", policy, ("skip", "stop"))
    threads = check_int("threads", threads, 1, 256)
    looks: list[Entry | str] = []
    pool = ThreadPoolExecutor(threads)
    try:
        blocks = [range(start, min(start + BLOCK, len(dataset))) for start in range(0, len(dataset), BLOCK)]
        for block in pool.map(lambda rows: [_look(dataset, row, store) for row in rows], blocks):
            looks += block
    finally:
        pool.shutdown(cancel_futures=True)
    bad = [(dataset.samples[row].name, each) for row, each in enumerate(looks) if isinstance(each, str)]
    entries = tuple(each for each in looks if isinstance(each, Entry))
    if not bad:
        return Scan(dataset, entries, ())
    kept = dataset.select([row for row, each in enumerate(looks) if isinstance(each, Entry)])
    _check(dataset, kept, bad, policy)
    left_out = LeftOut(dataset.left_out, dataset.left_out_names)
    for name, _ in bad:
        left_out.add(UNREADABLE, name)
    counts, names = left_out.counts, left_out.first
    return Scan(replace(kept, left_out=dict(counts), left_out_names=names), entries, tuple(bad))


def _look(dataset: Dataset, row: int, store: ViewStore | None) -> Entry | str:
    """What an image is, or why it cannot be read."""
    sample, source = dataset.samples[row], dataset.images[row]
    try:
        height, width = _stored_size(row, source, store) or _size(source)
        weight, digest = fingerprint(source)
    except (ImageError, InputError) as error:
        return reason_of(error, source)
    except OSError as error:  # gone since it was decoded
        return f"cannot be read ({error.strerror})"
    return Entry(sample.name, sample.labels, sample.split, sample.group, height, width, weight, digest)


def _stored_size(row: int, source: Path | Array, store: ViewStore | None) -> tuple[int, int] | None:
    """(height, width) of an image whose views are kept; None where none are."""
    try:
        return None if store is None else store.add(row, source)
    except (ImageError, InputError):  # it may be readable in other bands, which is told when they are asked for
        return None


def _size(source: Path | Array) -> tuple[int, int]:
    """(height, width) of an image, decoded to the last pixel: as an ordinary one, else in its own bands."""
    try:
        image = decode(source)
        return image.height, image.width
    except ImageError:
        if not isinstance(source, np.ndarray) and source.suffix.lower() not in BANDED:
            raise
    height, width, _ = own_numbers(source, describe_bands(source)).shape
    return height, width


def own_numbers(source: Path | Array, bands: Bands) -> Array:
    """An image in its own bands (H, W, C); what counts as 1.0 does not matter here, but must be possible."""
    *ranges, last = {"uint8": (255.0,), "uint16": (65535.0,), "float32": (1.0, 1e9)}[bands.kind]
    for full in ranges:
        try:
            return decode_bands(source, bands.channels, full)
        except ImageError:
            continue
    return decode_bands(source, bands.channels, last)


def fingerprint(source: Path | Array) -> tuple[int, str]:
    """How many bytes an image has, and their SHA-256."""
    if isinstance(source, np.ndarray):
        return source.nbytes, hashlib.sha256(np.ascontiguousarray(source).data).hexdigest()
    with open(source, "rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _check(dataset: Dataset, kept: Dataset, bad: Sequence[tuple[str, str]], policy: str) -> None:
    """Whether to go on without the unreadable images."""
    reasons = join_limited([f"{describe(name)}: {reason}" for name, reason in bad])
    count = f"{len(bad):,} of {len(dataset):,} images in {dataset.source} cannot be read"
    if policy == "stop":
        raise ImageError(f"{count}: {reasons}; put them right, or skip them (policy 'skip')")
    if 2 * len(bad) > len(dataset):
        raise ImageError(f"{count}, which is more than half: {reasons}")
    for place, splits in {"": ("", *SPLITS), " in train": ("train",)}.items():
        lost = labels_of(dataset.samples, splits) - labels_of(kept.samples, splits)
        if lost:
            names = join_limited(sorted(map(repr, lost)), ", ")
            raise ImageError(f"{count}, and no image of {names} is left{place}: {reasons}")
