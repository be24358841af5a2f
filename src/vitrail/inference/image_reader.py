"""Images, one by one, as a runtime takes them: a source in; its values, or why it has none, out."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from vitrail.errors import ImageError
from vitrail.images import Preprocess, Source, decode
from vitrail.inference.runtime import Runtime
from vitrail.types import Array

Run = Callable[[Array], tuple[Array, Array]]  # values of some images -> logits and embedding
Skip = Callable[[str, ImageError], None]  # told of an image that could not be read


class Named(NamedTuple):
    """An image and what to call it; or, where the image could not even be found, why."""

    name: str
    image: Source | ImageError


class ReadImage(NamedTuple):
    row: int
    name: str
    values: Array  # (C, H, W), or (H, W, C) in 8 bits


class UnreadImage(NamedTuple):
    name: str
    error: ImageError


class ImageReader:
    """How one image is read for a runtime, and how a batch of what was read is run."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        preprocess = runtime.preprocess
        self._values: Callable[[Source], Array] = preprocess
        self.run: Run = runtime.run
        if runtime.takes == "images":
            self._values, self.run = partial(_full_image, preprocess), runtime.run_uint8
        elif runtime.takes == "uint8" and preprocess.is_8bit:
            # Scaled decoding asks for speed, not for the same bits: a runtime may then resize in a way of its own.
            own = runtime.resample if preprocess.scaled_decoding else None
            self._values, self.run = partial(preprocess.to_uint8, resample=own), runtime.run_uint8

    def read(self, numbered: tuple[int, Source | Named]) -> ReadImage | UnreadImage:
        row, item = numbered
        if isinstance(item, Named):
            name, image = item
        else:
            image = item
            name = str(os.fspath(item)) if isinstance(item, str | os.PathLike) else f"image {row}"
        if isinstance(image, ImageError):
            return UnreadImage(name, image)
        try:
            return ReadImage(row, name, self._values(image))
        except ImageError as error:
            return UnreadImage(name, error)


def _full_image(preprocess: Preprocess, image: Source) -> Array:
    """All of an image, uint8 (H, W, C): for a runtime that resizes by itself."""
    values = np.asarray(decode(image, "L" if preprocess.channels == 1 else "RGB"))
    return values if values.ndim == 3 else values[:, :, None]
