"""Images through a runtime: read ahead by threads, run a batch at a time, handed on in order.

Whatever the number of images, at most two batches of them are held: the one the network works on, and the next.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from vitrail.checks import check_int
from vitrail.cores import usable_cores
from vitrail.errors import ImageError, InputError
from vitrail.images import Source, check_image_stream
from vitrail.inference.image_inputs import PreparedPixels
from vitrail.inference.image_reader import ImageReader, Named, ReadImage, Skip, UnreadImage
from vitrail.inference.prefetch import Prefetcher
from vitrail.inference.runtime import Runtime, check_runtime
from vitrail.types import Array, ProgressCallback

Images = Sequence[Source] | Array  # an array of images is (n, H, W) or (n, H, W, C)
Stream: TypeAlias = "Iterable[Source | Named]"


class BatchResult(NamedTuple):
    """What the network made of some images; those that could not be read are missing."""

    rows: Array  # (B,) their numbers
    names: list[str]
    logits: Array  # (B, K)
    embedding: Array  # (B, D)


def run_batches(
    runtime: Runtime,
    images: Stream | PreparedPixels,
    *,
    batch: int = 64,
    threads: int = 2,
    skip: Skip | None = None,
    done: ProgressCallback | None = None,
    cores: int | None = None,
) -> Generator[BatchResult, None, None]:
    """Every image once. One that cannot be read raises ImageError, or is told to `skip` and left out.

    The images may come from any iterable, however long; it is drawn from in the reading threads, by one at a time.
    `cores` is how many the readers and the network have between them; None: all that the process may use.
    """
    check_runtime(runtime)
    if not isinstance(images, PreparedPixels):
        check_image_stream(images)
    check_int("batch", batch, error=InputError)
    check_int("threads", threads, 1, 256, error=InputError)
    if isinstance(images, PreparedPixels):
        return _pixel_results(runtime, images.values, batch, done)
    if runtime.takes == "images":
        batch = 1  # full images have sizes of their own
    return _results(runtime, images, batch, threads, skip, done, cores or _cores())


def _pixel_results(
    runtime: Runtime, pixels: Array, batch: int, done: ProgressCallback | None
) -> Generator[BatchResult, None, None]:
    """Pixels (N, C, H, W) that nobody has to read."""
    for start in range(0, len(pixels), batch):
        rows = np.arange(start, min(start + batch, len(pixels)))
        yield BatchResult(rows, [f"image {row}" for row in rows], *runtime.run(pixels[rows]))
        if done is not None:
            done(len(rows))


def _results(
    runtime: Runtime,
    images: Stream,
    batch: int,
    threads: int,
    skip: Skip | None,
    done: ProgressCallback | None,
    cores: int,
) -> Generator[BatchResult, None, None]:
    reader = ImageReader(runtime)
    # Where readers alone fill the machine, they and the network take turns: side by side they only hold each other up.
    held = min(max(batch, threads), 2 * batch) if threads >= cores else 2 * batch
    with Prefetcher(enumerate(images), reader.read, threads, held) as prefetcher:
        while outcomes := prefetcher.take(batch):
            drawn = len(outcomes)
            read, error = _readable(outcomes, skip)
            del outcomes  # the network may work long, and nothing is held twice meanwhile
            if read:
                yield _run(reader, read)
            if error is not None:
                raise error
            prefetcher.used(drawn)
            if done is not None:
                done(drawn)


def _readable(outcomes: list[ReadImage | UnreadImage], skip: Skip | None) -> tuple[list[ReadImage], ImageError | None]:
    """Those that were read; where nobody is to be told of the others, those before the first of them, and its error."""
    images: list[ReadImage] = []
    for outcome in outcomes:
        if isinstance(outcome, ReadImage):
            images.append(outcome)
        elif skip is None:
            return images, outcome.error
        else:
            skip(outcome.name, outcome.error)
    return images, None


def _run(reader: ImageReader, images: list[ReadImage]) -> BatchResult:
    """The list is emptied, for the same reason."""
    rows, names = np.array([each.row for each in images]), [each.name for each in images]
    values = np.stack([each.values for each in images])
    images.clear()
    logits, embedding = reader.run(values)
    if not len(logits) == len(embedding) == len(rows):
        raise InputError(
            f"{type(reader.runtime).__name__} gave {len(logits)} rows of logits and {len(embedding)} embeddings "
            f"for {len(rows)} images"
        )
    return BatchResult(rows, names, logits, embedding)


def _cores() -> int:
    return usable_cores().threads
