"""Stand-in networks whose answers are the colours of their images."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.inference import RuntimeBase, Takes

Array = np.ndarray[Any, Any]


class Colours(RuntimeBase):
    """A stand-in network: the mean of each channel is its logit, and its embedding."""

    def __init__(self, **changes: Any) -> None:
        self.about = ModelInfo(Preprocess(**{"size": 16, "crop": 1.0} | changes), ("red", "green", "blue"))
        self.given: list[Array] = []

    def run(self, pixels: Array) -> tuple[Array, Array]:
        self.given.append(pixels)
        found = pixels.mean(axis=(2, 3)).astype(np.float32)
        return found, found


class ByteColours(Colours):
    """The same, of 8-bit values."""

    takes: Takes = "uint8"

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        self.given.append(values)
        found = self.preprocess.normalise(values).mean(axis=(2, 3)).astype(np.float32)
        return found, found


def reading() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("vitrail-reading")]


def shades(count: int) -> list[Array]:
    """Images of one colour each, all different."""
    dice = np.random.default_rng(0).integers(0, 256, (count, 3), np.uint8)
    return [np.broadcast_to(colour, (20, 20, 3)) for colour in dice]
