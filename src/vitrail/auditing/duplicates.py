"""Fingerprints -> groups of images that are the same, or nearly: found by parts of their hashes, then compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from vitrail.auditing.fingerprints import MIRROR, SIDE, Fingerprints
from vitrail.checks import check_int, check_number
from vitrail.errors import InputError
from vitrail.types import Array

BLANK: Final = 2.0  # contrast, in steps of 255, under which an image shows nothing that could be recognised
_PARTS: Final = 4  # of 16 bits: hashes at most 7 bits apart have a part at most 1 bit apart
_PAIRS: Final = 1 << 20  # candidates looked at together
_COMPARED: Final = 1 << 12  # of these, images compared together: 3 kB each
_BLOCK: Final = 256  # embeddings compared together with all others
_JOINED: Final = 1 << 12  # pairs joined before looking again which belong together by now
_COUNTS: Final = np.array([each.bit_count() for each in range(1 << 16)], np.uint8)


@dataclass(frozen=True, kw_only=True)
class Near:
    """How alike two images are that count as nearly the same.

    The defaults hold for images saved again as JPEG of quality 50 and above, at half to double size, a little
    brighter or darker, or mirrored.
    """

    bits: int = 7  # of 64 in which the hashes may differ
    difference: float = 3.0  # between tiny copies of equal brightness, in steps of 255: root mean square
    correlation: float = 0.97  # between tiny copies, at least
    cosine: float = 0.97  # between embeddings, at least: images that a network sees as one

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", check_int("near bits", self.bits, 0, 2 * _PARTS - 1))
        for name, most in {"difference": 255.0, "correlation": 1.0, "cosine": 1.0}.items():
            object.__setattr__(self, name, check_number(f"near {name}", getattr(self, name), 0.0, most))


class Alike(NamedTuple):
    """A group of images, by row."""

    rows: tuple[int, ...]  # in order
    images: tuple[int, ...]  # beside the rows: equal numbers are the same pixel for pixel


class Sets:
    """Which of n things belong together, as far as is known."""

    def __init__(self, count: int) -> None:
        self._above = np.arange(count)

    def join(self, first: int, second: int) -> None:
        """From now on these two, and all that belong to either, belong together."""
        low, high = sorted((self._top(first), self._top(second)))
        self._above[high] = low

    def join_all(self, first: Array, second: Array) -> None:
        """Join pairs, a piece at a time: of the many pairs within one large set, few are looked at one by one."""
        for start in range(0, len(first), _JOINED):
            one, other = first[start : start + _JOINED], second[start : start + _JOINED]
            tops = self.tops()
            apart = tops[one] != tops[other]
            for left, right in zip(one[apart], other[apart], strict=True):
                self.join(int(left), int(right))

    def tops(self) -> Array:
        """(n,): the first member of each one's set."""
        while not np.array_equal(self._above, self._above[self._above]):
            self._above = self._above[self._above]
        return self._above

    def groups(self) -> list[list[int]]:
        """Sets of more than one, each in order, the one with the first member first."""
        tops = self.tops()
        rows = np.flatnonzero(np.bincount(tops, minlength=len(tops))[tops] > 1)
        groups: dict[int, list[int]] = {}
        for row in rows:
            groups.setdefault(int(tops[row]), []).append(int(row))
        return list(groups.values())

    def _top(self, row: int) -> int:
        while self._above[row] != row:
            self._above[row] = self._above[self._above[row]]
            row = int(self._above[row])
        return row


def find_duplicates(prints: Fingerprints, near: Near | None = None) -> list[Alike]:
    """Groups of the same or nearly the same images; who is like one of a group belongs to it."""
    if prints.failed:
        raise InputError(f"{len(prints.failed)} of the images could not be read: select the others first")
    near = near or Near()
    first = _first_of_each(prints)
    sets = Sets(len(first))
    rows = np.arange(len(first))
    sets.join_all(first, rows)
    seen = np.flatnonzero((first == rows) & (contrast(prints.copies) >= BLANK))
    hashes = prints.hashes[seen]
    for mirrored in (False, True):
        queries = hashes ^ MIRROR if mirrored else hashes
        # Thousands of frames of one scene are one set after a few comparisons: the other pairs are not even listed.
        for one, other in close_pairs(queries, hashes, near.bits, lambda: sets.tops()[seen]):
            for left, right in _compared(prints.copies, seen[one], seen[other], near, mirrored, sets):
                sets.join(left, right)
    return [Alike(tuple(group), tuple(int(first[row]) for row in group)) for group in sets.groups()]


def find_lookalikes(embeddings: Array, near: Near | None = None) -> list[list[int]]:
    """Groups of rows (n, D) whose directions are nearly the same; who is like one of a group belongs to it."""
    near = near or Near()
    if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
        raise InputError(f"expected finite embeddings (n, D), got an array of shape {embeddings.shape}")
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = (embeddings / np.maximum(lengths, 1e-12)).astype(np.float32)
    sets = Sets(len(unit))
    for start in range(0, len(unit), _BLOCK):
        block, tops = unit[start : start + _BLOCK], sets.tops()[start:]
        left, right = np.nonzero((block @ unit[start:].T >= near.cosine) & (tops[: len(block), None] != tops))
        sets.join_all(start + left, start + right)
    return sets.groups()


def matches(prints: Fingerprints, rows: Array, others: Array, near: Near | None = None) -> Array:
    """For each of the rows whether it is itself, not by way of a third, the same as one of the others or nearly."""
    near = near or Near()
    return np.array([_has_match(prints, int(row), others, near) for row in rows], bool)


def _has_match(prints: Fingerprints, row: int, others: Array, near: Near) -> bool:
    if (prints.digests[others] == prints.digests[row]).all(axis=1).any():
        return True
    for mirrored in (False, True):
        hash_of_row = prints.hashes[row] ^ MIRROR if mirrored else prints.hashes[row]
        apart = _COUNTS[_parts(prints.hashes[others] ^ hash_of_row)].sum(axis=1)
        close = others[np.argsort(apart, kind="stable")][: int((apart <= near.bits).sum())]  # the likeliest first
        for start in range(0, len(close), 64):
            few = close[start : start + 64]
            if _is_near(prints.copies, np.full(len(few), row), few, near, mirrored).any():
                return True
    return False


def contrast(copies: Array) -> Array:
    """(n,): how far the values of a tiny copy spread about their mean, in the band where they do most: of 255."""
    found = np.zeros(len(copies), np.float32)
    for start in range(0, len(copies), _COMPARED):
        block = copies[start : start + _COMPARED]
        found[start : start + len(block)] = block.std(axis=(1, 2), dtype=np.float32).max(axis=1)
    return found


def close_pairs(
    queries: Array, hashes: Array, bits: int, known: Callable[[], Array] | None = None
) -> Iterator[tuple[Array, Array]]:
    """Pairs i < j where query i and hash j differ in at most so many bits, each pair once, a piece at a time.

    Each part of a query is looked up among the same parts of the hashes, as it is and with one bit turned over.
    `known` gives a number (n,) for each: pairs of the same number may be left out, as it stands when they are met.
    """
    looked, parts = _parts(queries), _parts(hashes)
    for part in range(_PARTS):
        order = np.argsort(parts[:, part], kind="stable")
        ends = np.cumsum(np.bincount(parts[:, part], minlength=1 << 16))
        for turned in (0, *(1 << place for place in range(16))):
            wanted = looked[:, part] ^ turned
            starts = np.where(wanted > 0, ends[wanted - 1], 0)
            counts = ends[wanted] - starts
            row = 0
            while row < len(wanted):
                if known is not None:
                    numbers = known()
                    counts = np.where(_shared(numbers[order], ends)[wanted] == numbers, 0, counts)
                reach = np.cumsum(counts[row:])
                stop = row + max(1, int(np.searchsorted(reach, _PAIRS, side="right")))
                one, places = _spread(row, starts[row:stop], counts[row:stop])
                row, other = stop, order[places]
                one, other = one[one < other], other[one < other]
                apart = _COUNTS[looked[one] ^ parts[other]]  # (pairs, parts)
                new = (apart[:, :part] > 1).all(axis=1) & (apart.sum(axis=1) <= bits)
                if new.any():
                    yield one[new], other[new]


def _parts(hashes: Array) -> Array:
    """(n, parts): the hashes (n,) in pieces of 16 bits."""
    places = np.arange(_PARTS, dtype=np.uint64) * np.uint64(16)
    return np.asarray((hashes[:, None] >> places) & np.uint64(0xFFFF)).astype(np.int64)


def _spread(first: int, starts: Array, counts: Array) -> tuple[Array, Array]:
    """(first + i, starts[i]), (first + i, starts[i] + 1), ... counts[i] of them for each i, as two arrays."""
    rows = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
    return first + rows, starts[rows] + within


def _shared(numbers: Array, ends: Array) -> Array:
    """(65536,): the number that all of a bucket have, -1 where they differ or there are none."""
    sizes = np.diff(ends, prepend=0)
    filled = np.flatnonzero(sizes)
    starts = ends[filled] - sizes[filled]
    low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
    shared = np.full(len(ends), -1)
    shared[filled] = np.where(low == high, low, -1)
    return shared


def _first_of_each(prints: Fingerprints) -> Array:
    """(n,): the first row with the same pixels."""
    marks = np.ascontiguousarray(prints.digests).view("V16").ravel()
    _, first, inverse = np.unique(marks, return_index=True, return_inverse=True)
    return first[inverse]


def _compared(
    copies: Array, first: Array, second: Array, near: Near, mirrored: bool, sets: Sets
) -> Iterator[tuple[int, int]]:
    """The pairs that are nearly the same, of those not yet known to belong together."""
    for start in range(0, len(first), _COMPARED):
        one, other = first[start : start + _COMPARED], second[start : start + _COMPARED]
        tops = sets.tops()
        apart = tops[one] != tops[other]
        one, other = one[apart], other[apart]
        alike = _is_near(copies, one, other, near, mirrored)
        yield from ((int(left), int(right)) for left, right in zip(one[alike], other[alike], strict=True))


def _is_near(copies: Array, first: Array, second: Array, near: Near, mirrored: bool) -> Array:
    """(pairs,): whether the tiny copies agree once one is made as bright as the other."""
    one, other = copies[first], copies[second]
    if mirrored:
        one = one[:, :, ::-1]
    one, other = (each.reshape(-1, 3 * SIDE**2).astype(np.float32) for each in (one, other))  # (pairs, 768)
    # From the darker to the brighter: what the brighter one lost at white can still be foretold.
    swap = (one.mean(axis=1) > other.mean(axis=1))[:, None]
    dark, bright = np.where(swap, other, one), np.where(swap, one, other)
    inside = ((np.minimum(dark, bright) > 4) & (np.maximum(dark, bright) < 251)).astype(np.float32)
    inside[inside.sum(axis=1) < 32] = 1  # black and white drawings have nothing between
    share = inside / inside.sum(axis=1, keepdims=True)
    dark_mean, bright_mean = ((share * each).sum(axis=1, keepdims=True) for each in (dark, bright))
    spread = (share * (dark - dark_mean) ** 2).sum(axis=1, keepdims=True)
    together = (share * (dark - dark_mean) * (bright - bright_mean)).sum(axis=1, keepdims=True)
    gain = np.clip(together / np.maximum(spread, 1e-6), 0.7, 1.4)  # more than that is another exposure
    foretold = np.clip(bright_mean + gain * (dark - dark_mean), 0, 255)
    difference = np.sqrt(((foretold - bright) ** 2).mean(axis=1))
    return np.asarray((difference <= near.difference) & (_correlation(dark, bright) >= near.correlation))


def _correlation(one: Array, other: Array) -> Array:
    one, other = one - one.mean(axis=1, keepdims=True), other - other.mean(axis=1, keepdims=True)
    lengths = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return np.asarray((one * other).sum(axis=1) / np.maximum(lengths, 1e-6))
