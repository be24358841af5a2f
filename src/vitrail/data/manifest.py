"""Manifest: what a run was trained on, image by image; to and from JSON, and what differs between two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, overload

import numpy as np

from vitrail.checks import join_limited
from vitrail.data.samples import SPLITS, Dataset, Sample
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.model_info import EARLIER_TASKS, TASKS
from vitrail.types import Array

FORMAT: Final = 2
EARLIER: Final = 1  # the same but for the words of the task
_SPLITS = ("", *SPLITS)  # in the file, a split is its number here
_DIGEST: Final = 32  # bytes of a SHA-256


class Entry(NamedTuple):
    """One image: what it is called and what it was, so that any change shows."""

    name: str
    labels: tuple[str, ...]
    split: str
    group: str
    height: int
    width: int
    bytes: int  # of the file, or of its part of the array
    digest: str  # SHA-256 of those bytes, in hexadecimal


class ImageFacts(NamedTuple):
    """What reading images found of each, a column each: far less memory than an object an image."""

    heights: Array  # (n,) int32
    widths: Array  # (n,) int32
    sizes: Array  # (n,) int64: bytes of each
    digests: Array  # (n, 32) uint8

    @classmethod
    def empty(cls, count: int) -> ImageFacts:
        """Room for so many images."""
        shapes = (((count,), np.int32), ((count,), np.int32), ((count,), np.int64), ((count, _DIGEST), np.uint8))
        return cls(*(np.zeros(shape, kind) for shape, kind in shapes))

    def take(self, rows: Any) -> ImageFacts:
        """Those of these rows, in this order."""
        return ImageFacts(*(column[rows] for column in self))

    def put(self, row: int, height: int, width: int, size: int, digest: bytes) -> None:
        """Those of one image."""
        self.heights[row], self.widths[row], self.sizes[row] = height, width, size
        self.digests[row] = np.frombuffer(digest, np.uint8)


class EntryList(Sequence[Entry]):
    """An Entry for every sample, made when it is asked for."""

    def __init__(self, samples: Sequence[Sample], facts: ImageFacts) -> None:
        self.samples, self.facts = samples, facts

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> EntryList:
        """The same, of entries one by one; ValueError where a digest is none."""
        if isinstance(entries, EntryList):
            return entries
        rows = list(entries)
        facts = ImageFacts.empty(len(rows))
        for row, each in enumerate(rows):
            facts.put(row, each.height, each.width, each.bytes, bytes.fromhex(each.digest))
        return cls([Sample(*each[:4]) for each in rows], facts)

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> EntryList: ...
    def __getitem__(self, index: int | slice) -> Entry | EntryList:
        """One entry, or fewer of them."""
        facts = self.facts
        if isinstance(index, slice):
            return EntryList(self.samples[index], facts.take(index))
        height, width, size, digest = (column[index] for column in facts)
        return Entry(*self.samples[index], int(height), int(width), int(size), digest.tobytes().hex())

    def __iter__(self) -> Iterator[Entry]:
        for sample, height, width, size, digest in zip(self.samples, *self.facts, strict=True):
            yield Entry(*sample, int(height), int(width), int(size), digest.tobytes().hex())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EntryList({', '.join(map(repr, self[:3]))}{', ...' if len(self) > 3 else ''})"

    def take(self, rows: Sequence[int] | Array) -> EntryList:
        """The entries of these rows, in this order."""
        return EntryList([self.samples[row] for row in rows], self.facts.take(np.asarray(rows, np.int64)))

    def hex_digests(self) -> list[str]:
        """The digest of each, in hexadecimal."""
        text = self.facts.digests.tobytes().hex()
        return [text[start : start + 2 * _DIGEST] for start in range(0, len(text), 2 * _DIGEST)]


@dataclass(frozen=True)
class Manifest:
    """Every image of a dataset, and its classes."""

    source: str
    task: str
    classes: tuple[str, ...]
    entries: Sequence[Entry]

    def to_json(self) -> str:
        """Compact JSON: a list a column, labels and splits as numbers; names that are not UTF-8 survive."""
        number = {name: place for place, name in enumerate(self.classes)}
        entries = EntryList.of(self.entries)
        samples, facts = entries.samples, entries.facts
        single = self.task == "single-label"
        labels = ([number[label] for label in each.labels] for each in samples)
        columns: dict[str, list[Any]] = {
            "names": [each.name for each in samples],
            "labels": [each[0] for each in labels] if single else list(labels),
            "splits": [_SPLITS.index(each.split) for each in samples],
            "groups": [each.group for each in samples] if any(each.group for each in samples) else [],
            "heights": facts.heights.tolist(),
            "widths": facts.widths.tolist(),
            "bytes": facts.sizes.tolist(),
            "digests": entries.hex_digests(),
        }
        head = {"format": FORMAT, "source": self.source, "task": self.task, "classes": list(self.classes)}
        return json.dumps({**head, **columns}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The manifest that to_json wrote."""
        try:
            plain = json.loads(text)
            if plain["format"] not in (EARLIER, FORMAT):
                raise InputError(f"the manifest has format {plain['format']!r:.20}, expected {FORMAT}: update vitrail")
            task = EARLIER_TASKS.get(plain["task"]) if plain["format"] == EARLIER else plain["task"]
            if task not in TASKS:
                raise ValueError(f"task {plain['task']!r:.20}, expected {' or '.join(TASKS)}")
            return cls(plain["source"], task, tuple(plain["classes"]), _entries(plain, task))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the manifest is damaged ({type(error).__name__}: {error!s:.80})") from None


def _entries(plain: dict[str, Any], task: str) -> EntryList:
    """The images of a manifest, from its columns."""
    classes = plain["classes"]
    labels = [[each] for each in plain["labels"]] if task == "single-label" else plain["labels"]
    known = [(name,) for name in classes]  # shared, not one an image
    named = [known[each[0]] if len(each) == 1 else tuple(classes[one] for one in each) for each in labels]
    splits = [_SPLITS[each] for each in plain["splits"]]
    rows = zip(plain["names"], named, splits, plain["groups"] or [""] * len(splits), strict=True)
    samples = list(map(Sample._make, rows))
    digests = plain.pop("digests")
    if any(len(each) != 2 * _DIGEST for each in digests):
        raise ValueError("a digest that is no SHA-256")
    values = np.frombuffer(bytes.fromhex("".join(digests)), np.uint8).reshape(-1, _DIGEST)
    heights, widths, sizes = (np.array(plain.pop(name), np.int64) for name in ("heights", "widths", "bytes"))
    facts = ImageFacts(heights.astype(np.int32), widths.astype(np.int32), sizes, values)
    if any(column.shape[:1] != (len(samples),) for column in facts):
        raise ValueError(f"columns of {', '.join(str(len(column)) for column in facts)} rows, expected {len(samples)}")
    return EntryList(samples, facts)


def record(dataset: Dataset, entries: Iterable[Entry]) -> Manifest:
    """The manifest of a dataset: what was scanned, with the labels, splits and groups that the dataset has now."""
    scanned = EntryList.of(entries)
    rows = {each.name: row for row, each in enumerate(scanned.samples)}
    missing = [describe(each.name) for each in dataset.samples if each.name not in rows]
    if missing:
        raise InputError(f"{len(missing):,} images of {dataset.source} were not scanned: {join_limited(missing, ', ')}")
    places = np.array([rows[each.name] for each in dataset.samples], np.int64)
    found = EntryList(dataset.samples, scanned.facts.take(places))
    return Manifest(dataset.source, dataset.task, dataset.classes, found)


def differences(old: Manifest, new: Manifest) -> list[str]:
    """What changed between two manifests, a sentence each, with counts and the first names; none: the same data."""
    one, other = EntryList.of(old.entries), EntryList.of(new.entries)
    before, after = ({each.name: row for row, each in enumerate(each.samples)} for each in (one, other))
    rows = [(before[each.name], row) for row, each in enumerate(other.samples) if each.name in before]
    left, right = (np.array(each, np.int64) for each in (zip(*rows, strict=True) if rows else ((), ())))
    digests = one.facts.digests[left] != other.facts.digests[right]
    changed = [right[place] for place in np.flatnonzero(digests.any(axis=1))]
    both = [(one.samples[a], other.samples[b]) for a, b in rows if one.samples[a] != other.samples[b]]
    sentences = [
        _sentence("removed", [describe(name) for name in before if name not in after]),
        _sentence("added", [describe(name) for name in after if name not in before]),
        _sentence("changed content", [describe(other.samples[row].name) for row in changed]),
        _sentence("changed label", [_step(a, a.labels, b.labels) for a, b in both if set(a.labels) != set(b.labels)]),
        _sentence("changed split", [_step(a, (a.split,), (b.split,)) for a, b in both if a.split != b.split]),
        _sentence("changed group", [_step(a, (a.group,), (b.group,)) for a, b in both if a.group != b.group]),
    ]
    if old.classes != new.classes:
        gone = [repr(each) for each in old.classes if each not in new.classes]
        come = [repr(each) for each in new.classes if each not in old.classes]
        parts = [f"without {join_limited(gone, ', ')}"] * bool(gone) + [f"with {join_limited(come, ', ')}"] * bool(come)
        sentences.append(f"classes changed: {' and '.join(parts) or 'another order'}")
    if old.task != new.task:
        sentences.append(f"task changed: {old.task} -> {new.task}")
    return [each for each in sentences if each]


def _sentence(what: str, names: Sequence[str]) -> str:
    return (
        f"{len(names):,} {'image' if len(names) == 1 else 'images'} {what}: {join_limited(names, ', ')}"
        if names
        else ""
    )


def _step(sample: Sample, old: Sequence[str], new: Sequence[str]) -> str:
    """One change: a.png (cat -> dog)."""
    left, right = (" and ".join(each for each in values if each) or "none" for values in (old, new))
    return f"{describe(sample.name)} ({left} -> {right})"
