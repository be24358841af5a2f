"""Data as the user named it -> images that can be read, split, and listed one by one; each is decoded once.

What an earlier run found of images that have not changed since is taken from a cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from vitrail.auditing.sizes import HasSize
from vitrail.data.cache import with_margin
from vitrail.data.exclusions import exclude
from vitrail.data.image_scan import scan
from vitrail.data.known_images import KnownImages, recall
from vitrail.data.left_out import left_out_lines, unreadable_lines
from vitrail.data.manifest import EntryList
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset
from vitrail.data.splits import split
from vitrail.data.subsets import subset
from vitrail.data.view_store import ViewStore
from vitrail.errors import ImageError, InputError, VitrailError
from vitrail.images import Preprocess, upright_size
from vitrail.training.options import Options

LOOKED_AT: Final = 2_000  # images whose headers say how all will be seen
CROP_MARGIN: Final = 1.25  # views to train on with crops are so much larger

# From a dataset and the sizes of its images: how the network will see them; what is measured of pixels left open.
ExpectedPreprocess = Callable[[Dataset, Sequence[HasSize]], Preprocess]


class PreparedData(NamedTuple):
    """Images that are ready for training, and what was found on the way."""

    dataset: Dataset  # every sample has a split
    entries: EntryList  # beside the samples: size and hash
    bad: tuple[tuple[str, str], ...]  # unreadable images: name, reason
    notes: tuple[str, ...]
    store: ViewStore | None = None  # views that were made when the images were decoded


class _Header(NamedTuple):
    """An image as its header describes it."""

    name: str
    height: int
    width: int


class _Divided(NamedTuple):
    """The images to be used, each with its split, and their rows in the dataset they were divided from."""

    dataset: Dataset
    rows: Sequence[int]
    notes: list[str]


def prepare(
    data: str | os.PathLike[str] | Dataset,
    options: Options,
    *,
    limit: int = 0,
    crops: bool = False,
    expected_preprocess: ExpectedPreprocess | None = None,
) -> PreparedData:
    """Read, leave out what was excluded, open every image once unless it is known, and split what is not split yet.

    With a `limit`, so many images of each split are used, drawn class by class. Where `expected_preprocess` tells how
    the network will see them, the views are made on the way; those to train on with room for `crops`.
    """
    dataset = data if isinstance(data, Dataset) else read_data(data, pattern=options.pattern)
    notes = left_out_lines(dataset.left_out, dataset.left_out_names)
    if options.exclude is not None:
        dataset, count = exclude(dataset, Path(options.exclude))
        notes.append(f"{count} left out, as {options.exclude} asks")
    known = recall(dataset)
    if known is not None and known.note:
        options.callbacks.log(known.note)
    expected, store = None, None
    with suppress(VitrailError):  # what is wrong is told below, where it is known which images can be read
        expected = _divide(dataset, options, limit)
        if expected_preprocess is not None:
            store = _view_store(dataset, expected, expected_preprocess, crops, known)
    total, read = len(dataset) if known is None else int((~known.fresh).sum()), 0

    def done(count: int) -> None:
        nonlocal read
        read = min(read + count, total)
        options.callbacks.images(read, total)

    scanned = scan(
        dataset, policy=options.unreadable, threads=max(2, options.workers), store=store, known=known, done=done
    )
    if scanned.bad:
        count = len(scanned.bad)
        which = f"{count:,} of {len(dataset):,} images cannot be read, and {'is' if count == 1 else 'are'} skipped"
        notes += [which, *unreadable_lines(scanned.bad)]
    if expected is None or scanned.bad:
        expected = _divide(scanned.dataset, options, limit)
    entries = scanned.entries.take(expected.rows)
    return PreparedData(expected.dataset, entries, scanned.bad, (*notes, *expected.notes), store)


def _divide(dataset: Dataset, options: Options, limit: int) -> _Divided:
    """Splits for all images, and those of each that are used."""
    test = 0.0 if dataset.splits else options.test
    divided, notes = split(dataset, val=options.val, test=test, seed=options.seed)
    if not limit:
        return _Divided(divided, range(len(divided)), [*notes])
    rows = subset(divided, limit, options.seed)
    note = f"{len(rows):,} of {len(divided):,} images are used: at most {limit:,} of each split, class by class"
    return _Divided(divided.select(rows), rows, [*notes, note])


def _view_store(
    dataset: Dataset, used: _Divided, expected: ExpectedPreprocess, crops: bool, known: KnownImages | None
) -> ViewStore | None:
    """Room for the views that a training asks for, by the rows of the dataset; None where nothing is to be made."""
    preprocess = expected(used.dataset, _headers(dataset, used.rows, known))
    images = dataset.images
    if isinstance(images, np.ndarray) and images.shape[1:3] == preprocess.size:
        return None  # they are their own views
    to_train_on = [row for row, each in zip(used.rows, used.dataset.samples, strict=True) if each.split == "train"]
    wanted = [(preprocess, used.rows)]  # for the mean, the probe and the scores
    if crops:
        wanted.append((with_margin(preprocess, CROP_MARGIN), to_train_on))
    return ViewStore([each.name for each in dataset.samples], wanted)


def _headers(dataset: Dataset, used: Sequence[int], known: KnownImages | None) -> list[_Header]:
    """The sizes of images: those that are known, and of the others the headers of some, nothing decoded.

    They are what views are expected to be made of. Where all of them would say otherwise, views are made once more.
    """
    headers, unknown = [], list(used)
    if known is not None:
        sizes = zip(known.fresh.tolist(), known.facts.heights.tolist(), known.facts.widths.tolist(), strict=True)
        headers = [
            _Header(sample.name, height, width)
            for sample, (fresh, height, width) in zip(dataset.samples, sizes, strict=True)
            if fresh
        ]
        unknown = [row for row in used if not known.fresh[row]]
    for row in unknown[:: -(-len(unknown) // LOOKED_AT) or 1]:
        with suppress(ImageError, InputError):
            headers.append(_Header(dataset.samples[row].name, *upright_size(dataset.images[row])))
    return headers
