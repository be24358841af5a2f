"""Audit: what was found in a data set, by the names of its images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.auditing.balance import Balance
from vitrail.auditing.sizes import Sizes
from vitrail.data.left_out import kind_of
from vitrail.data.samples import Sample
from vitrail.reporting.html_page import counted
from vitrail.reporting.object_card import Card

HELD_OUT: Final = ("val", "test")  # what a network is judged by; all else, and what is not split yet, it learns from
WEAK: Final = 0.8  # share of labels that probes must agree with, for their doubts to mean much


class Member(NamedTuple):
    """An image of a group."""

    name: str
    labels: tuple[str, ...]
    split: str
    image: int  # equal numbers are the same pixel for pixel
    leaked: bool = False  # learned from, and itself the same or nearly as one that is held out


class Group(NamedTuple):
    """Images that are the same, or nearly, or look so to a network."""

    members: tuple[Member, ...]

    @property
    def exact(self) -> bool:
        """Whether all are the same pixel for pixel."""
        return len({each.image for each in self.members}) == 1

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that members are in."""
        return tuple(dict.fromkeys(each.split for each in self.members))

    @property
    def leaks(self) -> bool:
        """Whether a member is held out and another is in another split, or in none yet."""
        return len(self.splits) > 1 and any(split in HELD_OUT for split in self.splits)

    @property
    def conflicts(self) -> bool:
        """Whether members have different labels."""
        return len({frozenset(each.labels) for each in self.members}) > 1


class Crossing(NamedTuple):
    """A group given with the data (a patient, a video) of which some images are in another split than the rest."""

    name: str
    counts: Mapping[str, int]  # split -> images
    names: tuple[str, ...]  # of its images


class Placeholder(NamedTuple):
    """An image that seems to stand where an image should be, such as "not found"."""

    sample: Sample
    why: str
    sure: bool  # flat, and there several times

    @property
    def name(self) -> str:
        """Of the image."""
        return self.sample.name


class Suspect(NamedTuple):
    """An image whose label is likely wrong."""

    name: str
    split: str
    given: tuple[str, ...]
    suggested: tuple[str, ...]
    score: float  # 0 to 1: how much of its usual probability the label given lacks
    confidence: float  # probability of the label given


@dataclass(frozen=True)
class Audit:
    """What was found, by the names of the images; a part that was not looked into is explained in the notes."""

    source: str
    task: str
    images: int  # that can be read
    unreadable: tuple[tuple[str, str], ...]  # name, reason
    left_out: Mapping[str, int]  # files that are no samples: why, and how many
    left_out_names: Mapping[str, tuple[str, ...]]  # why, and the first of these files
    balance: Balance
    sizes: Sizes
    kinds: Mapping[str, int]  # bands and their numbers -> images
    grey: int  # images without any colour
    blank: tuple[Member, ...]  # images of one colour
    placeholders: tuple[Placeholder, ...]  # "image not found" and the like, blank ones too; the surest first
    duplicates: tuple[Group, ...]  # leaks first, then larger groups
    crossing: tuple[Crossing, ...]
    lookalikes: tuple[Group, ...]  # by a network, beyond the duplicates
    suspects: tuple[Suspect, ...]  # the surest first
    agreement: float | None  # share of labels that the probes behind the suspects would have given
    notes: tuple[str, ...]

    @property
    def leaks(self) -> tuple[Group, ...]:
        """Groups of duplicates across splits."""
        return tuple(each for each in self.duplicates if each.leaks)

    @property
    def conflicts(self) -> tuple[Group, ...]:
        """Groups of duplicates with different labels."""
        return tuple(each for each in self.duplicates if each.conflicts)

    @property
    def copies(self) -> int:
        """Images that are the same, pixel for pixel, as one before them."""
        return sum(len(each.members) - len({one.image for one in each.members}) for each in self.duplicates)

    def counts(self) -> dict[str, int]:
        """How much was found of everything."""
        return {
            "images": self.images,
            "unreadable": len(self.unreadable),
            "exact_copies": self.copies,
            "exact_groups": sum(each.exact for each in self.duplicates),
            "near_groups": sum(not each.exact for each in self.duplicates),
            "leaks": len(self.leaks),
            "leaked_images": sum(one.leaked for each in self.duplicates for one in each.members),
            "conflicts": len(self.conflicts),
            "crossing_groups": len(self.crossing),
            "lookalike_groups": len(self.lookalikes),
            "suspects": len(self.suspects),
            "odd_sizes": len(self.sizes.odd),
            "blank": len(self.blank),
            "placeholders": len(self.placeholders),
        }

    def card(self) -> Card:
        """What it says of itself in a REPL and a notebook: what was found, and what was not looked for."""
        counts = self.counts()
        leaks = f"{counted(counts['leaks'], 'group')} of duplicates across splits" if counts["leaks"] else ""
        same = f"{counts['exact_copies']:,} the same as another" if counts["exact_copies"] else ""
        near = f"{counted(counts['near_groups'], 'group')} nearly the same" if counts["near_groups"] else ""
        findings = (
            ("unreadable", f"{counts['unreadable']:,}" if counts["unreadable"] else ""),
            ("leaks", leaks),
            ("duplicates", ", ".join(filter(None, (same, near)))),
            (
                "other labels",
                f"{counted(counts['conflicts'], 'group')} of duplicates" if counts["conflicts"] else "",
            ),
            ("label errors", f"{counts['suspects']:,} possible" if counts["suspects"] else ""),
            ("look-alikes", counted(counts["lookalike_groups"], "group") if counts["lookalike_groups"] else ""),
            ("placeholders", counted(counts["placeholders"], "image") if self.placeholders else ""),
            ("odd", f"{counts['odd_sizes']:,} of an odd size" if self.sizes.odd else ""),
        )
        return Card(
            f"Audit: {counted(self.images, 'image')} of {self.source}",
            (
                *findings,
                ("findings", "" if any(value for _, value in findings) else "nothing to complain about"),
                ("left out", ", ".join(f"{count:,} {kind_of(why, count)}" for why, count in self.left_out.items())),
                ("notes", " ".join(self.notes)),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()

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
                "few": list(balance.small),
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
            "placeholders": [
                {"path": each.name, "labels": list(each.sample.labels), "why": each.why, "sure": each.sure}
                for each in self.placeholders
            ],
            "unreadable": [{"path": name, "reason": reason} for name, reason in self.unreadable],
            "left_out": dict(self.left_out),
            "left_out_names": {why: list(names) for why, names in self.left_out_names.items()},
            "duplicates": [_plain(each) for each in self.duplicates],
            "crossing": [
                {"group": each.name, "counts": dict(each.counts), "members": list(each.names)} for each in self.crossing
            ],
            "lookalikes": [_plain(each) for each in self.lookalikes],
            "suspects": [each._asdict() for each in self.suspects],
            "agreement": self.agreement,
            "notes": list(self.notes),
        }


def _plain(group: Group) -> dict[str, Any]:
    """A group for JSON."""
    said = {"kind": "exact" if group.exact else "near", "leaks": group.leaks, "conflicts": group.conflicts}
    return {**said, "members": [each._asdict() for each in group.members]}
