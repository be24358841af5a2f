"""Pictures through a runtime: read by threads, run a batch at a time, handed on in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from vitrail.checks import whole
from vitrail.errors import ImageError, InputError
from vitrail.images import Source, several
from vitrail.inference import Runtime
from vitrail.inference.predict import Done, Images, Skip

Array = np.ndarray[Any, Any]


class Passed(NamedTuple):
    """What the network made of some pictures; those that could not be read are missing."""

    rows: Array  # (B,) their numbers
    logits: Array  # (B, K)
    embedding: Array  # (B, D)


def passes(
    runtime: Runtime,
    images: Images,
    names: Sequence[str],
    *,
    batch: int = 64,
    threads: int = 2,
    skip: Skip | None = None,
    done: Done | None = None,
) -> Iterator[Passed]:
    """Every picture once. One that cannot be read raises ImageError, or is told to `skip` and left out."""
    if not hasattr(runtime, "run") or not hasattr(runtime, "preprocess"):
        raise InputError(f"expected a checkpoint or another runtime, got {type(runtime).__name__}: see vitrail.load")
    several(images)
    whole("batch", batch, error=InputError)
    whole("threads", threads, error=InputError)
    with ThreadPoolExecutor(threads) as pool:

        def start(first: int) -> list[Future[Array | ImageError]]:
            rows = range(first, min(first + batch, len(images)))
            return [pool.submit(_read, runtime, images[row]) for row in rows]

        try:
            reading = start(0)
            for first in range(0, len(images), batch):
                found = [future.result() for future in reading]
                reading = start(first + batch)  # read on while the network works
                kept: dict[int, Array] = {}
                for row, pixels in enumerate(found, first):
                    if not isinstance(pixels, ImageError):
                        kept[row] = pixels
                    elif skip is None:
                        raise pixels
                    else:
                        skip(names[row], pixels)
                if kept:
                    yield Passed(np.array(list(kept)), *runtime.run(np.stack(list(kept.values()))))
                if done is not None:
                    done(len(found))
        finally:
            pool.shutdown(cancel_futures=True)


def _read(runtime: Runtime, image: Source) -> Array | ImageError:
    try:
        return runtime.preprocess(image)
    except ImageError as error:
        return error
