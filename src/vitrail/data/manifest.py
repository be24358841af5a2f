"""Manifest: what a run was trained on, image by image; to and from JSON, and what differs between two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vitrail.checks import join_limited
from vitrail.data.samples import SPLITS, Dataset
from vitrail.errors import InputError
from vitrail.images import describe
from vitrail.images.model_info import EARLIER_TASKS, TASKS

FORMAT: Final = 2
EARLIER: Final = 1  # the same but for the words of the task
_SPLITS = ("", *SPLITS)  # in the file, a split is its number here
_COLUMNS = ("names", "labels", "splits", "groups", "heights", "widths", "bytes", "digests")  # the fields of Entry


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


@dataclass(frozen=True)
class Manifest:
    """Every image of a dataset, and its classes."""

    source: str
    task: str
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]

    def to_json(self) -> str:
        """Compact JSON: a list a column, labels and splits as numbers; names that are not UTF-8 survive."""
        number = {name: place for place, name in enumerate(self.classes)}
        labels: list[Any] = [[number[label] for label in each.labels] for each in self.entries]
        columns = {name: [each[place] for each in self.entries] for place, name in enumerate(_COLUMNS)}
        columns["labels"] = [each[0] for each in labels] if self.task == "single-label" else labels
        columns["splits"] = [_SPLITS.index(split) for split in columns["splits"]]
        columns["groups"] = columns["groups"] if any(columns["groups"]) else []
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
            classes = tuple(plain["classes"])
            labels = [[each] for each in plain["labels"]] if task == "single-label" else plain["labels"]
            known = [(name,) for name in classes]  # shared, not one an image
            named = [known[each[0]] if len(each) == 1 else tuple(classes[one] for one in each) for each in labels]
            splits = [_SPLITS[each] for each in plain["splits"]]
            columns = plain | {"labels": named, "splits": splits, "groups": plain["groups"] or [""] * len(splits)}
            rows = zip(*(columns[name] for name in _COLUMNS), strict=True)
            return cls(plain["source"], task, classes, tuple(map(Entry._make, rows)))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"the manifest is damaged ({type(error).__name__}: {error!s:.80})") from None


def record(dataset: Dataset, entries: Iterable[Entry]) -> Manifest:
    """The manifest of a dataset: what was scanned, with the labels, splits and groups that the dataset has now."""
    scanned = {each.name: each for each in entries}
    missing = [describe(each.name) for each in dataset.samples if each.name not in scanned]
    if missing:
        raise InputError(f"{len(missing):,} images of {dataset.source} were not scanned: {join_limited(missing, ', ')}")
    found = (
        scanned[name]._replace(labels=labels, split=split, group=group)
        for name, labels, split, group in dataset.samples
    )
    return Manifest(dataset.source, dataset.task, dataset.classes, tuple(found))


def differences(old: Manifest, new: Manifest) -> list[str]:
    """What changed between two manifests, a sentence each, with counts and the first names; none: the same data."""
    before, after = ({each.name: each for each in each.entries} for each in (old, new))
    both = [(before[each.name], each) for each in new.entries if each.name in before]
    sentences = [
        _sentence("removed", [describe(name) for name in before if name not in after]),
        _sentence("added", [describe(name) for name in after if name not in before]),
        _sentence("changed content", [describe(a.name) for a, b in both if a.digest != b.digest]),
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


def _step(entry: Entry, old: Sequence[str], new: Sequence[str]) -> str:
    """One change: a.png (cat -> dog)."""
    left, right = (" and ".join(each for each in values if each) or "none" for values in (old, new))
    return f"{describe(entry.name)} ({left} -> {right})"
