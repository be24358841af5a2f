"""Which split each image or group goes to, so that every class has its share in each.

Everything here is a number: splits are 0 (train), 1 (val) and 2 (test), classes are 0 to K. Images stand in
the order of a random number of their own, and a class gives its first ones to val, the next to test: so one
image more or less moves only those at the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from vitrail.types import Array

Shares = tuple[float, float]  # of val and of test; 0: not wanted
Unit = tuple[tuple[int, int], ...]  # images that stay together: (class, how many of them have it), ...

TRAIN, VAL, TEST = 0, 1, 2
_FIRST: Final = (VAL, TEST, TRAIN)  # who takes first


def quotas(images: Array, units: Array, shares: Shares) -> Array:
    """How many images of each class go to val and to test, (K, 2): the rounded share, but at least one of each.

    One stays in train, and where there are too few for all three, test goes without.
    """
    wanted = np.array(shares) > 0
    exact = images[:, None] * np.array(shares)  # (K, 2)
    least = wanted & (units[:, None] >= 1 + np.cumsum(wanted))  # two units serve train and val, three all
    found: Array = np.maximum(np.floor(exact + 0.5).astype(np.int64), 1) * least
    for _ in range(2):  # rounding up may have left nothing to train on: who has most beyond its share gives one back
        over = (found.sum(axis=1) >= images) & (found > least).any(axis=1)
        beyond = np.where(found > least, found - exact, -np.inf)
        found[over, beyond[over].argmax(axis=1)] -= 1
    return found


def by_unit(units: Sequence[Unit], places: Array, shares: Shares) -> Array:
    """The split (n,) of each unit: classes in turn, the rarest first, each filling its shares from units left over.

    The greedy way of Sechidis and others (2011), On the stratification of multi-label data; but a unit of several
    classes is taken only where all of them together come nearer to their shares.
    """
    turn = np.argsort(places, kind="stable").tolist()
    count = 1 + max((kind for unit in units for kind, _ in unit), default=-1)
    holders: list[list[int]] = [[] for _ in range(count)]
    images = np.zeros(count, np.int64)
    for row in turn:
        for kind, number in units[row]:
            holders[kind].append(row)
            images[kind] += number
    held = np.array([len(each) for each in holders], np.int64)
    wanted = quotas(images, held, shares).tolist()
    floors = [_floors(each, shares) for each in held.tolist()]
    have = [[0, 0, 0] for _ in range(count)]
    splits = [-1] * len(units)
    for kind in np.argsort(held, kind="stable").tolist():
        left = [row for row in holders[kind] if splits[row] < 0]
        for ahead, row in enumerate(left):
            split = _choose(kind, units[row], len(left) - ahead, wanted, have, floors[kind])
            splits[row] = split
            for each, number in units[row]:
                have[each][split] += number
    _fill_train(units, splits, holders, have)
    return np.array(splits, np.int64)


def _floors(units: int, shares: Shares) -> tuple[int, ...]:
    """The splits that need a unit of a class, in the order in which they take one."""
    needed = [split for split in (TRAIN, VAL, TEST) if split == TRAIN or shares[split - 1] > 0][:units]
    return tuple(split for split in _FIRST if split in needed)


def _choose(
    kind: int, unit: Unit, left: int, wanted: list[list[int]], have: list[list[int]], floors: Sequence[int]
) -> int:
    """Where a unit goes, when it is the turn of a class of which so many units are left."""
    if left <= len(floors):
        lacking = [split for split in floors if not have[kind][split]]
        if left <= len(lacking):
            return lacking[0]
    for split in (VAL, TEST):
        # How much nearer each class comes to its share with this unit: beyond half of it, farther away.
        gains = {}
        for each, size in unit:
            share = wanted[each][split - 1]
            gains[each] = size * (2 * (share - have[each][split]) - size) / (share or 1)
        if gains[kind] >= 0 and sum(gains.values()) >= 0:
            return split
    return TRAIN


def _fill_train(
    units: Sequence[Unit], splits: list[int], holders: Sequence[Sequence[int]], have: Sequence[list[int]]
) -> None:
    """A class that ended up without any image in train takes its smallest unit back."""
    for kind, counts in enumerate(have):
        if counts[TRAIN] or not holders[kind]:
            continue
        row = min(holders[kind], key=lambda each: sum(number for _, number in units[each]))
        for each, number in units[row]:
            have[each][splits[row]] -= number
            have[each][TRAIN] += number
        splits[row] = TRAIN
