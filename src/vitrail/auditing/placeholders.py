"""Flatness and duplicates -> images that stand where an image should be: "not found", "no image available", blank ones.

Such an image has a ground of one colour with a few words on it, or is the same under several classes. What is usual
decides: of digits or drawings, which all are flat, only those are told that come back many times or under many labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from vitrail.auditing.audit_results import Group, Placeholder
from vitrail.data.samples import Sample
from vitrail.types import Array

BUSY: Final = 0.06  # share of pixels of other colours than the main ones; fruits on white ground begin at 0.066
GROUND: Final = 0.7  # share of the ground
USUALLY_BUSY: Final = 0.15  # where the middle image of a class has less, flatness says nothing
FEW: Final = 5  # images of a class: fewer have no middle to speak of
CLASSES: Final = 3  # that one image stands under: labels are mistaken for one another, rarely for two others
TIMES: Final = 10  # that one image is there
AGAIN: Final = 3  # times that a flat image is there where others are not flat


def find_placeholders(
    samples: Sequence[Sample], flat: Array, blank: Array, groups: Sequence[Group]
) -> tuple[Placeholder, ...]:
    """From the flatness (n, 2) of all images, those of a single colour, and the groups of duplicates; the surest first.

    A sure one is flat, or blank, and comes back.
    """
    rows = {each.name: row for row, each in enumerate(samples)}
    telling = usual(samples, flat[:, 0]) >= USUALLY_BUSY
    few_colours = (flat[:, 0] <= BUSY) & (flat[:, 1] >= GROUND)
    few_colours[blank] = True
    placeholders: dict[str, Placeholder] = {}
    for row in blank.tolist():
        placeholders[samples[row].name] = Placeholder(samples[row], "shows a single colour", False)
    for row in np.flatnonzero(few_colours & telling).tolist():
        placeholders.setdefault(
            samples[row].name, Placeholder(samples[row], "a few colours, and hardly any detail", False)
        )
    often = _often(groups, len(samples))
    for group in groups:
        inside = [rows[each.name] for each in group.members]
        classes = len({frozenset(each.labels) for each in group.members})
        is_flat = bool(2 * few_colours[inside].sum() >= len(inside))
        if telling[inside].any():
            comes_back = is_flat and (classes > 1 or len(inside) >= AGAIN)
        else:
            comes_back = is_flat and len(inside) >= TIMES
        if comes_back or classes >= CLASSES or group in often:
            under = f" under {classes} labels" if classes > 1 else ""
            why = f"the same or nearly the same {len(inside):,} times{under}"
            for row in inside:
                placeholders[samples[row].name] = Placeholder(samples[row], why, is_flat)
    return tuple(sorted(placeholders.values(), key=lambda each: not each.sure))


def usual(samples: Sequence[Sample], busy: Array) -> Array:
    """(n,): how busy the middle image of the same class is, or of all if that is less; of several labels, the least."""
    members: dict[str, list[int]] = {}
    for row, each in enumerate(samples):
        for label in each.labels:
            members.setdefault(label, []).append(row)
    middles = np.full(len(samples), np.median(busy))
    for rows in members.values():
        if len(rows) >= FEW:
            middles[rows] = np.minimum(middles[rows], np.median(busy[rows]))
    return middles


def _often(groups: Sequence[Group], count: int) -> list[Group]:
    """Groups in which one image stands many times; none where that is so of most images, which are only repeated."""
    often = [
        each for each in groups if max(np.unique([one.image for one in each.members], return_counts=True)[1]) >= TIMES
    ]
    return often if 2 * sum(len(each.members) for each in often) <= count else []
