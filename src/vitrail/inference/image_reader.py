"""Images, one by one, as a runtime takes them: a source in; its values, or why it has none, out."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitrail.errors import ImageError
from vitrail.images import Preprocess, Source, decode
from vitrail.inference.runtime import Runtime

Array = np.ndarray[Any, Any]
Skip = Callable[[str, ImageError], None]  # told of an image that could not be read
Make = Callable[[Source], Array]
Run = Callable[[Array], tuple[Array, Array]]  # what was made of some images -> logits and embedding


class Named(NamedTuple):
    """An image and what to call it; or, where the image could not even be found, why."""

    name: str
    image: Source | ImageError


class File(NamedTuple):
    """An image to be read again, and what shows whether it is still the same one."""

    source: Source
    stamp: tuple[int, int] | None

    @classmethod
    def of(cls, source: Source) -> File:
        return cls(source, _stamp(source))

    @property
    def same(self) -> bool:
        return _stamp(self.source) == self.stamp


def _stamp(source: Source) -> tuple[int, int] | None:
    """Time and size of a file; None for one that is not there, and for bytes, which stay as they are."""
    if not isinstance(source, str | os.PathLike):
        return None
    with suppress(OSError):
        found = os.stat(source)
        return found.st_mtime_ns, found.st_size
    return None


class Read(NamedTuple):
    row: int
    name: str
    values: Array  # (C, H, W), or (H, W, C) of bytes
    file: File | None  # what can be decoded another way, if it may have to be


class Unread(NamedTuple):
    name: str
    error: ImageError


class Readable(NamedTuple):
    """Images that were read, those that were not, and why no more are."""

    kept: list[Read]
    unread: list[Unread]
    failed: Exception | None
    drawn: int  # all of them

    @classmethod
    def of(cls, found: list[Read | Unread], skipping: bool) -> Readable:
        """Without `skipping`, only those before the first that was not read, and its error."""
        kept: list[Read] = []
        unread: list[Unread] = []
        for each in found:
            if isinstance(each, Read):
                kept.append(each)
            elif not skipping:
                return cls(kept, [], each.error, len(found))
            else:
                unread.append(each)
        return cls(kept, unread, None, len(found))

    def tell(self, skip: Skip | None) -> None:
        if skip is not None:
            for each in self.unread:
                skip(each.name, each.error)


def ways(runtime: Runtime, preprocess: Preprocess) -> tuple[Make, Run]:
    """How one image is read, and how a batch of what was read is run."""
    run_bytes: Run | None = getattr(runtime, "run_bytes", None)
    if run_bytes is not None and getattr(runtime, "takes_whole", False):
        return partial(_whole, preprocess), run_bytes
    if run_bytes is not None and preprocess.is_8bit:
        # Scaled decoding asks for speed, not for the same bits: a runtime may then resize in a way of its own.
        own = getattr(runtime, "resample", None) if runtime.preprocess.scaled_decoding else None
        return partial(preprocess.to_uint8, resample=own), run_bytes
    return preprocess, runtime.run


def _whole(preprocess: Preprocess, image: Source) -> Array:
    """The whole image, uint8 (H, W, C): for a runtime that resizes by itself."""
    values = np.asarray(decode(image, "L" if preprocess.channels == 1 else "RGB"))
    return values if values.ndim == 3 else values[:, :, None]


def read(make: Make, keep: bool, row: int, item: Source | Named) -> Read | Unread:
    """The values of one image; to keep it as well, it must be a file or bytes: all else is never scaled."""
    if isinstance(item, Named):
        name, image = item
    else:
        image = item
        name = str(os.fspath(item)) if isinstance(item, str | os.PathLike) else f"image {row}"
    if isinstance(image, ImageError):
        return Unread(name, image)
    try:
        file = File.of(image) if keep and not isinstance(image, Image.Image | np.ndarray) else None
        return Read(row, name, make(image), file)
    except ImageError as error:
        return Unread(name, error)
