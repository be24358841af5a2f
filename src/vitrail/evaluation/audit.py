"""audit: a data set -> everything in it that would spoil a training or its score, before anything is trained."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.checkpoint import Checkpoint
from vitrail.checks import instance, listed, whole
from vitrail.data.reading import read_data
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ImageError, InputError
from vitrail.evaluation.balance import Balance, weigh
from vitrail.evaluation.duplicates import (
    BLANK,
    Alike,
    Near,
    contrast,
    find_duplicates,
    find_lookalikes,
    matches,
)
from vitrail.evaluation.fingerprints import Fingerprints, fingerprint
from vitrail.evaluation.probes import features as embeddings_of
from vitrail.evaluation.sizes import Sizes, measure
from vitrail.evaluation.suspects import FOLDS, Judgement, judge, judge_several

Array = np.ndarray[Any, Any]
Done = Callable[[int], None]

HELD_OUT: Final = ("val", "test")  # what a network is judged by; all else, and what is not split yet, it learns from
WEAK: Final = 0.7  # share of labels that probes must agree with, for their doubts to mean much


class Member(NamedTuple):
    """A picture of a group."""

    name: str
    labels: tuple[str, ...]
    split: str
    picture: int  # equal numbers are the same pixel for pixel
    leaked: bool = False  # learned from, and itself the same or nearly as one that is held out


class Group(NamedTuple):
    """Pictures that are the same, or nearly, or look so to a network."""

    members: tuple[Member, ...]

    @property
    def exact(self) -> bool:
        """Whether all are the same pixel for pixel."""
        return len({each.picture for each in self.members}) == 1

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that members are in."""
        return tuple(dict.fromkeys(each.split for each in self.members))

    @property
    def leaks(self) -> bool:
        """Whether members are in more than one split."""
        return len(self.splits) > 1

    @property
    def conflicts(self) -> bool:
        """Whether members have different labels."""
        return len({frozenset(each.labels) for each in self.members}) > 1


class Crossing(NamedTuple):
    """A group given with the data (a patient, a video) of which some pictures are in another split than the rest."""

    name: str
    counts: Mapping[str, int]  # split -> pictures
    names: tuple[str, ...]  # of its pictures


class Suspect(NamedTuple):
    """A picture whose label is likely wrong."""

    name: str
    split: str
    given: tuple[str, ...]
    suggested: tuple[str, ...]
    score: float  # 0 to 1: how much of its usual probability the label given lacks
    confidence: float  # probability of the label given


@dataclass(frozen=True)
class Audit:
    """What was found, by the names of the pictures; a part that was not looked into is explained in the notes."""

    source: str
    task: str
    pictures: int  # that can be read
    unreadable: tuple[tuple[str, str], ...]  # name, reason
    left_out: Mapping[str, int]  # files that are no samples: why, and how many
    balance: Balance
    sizes: Sizes
    kinds: Mapping[str, int]  # bands and their numbers -> pictures
    grey: int  # pictures without any colour
    blank: tuple[Member, ...]  # pictures of one colour
    duplicates: tuple[Group, ...]  # leaks first, then larger groups
    crossing: tuple[Crossing, ...]
    lookalikes: tuple[Group, ...]  # by a network, beyond the duplicates
    suspects: tuple[Suspect, ...]  # the surest first
    agreement: float | None  # share of labels that the probes behind the suspects would have given
    notes: tuple[str, ...]

    @property
    def leaks(self) -> tuple[Group, ...]:
        """Groups of duplicates with members in more than one split."""
        return tuple(each for each in self.duplicates if each.leaks)

    @property
    def conflicts(self) -> tuple[Group, ...]:
        """Groups of duplicates with different labels."""
        return tuple(each for each in self.duplicates if each.conflicts)

    @property
    def copies(self) -> int:
        """Pictures that are the same, pixel for pixel, as one before them."""
        return sum(len(each.members) - len({one.picture for one in each.members}) for each in self.duplicates)

    def counts(self) -> dict[str, int]:
        """How much was found of everything."""
        return {
            "pictures": self.pictures,
            "unreadable": len(self.unreadable),
            "exact_copies": self.copies,
            "near_groups": sum(not each.exact for each in self.duplicates),
            "leaks": len(self.leaks),
            "leaked_pictures": sum(one.leaked for each in self.duplicates for one in each.members),
            "conflicts": len(self.conflicts),
            "crossing_groups": len(self.crossing),
            "lookalike_groups": len(self.lookalikes),
            "suspects": len(self.suspects),
            "odd_sizes": len(self.sizes.odd),
            "blank": len(self.blank),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, the counts first."""
        balance, sizes = self.balance, self.sizes
        return {
            "counts": self.counts(),
            "source": self.source,
            "task": self.task,
            "classes": {
                name: dict(zip((each or "unsplit" for each in balance.splits), row, strict=True))
                for name, row in balance.counts.items()
            },
            "balance": {
                "ratio": balance.ratio,
                "few": list(balance.few),
                "missing": [{"class": name, "split": split or "unsplit"} for name, split in balance.missing],
                "balance": balance.balance,
                "advice": balance.advice,
            },
            "sizes": {
                "smallest_side": int(sizes.shorts.min()),
                "median": [int(np.median(sizes.heights)), int(np.median(sizes.widths))],
                "largest_side": int(max(sizes.heights.max(), sizes.widths.max())),
                "distinct": sizes.distinct,
                "common": [each._asdict() for each in sizes.common],
                "odd": [each._asdict() for each in sizes.odd],
                "suggestion": sizes.suggestion._asdict(),
            },
            "kinds": dict(self.kinds),
            "grey": self.grey,
            "blank": [each.name for each in self.blank],
            "unreadable": [{"path": name, "reason": reason} for name, reason in self.unreadable],
            "left_out": dict(self.left_out),
            "duplicates": [_plain(each) for each in self.duplicates],
            "crossing": [
                {"group": each.name, "counts": dict(each.counts), "members": list(each.names)} for each in self.crossing
            ],
            "lookalikes": [_plain(each) for each in self.lookalikes],
            "suspects": [each._asdict() for each in self.suspects],
            "agreement": self.agreement,
            "notes": list(self.notes),
        }


def audit(
    data: Dataset | str | os.PathLike[str],
    *,
    checkpoint: Checkpoint | None = None,
    threads: int = 2,
    near: Near | None = None,
    done: Done | None = None,
) -> Audit:
    """Look at every picture, and with a checkpoint once more through the network.

    `done` is told how many more pictures have been looked at: all of them once, or twice with a checkpoint.
    """
    dataset = data if isinstance(data, Dataset) else read_data(data)
    whole("threads", threads, 1, 256, error=InputError)
    near = near or Near()
    instance("near", near, Near, error=InputError)
    prints = fingerprint(dataset.images, threads=threads, done=done)
    unreadable = tuple((dataset.samples[row].name, reason) for row, reason in prints.failed.items())
    kept = np.array([row for row in range(len(dataset)) if row not in prints.failed], np.int64)
    if not len(kept):
        raise ImageError(
            f"none of the {len(dataset):,} pictures in {dataset.source} can be read: "
            f"{listed([f'{name}: {reason}' for name, reason in unreadable], most=3)}"
        )
    dataset, prints = dataset.select(kept), prints.select(kept)
    groups = find_duplicates(prints, near)
    samples = dataset.samples
    blank = np.flatnonzero(contrast(prints.copies) < BLANK)
    copies = prints.copies.astype(np.int16)
    found = Audit(
        source=dataset.source,
        task=dataset.task,
        pictures=len(dataset),
        unreadable=unreadable,
        left_out=dict(dataset.left_out),
        balance=weigh(dataset),
        sizes=measure([_Sized(each.name, *map(int, size)) for each, size in zip(samples, prints.sizes, strict=True)]),
        kinds=dict(Counter(prints.kinds)),
        grey=int((np.ptp(copies, axis=3).max(axis=(1, 2)) == 0).sum()),
        blank=tuple(_member(samples[row], 0) for row in blank),
        duplicates=_in_order([_group(samples, each, prints, near) for each in groups]),
        crossing=find_crossing(samples),
        lookalikes=(),
        suspects=(),
        agreement=None,
        notes=_notes(dataset, checkpoint),
    )
    return found if checkpoint is None else _with_network(found, dataset, checkpoint, near, threads, done)


def find_crossing(samples: Sequence[Sample]) -> tuple[Crossing, ...]:
    """Groups given with the data whose pictures are in more than one split, the largest first."""
    members: dict[str, list[Sample]] = {}
    for each in samples:
        if each.group and each.split:
            members.setdefault(each.group, []).append(each)
    torn = [
        Crossing(name, dict(Counter(each.split for each in inside)), tuple(each.name for each in inside))
        for name, inside in members.items()
        if len({each.split for each in inside}) > 1
    ]
    return tuple(sorted(torn, key=lambda each: -sum(each.counts.values())))


class _Sized(NamedTuple):
    name: str
    height: int
    width: int


def _member(sample: Sample, picture: int, leaked: bool = False) -> Member:
    return Member(sample.name, sample.labels, sample.split, picture, leaked)


def _group(samples: Sequence[Sample], alike: Alike, prints: Fingerprints, near: Near) -> Group:
    """A group by name, its pictures numbered from 0; held-out members first, so that leaks read from them."""
    held = np.array([row for row in alike.rows if samples[row].split in HELD_OUT], np.int64)
    learned = np.array([row for row in alike.rows if samples[row].split not in HELD_OUT], np.int64)
    leaked = set(learned[matches(prints, learned, held, near)].tolist()) if len(held) and len(learned) else set()
    number = {first: place for place, first in enumerate(dict.fromkeys(alike.pictures))}
    numbers = dict(zip(alike.rows, (number[first] for first in alike.pictures), strict=True))
    return Group(
        tuple(_member(samples[row], numbers[row], row in leaked) for row in (*held.tolist(), *learned.tolist()))
    )


def _in_order(groups: list[Group]) -> tuple[Group, ...]:
    """What matters most first: leaks, then different labels, then the same pixels, then many members."""
    return tuple(
        sorted(groups, key=lambda each: (not each.leaks, not each.conflicts, not each.exact, -len(each.members)))
    )


def _with_network(
    found: Audit, dataset: Dataset, checkpoint: Checkpoint, near: Near, threads: int, done: Done | None
) -> Audit:
    """What only a network sees: look-alikes, and labels that do not fit."""
    features = embeddings_of(checkpoint, dataset, threads=threads, done=done)
    place = {each.name: row for row, each in enumerate(dataset.samples)}
    groups = [[(place[each.name], each.labels) for each in group.members] for group in found.duplicates]
    # One picture stands for its duplicates: they are no look-alikes to tell of, and a probe that learned from
    # another copy would believe its label. Copies with other labels are judged all the same.
    others = {row for group in groups for row, _ in group[1:]}
    repeated = {row for group in groups for row, _ in group} - {
        row for group in groups for row in {labels: row for row, labels in reversed(group)}.values()
    }
    alone = np.array([row for row in range(len(dataset)) if row not in others], np.int64)
    judged = np.array([row for row in range(len(dataset)) if row not in repeated], np.int64)
    alike = find_lookalikes(features[alone], near)
    named = [Group(tuple(_member(dataset.samples[alone[row]], row) for row in group)) for group in alike]
    suspects, agreement, notes = _suspects(dataset.select(judged), features[judged])
    return replace(
        found,
        lookalikes=_in_order(named),
        suspects=suspects,
        agreement=agreement,
        notes=(*found.notes, *notes),
    )


def _suspects(dataset: Dataset, features: Array) -> tuple[tuple[Suspect, ...], float | None, tuple[str, ...]]:
    """Likely label errors, how far to trust them, and what to say about it."""
    targets = dataset.targets()
    if dataset.task == "one":
        judgement = judge(features, targets)
        suspects = [
            Suspect(sample.name, sample.split, sample.labels, (dataset.classes[each.suggested],), *each[3:])
            for each in judgement.doubts
            for sample in (dataset.samples[each.row],)
        ]
        judgements = [judgement]
    else:
        judgements = judge_several(features, targets)
        suspects = _several(dataset, judgements)
    judged = sum(each.judged for each in judgements)
    if not judged:
        why = f"fewer than two classes have {FOLDS} pictures, too few for a probe to learn from"
        return (), None, (f"Label errors were not looked for: {why}.",)
    agreement = sum(each.agreement * each.judged for each in judgements) / judged
    notes = []
    if judged < targets.size:
        notes.append(f"Classes with fewer than {FOLDS} pictures were not looked at for label errors.")
    if agreement < WEAK:
        notes.append(
            f"Probes on this network agree with only {100 * agreement:.0f} % of the labels: it hardly tells these "
            "classes apart, so take its doubts as hints, or audit with a network trained for them."
        )
    return tuple(suspects), agreement, tuple(notes)


def _several(dataset: Dataset, judgements: Sequence[Judgement]) -> list[Suspect]:
    """Doubts about single labels as doubts about pictures: a label too many, or one that is missing."""
    found = []
    for name, judgement in zip(dataset.classes, judgements, strict=True):
        for each in judgement.doubts:
            sample = dataset.samples[each.row]
            without = tuple(label for label in sample.labels if label != name)
            suggested = (*without, name) if each.suggested else without
            found.append(Suspect(sample.name, sample.split, sample.labels, suggested, each.score, each.confidence))
    return sorted(found, key=lambda each: -each.score)


def _notes(dataset: Dataset, checkpoint: Checkpoint | None) -> tuple[str, ...]:
    """What was not looked into, and why."""
    notes = []
    if not dataset.splits:
        notes.append("The pictures are not split yet, so nothing can have leaked: duplicates are found all the same.")
    if checkpoint is None:
        notes.append("Label errors and look-alikes were not looked for: that needs a checkpoint, of any network.")
    elif set(checkpoint.classes) == set(dataset.classes):
        notes.append(
            "This network knows these classes already. If it was trained on these very pictures, it may have learned "
            "wrong labels by heart: one that never saw them finds more."
        )
    return tuple(notes)


def _plain(group: Group) -> dict[str, Any]:
    """A group for JSON."""
    said = {"kind": "exact" if group.exact else "near", "leaks": group.leaks, "conflicts": group.conflicts}
    return {**said, "members": [each._asdict() for each in group.members]}
