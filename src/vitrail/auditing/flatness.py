"""An image -> how little is to be seen on it: the share of its ground, and of all that has none of its main colours."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from vitrail.types import Array

SIDE: Final = 96  # pixels a side that are looked at, without blending any two
COLOURS: Final = 3  # that a placeholder may have: ground, words, a frame
NEAR: Final = 16  # of 255: so far pixels of one colour lie from it once JPEG has been over them
SAME: Final = 3  # of 255: those of a ground of one colour


class Flatness(NamedTuple):
    """How little is to be seen on an image."""

    busy: float  # share of pixels of other colours than the main ones
    ground: float  # share of pixels of the commonest colour


def measure_flatness(values: Array) -> Flatness:
    """Of 8-bit pixels (H, W, 3)."""
    step = max(1, -(-max(values.shape[:2]) // SIDE))
    # Three planes of numbers: sums over the last axis of (n, 3) take several times as long.
    pixels = values[::step, ::step].reshape(-1, 3).T.astype(np.int16)  # (3, n)
    left, ground = pixels, 0.0
    for number in range(COLOURS):
        if not left.size:
            break
        colour = _commonest(left)
        if not number:
            ground = float(_within(pixels, colour, SAME).mean())
        left = left[:, ~_within(left, colour, NEAR)]
    return Flatness(left.shape[1] / pixels.shape[1], ground)


def _commonest(pixels: Array) -> Array:
    """(3,): the colour that most of the pixels (3, n) have, or nearly."""
    red, green, blue = pixels >> 4
    codes = red << 8 | green << 4 | blue
    most = np.bincount(codes, minlength=16**3).argmax()
    return np.asarray(np.median(pixels[:, codes == most], axis=1).astype(np.int16))


def _within(pixels: Array, colour: Array, distance: int) -> Array:
    """(n,): whether pixels (3, n) lie so near a colour (3,)."""
    red, green, blue = np.abs(pixels - colour[:, None]) <= distance
    return np.asarray(red & green & blue)
