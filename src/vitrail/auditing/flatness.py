"""An image -> how little is to be seen on it: the share of its ground, and of all that has none of its main colours."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from vitrail.types import Array

SIDE: Final = 128  # pixels a side that are looked at, without blending any two
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
    pixels = values[::step, ::step].reshape(-1, values.shape[2]).astype(np.int16)
    left, ground = pixels, 0.0
    for number in range(COLOURS):
        if not len(left):
            break
        colour = _commonest(left)
        if not number:
            ground = float((np.abs(pixels - colour) <= SAME).all(axis=1).mean())
        left = left[(np.abs(left - colour) > NEAR).any(axis=1)]
    return Flatness(len(left) / len(pixels), ground)


def _commonest(pixels: Array) -> Array:
    """(C,): the colour that most of the pixels (n, C) have, or nearly."""
    codes = (pixels >> 4) @ (16 ** np.arange(pixels.shape[1]))
    most = np.bincount(codes).argmax()
    return np.asarray(np.median(pixels[codes == most], axis=0).astype(np.int16))
