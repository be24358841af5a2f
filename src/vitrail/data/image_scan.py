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
from vitrail.data.known_images import KnownImages
from vitrail.data.left_out import LeftOut, reason_of
from vitrail.data.manifest import EntryList, ImageFacts
from vitrail.data.samples import SPLITS, Dataset, labels_of
from vitrail.data.view_store import ViewStore
from vitrail.errors import ImageError, InputError
from vitrail.images import Bands, decode, decode_bands, describe, describe_bands
from vitrail.images.decoding import read_file
from vitrail.images.file_bytes import FileBytes
from vitrail.types import Array, ProgressCallback, Source

BLOCK: Final = 64  # images that a thread takes at a time
BANDED: Final = (".npy", ".tif", ".tiff")  # files of any number of bands
UNREADABLE: Final = "unreadable images"


class Scan(NamedTuple):
    """The images that can be read, what they are, and those that cannot be, with the reason."""

    dataset: Dataset
    entries: EntryList  # beside the samples of the dataset
    bad: tuple[tuple[str, str], ...]  # name, reason


def scan(
    dataset: Dataset,
    *,
    policy: str = "skip",
    threads: int = 2,
    store: ViewStore | None = None,
    known: KnownImages | None = None,
    done: ProgressCallback | None = None,
) -> Scan:
    """Decode every image. Unreadable ones are dropped and listed ("skip"), or an error ("stop").

    Those that are `known` from an earlier scan, and have not changed since, are not read again. A `store` keeps the
    views that it wants of the others, by the rows of this dataset. `done` hears how many more were read.

    Unreadable images are an error in any case if they are more than half, or all that a class has, or has in train.
    """
    check_choice("policy", policy, ("skip", "stop"))
    threads = check_int("threads", threads, 1, 256)
    facts = ImageFacts.empty(len(dataset)) if known is None else known.facts
    wanted = range(len(dataset)) if known is None else np.flatnonzero(~known.fresh).tolist()
    reasons: dict[int, str] = {}
    pool = ThreadPoolExecutor(threads)
    try:
        blocks = [wanted[start : start + BLOCK] for start in range(0, len(wanted), BLOCK)]
        for found in pool.map(lambda rows: _look_at(dataset, rows, store, facts), blocks):
            reasons |= found
            if done is not None:
                done(BLOCK)
    finally:
        pool.shutdown(cancel_futures=True)
    if known is not None and wanted:
        known.keep(reasons)
    if not reasons:
        return Scan(dataset, EntryList(dataset.samples, facts), ())
    bad = [(dataset.samples[row].name, reason) for row, reason in sorted(reasons.items())]
    rows = [row for row in range(len(dataset)) if row not in reasons]
    kept = dataset.select(rows)
    _check(dataset, kept, bad, policy)
    left_out = LeftOut(dataset.left_out, dataset.left_out_names)
    for name, _ in bad:
        left_out.add(UNREADABLE, name)
    kept = replace(kept, left_out=dict(left_out.counts), left_out_names=left_out.first)
    return Scan(kept, EntryList(kept.samples, facts.take(rows)), tuple(bad))


def _look_at(dataset: Dataset, rows: Sequence[int], store: ViewStore | None, facts: ImageFacts) -> dict[int, str]:
    """Note what these images are; those that cannot be read, with the reason."""
    reasons = {}
    for row in rows:
        image = dataset.images[row]
        try:
            source = image if isinstance(image, np.ndarray) else read_file(image)
            height, width = _stored_size(row, source, store) or _size(source)
            facts.put(row, height, width, *fingerprint(source))
        except (ImageError, InputError) as error:
            reasons[row] = reason_of(error, image)
    return reasons


def _stored_size(row: int, source: FileBytes | Array, store: ViewStore | None) -> tuple[int, int] | None:
    """(height, width) of an image whose views are kept; None where none are."""
    try:
        return None if store is None else store.add(row, source)
    except (ImageError, InputError):  # it may be readable in other bands, which is told when they are asked for
        return None


def _size(source: FileBytes | Array) -> tuple[int, int]:
    """(height, width) of an image, decoded to the last pixel: as an ordinary one, else in its own bands."""
    try:
        image = decode(source)
        return image.height, image.width
    except ImageError:
        if not isinstance(source, np.ndarray) and not source.name.lower().endswith(BANDED):
            raise
    height, width, _ = own_numbers(source, describe_bands(source)).shape
    return height, width


def own_numbers(source: Source, bands: Bands) -> Array:
    """An image in its own bands (H, W, C); what counts as 1.0 does not matter here, but must be possible."""
    *ranges, last = {"uint8": (255.0,), "uint16": (65535.0,), "float32": (1.0, 1e9)}[bands.kind]
    for full in ranges:
        try:
            return decode_bands(source, bands.channels, full)
        except ImageError:
            continue
    return decode_bands(source, bands.channels, last)


def fingerprint(source: Path | FileBytes | Array) -> tuple[int, bytes]:
    """How many bytes an image has, and their SHA-256."""
    if isinstance(source, np.ndarray):
        return source.nbytes, hashlib.sha256(np.ascontiguousarray(source).data).digest()
    if isinstance(source, FileBytes):
        return len(source), hashlib.sha256(source).digest()
    with open(source, "rb") as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").digest()


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
