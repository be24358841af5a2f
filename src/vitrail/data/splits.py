"""split: fills in the splits that a dataset lacks; by class, by group, and by the names of its images."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from vitrail.checks import check_int, check_number, join_limited
from vitrail.data.counter_rng import uniform
from vitrail.data.samples import SPLITS, Dataset, Sample, labels_of
from vitrail.data.stratification import Unit, by_unit
from vitrail.errors import ConfigError, InputError
from vitrail.images.file_names import in_order
from vitrail.reporting.html_page import counted
from vitrail.types import Array

PURPOSES: Final = {"val": "validation", "test": "the test"}


class Split(NamedTuple):
    """A dataset in which every image has a split, and what was done to get there."""

    dataset: Dataset
    notes: tuple[str, ...]


def split(dataset: Dataset, *, val: float = 0.2, test: float = 0.0, seed: int = 0) -> Split:
    """Cut val and test, as shares of the images without a split; where there are none, of train's.

    What is given stays: a val or test that is there is not cut again. Each class has its share in each split, at
    least one image where it has enough, and images of a group stay together. The choice depends on the seed
    and the names of the images, not on their order.
    """
    shares = {
        "val": check_number("val", val, 0.0, 1.0, below=True),
        "test": check_number("test", test, 0.0, 1.0, below=True),
    }
    if val + test >= 1:
        raise ConfigError(f"val {val} and test {test} leave nothing to train on: expected less than 1 together")
    check_int("seed", seed, 0, 2**63)
    given = dataset.splits
    cuts = {name: share for name, share in shares.items() if share and name not in given}
    splits = _followed(dataset)
    undecided = [row for row, name in enumerate(splits) if not name]
    pool = undecided or ([row for row, name in enumerate(splits) if name == "train"] if cuts else [])
    notes = []
    if cuts and pool:
        cut = _cut([dataset.samples[row] for row in pool], (cuts.get("val", 0.0), cuts.get("test", 0.0)), seed)
        for row, place in zip(pool, cut.tolist(), strict=True):
            splits[row] = SPLITS[place]
        notes += _notes(dataset, splits, pool, cuts, "image" if undecided else "training image", seed)
    elif pool:
        splits = [name or "train" for name in splits]
        notes.append(f"{counted(len(pool), 'image')} without a split {'goes' if len(pool) == 1 else 'go'} to train")
    if "train" not in splits:
        raise InputError(f"{dataset.source} has no images to train on: it has {', '.join(dataset.splits)} only")
    samples = tuple(
        sample if sample.split == name else Sample(sample.name, sample.labels, name, sample.group)
        for sample, name in zip(dataset.samples, splits, strict=True)
    )
    return Split(replace(dataset, samples=samples), tuple(notes))


def _followed(dataset: Dataset) -> list[str]:
    """The splits as they are, but images without one follow their group; a group in two splits is an error."""
    places: dict[str, str] = {}
    torn: dict[str, str] = {}
    for sample in dataset.samples:
        if sample.group and sample.split and places.setdefault(sample.group, sample.split) != sample.split:
            torn.setdefault(sample.group, f"{sample.group!r} in {places[sample.group]} and {sample.split}")
    if torn:
        raise InputError(
            f"{dataset.source}: groups must stay in one split, but {len(torn):,} do not: "
            f"{join_limited(list(torn.values()))}"
        )
    return [each.split or places.get(each.group, "") for each in dataset.samples]


def _cut(samples: Sequence[Sample], shares: tuple[float, float], seed: int) -> Array:
    """The number of the split (n,) for each sample."""
    names = sorted(labels_of(samples))
    kinds = {label: place for place, label in enumerate(names)}
    members: dict[str, list[int]] = {}
    for row, each in enumerate(samples):
        members.setdefault(f"group/{each.group}" if each.group else f"name/{each.name}", []).append(row)
    alone = {labels: _unit([labels], kinds) for labels in {each.labels for each in samples}}
    units = [
        alone[samples[rows[0]].labels] if len(rows) == 1 else _unit([samples[row].labels for row in rows], kinds)
        for rows in members.values()
    ]
    splits = by_unit(units, random_places(list(members), seed), shares)
    found = np.empty(len(samples), np.int64)
    for rows, place in zip(members.values(), splits, strict=True):
        found[rows] = place
    return found


def _unit(images: Sequence[tuple[str, ...]], kinds: dict[str, int]) -> Unit:
    """How many images of each class; those without any label count as a class of their own."""
    counts = Counter(kinds[label] for labels in images for label in labels)
    if empty := sum(not labels for labels in images):
        counts[len(kinds)] = empty
    return tuple(sorted(counts.items()))


def random_places(names: Sequence[str], seed: int) -> Array:
    """A random number for every name, (n,): the same for a name, whatever else is there."""
    digests = b"".join(hashlib.blake2b(each.encode(errors="surrogateescape"), digest_size=8).digest() for each in names)
    return uniform(seed, "split", 0, np.frombuffer(digests, "<u8"), 1)[:, 0]


def _notes(
    dataset: Dataset, splits: Sequence[str], pool: Sequence[int], cuts: dict[str, float], what: str, seed: int
) -> list[str]:
    """What was cut from what, and which classes came off badly."""
    notes = []
    everything = labels_of(dataset.samples[row] for row in pool)
    for name in cuts:
        rows = [row for row in pool if splits[row] == name]
        notes.append(
            f"{len(rows):,} of {counted(len(pool), what)} set aside for {PURPOSES[name]}, at random (seed {seed})"
        )
        absent = in_order(everything - labels_of(dataset.samples[row] for row in rows))
        if absent:
            named = join_limited([repr(each) for each in absent], ", ")
            notes.append(f"{name} has no images of {named}: too few of them, or all in one group")
    groups = {dataset.samples[row].group for row in pool} - {""}
    if groups:
        notes.append("1 group stays whole" if len(groups) == 1 else f"{len(groups):,} groups stay whole")
    return notes
