"""Images through a runtime: read ahead by threads, run a batch at a time, handed on in order.

Whatever the number of images, at most two batches of them are held: the one the network works on, and the next; and
as many near ties, until they are decided.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from typing import Any, NoReturn, TypeAlias

import numpy as np
from PIL import Image

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.images import Source, check_image_stream
from vitrail.inference.batch_runner import Answering, Passed, Waiting
from vitrail.inference.image_reader import Named, Readable, Skip
from vitrail.inference.prefetch import Ahead
from vitrail.inference.runtime import Runtime, check_runtime

Array = np.ndarray[Any, Any]
Images = Sequence[Source] | Array  # an array of images is (n, H, W) or (n, H, W, C)
Done = Callable[[int], None]  # told how many more images are done
Stream: TypeAlias = "Iterable[Source | Named]"
Numbered: TypeAlias = "tuple[int, Source | Named]"

PATIENCE = 8  # batches that wait, at most, until there are near ties for a batch of their own


def passes(
    runtime: Runtime,
    images: Stream,
    *,
    batch: int = 64,
    threads: int = 2,
    skip: Skip | None = None,
    done: Done | None = None,
    settled: bool = False,
) -> Generator[Passed, None, None]:
    """Every image once. One that cannot be read raises ImageError, or is told to `skip` and left out.

    The images may come from any iterable, however long; it is drawn from in the reading threads, by one at a time, or
    where each thread runs images of its own, the first batch in this one.
    A runtime with `run_bytes` is given 8-bit values of ordinary images, another the pixels. Where classes are asked
    for, let near ties be `settled`: images decoded at a part of their size are then decoded in full and run again; by
    its `sure` network, if a runtime has a quick and a sure one, so that no image is run more than twice.
    """
    check_runtime(runtime)
    check_image_stream(images)
    check_int("batch", batch, error=InputError)
    check_int("threads", threads, 1, 256, error=InputError)
    if getattr(runtime, "takes_whole", False):
        batch = 1  # whole images have sizes of their own
    settled = settled and runtime.preprocess.scaled_decoding and not getattr(runtime, "takes_whole", False)
    way = _side_by_side if _fits_all(runtime, batch, threads) else _in_turn
    return way(runtime, images, batch, threads, skip, done, settled)


# ---- read by threads, run by all of them ---------------------------------------------------------------------------


def _in_turn(
    runtime: Runtime, images: Stream, batch: int, threads: int, skip: Skip | None, done: Done | None, settled: bool
) -> Generator[Passed, None, None]:
    asked = Answering(runtime, settled)
    waiting: list[Waiting] = []
    with closing(_batches(asked, images, batch, threads, skip, done)) as batches:
        try:
            for each in batches:
                waiting.append(each)
                unsettled = sum(len(each.ties) for each in waiting)
                if not 0 < unsettled < batch or len(waiting) >= PATIENCE:
                    ready, waiting = waiting, []
                    yield from asked.settle(ready, batch, threads)
        except Exception:  # what came before it is handed on first
            ready, waiting = waiting, []
            yield from asked.settle(ready, batch, threads)
            raise
    yield from asked.settle(waiting, batch, threads)


def _batches(
    asked: Answering, images: Stream, batch: int, threads: int, skip: Skip | None, done: Done | None
) -> Generator[Waiting, None, None]:
    """Every batch, run once, and its near ties."""
    # Where readers alone fill the machine, they and the network take turns: side by side they only hold each other up.
    held = min(max(batch, threads), 2 * batch) if threads >= _cores() else 2 * batch
    with Ahead(enumerate(images), lambda item: asked.read(*item), threads, held) as ahead:
        while found := ahead.take(batch):
            readable = Readable.of(found, skip is not None)
            del found
            readable.tell(skip)
            if readable.kept:
                yield asked.run(readable.kept)
            if readable.failed is not None:
                raise readable.failed
            ahead.used(readable.drawn)
            if done is not None:
                done(readable.drawn)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- read and run by each thread -----------------------------------------------------------------------------------


def _fits_all(runtime: Any, batch: int, threads: int) -> bool:
    """Whether there is a reader for each core, and the runtime may be asked by each of them."""
    return 1 < threads <= batch and threads == _cores() and getattr(runtime, "alone", None) is not None


def _side_by_side(
    runtime: Runtime, images: Stream, batch: int, threads: int, skip: Skip | None, done: Done | None, settled: bool
) -> Generator[Passed, None, None]:
    """By each thread if there are files for a whole batch: few are answered sooner by all threads together, and
    images in memory, frames of a video or a camera, would be held, and waited for, longer than they need.
    """
    first, all_of_them = _looked_into(images, batch)
    way = _by_each if len(first) == batch and all(map(_is_file, first)) else _in_turn
    yield from way(runtime, all_of_them, batch, threads, skip, done, settled)


def _is_file(item: Source | Named) -> bool:
    """Whether an image takes little memory until it is read."""
    return not isinstance(item.image if isinstance(item, Named) else item, Image.Image | np.ndarray)


def _looked_into(items: Stream, count: int) -> tuple[list[Source | Named], Iterator[Source | Named]]:
    """The first few, and all of them; whatever drawing raises is raised where it was."""
    drawn: list[Source | Named] = []
    rest = iter(items)
    try:
        for item in islice(rest, count):
            drawn.append(item)
            if not _is_file(item):
                break
    except Exception as error:
        rest = map(_throw, [error])
    return drawn, chain(drawn, rest)


def _throw(error: Exception) -> NoReturn:
    raise error


def _by_each(
    runtime: Any, images: Stream, batch: int, threads: int, skip: Skip | None, done: Done | None, settled: bool
) -> Generator[Passed, None, None]:
    """A part of a batch by each thread: read, run, and its near ties decided. None waits for another."""
    asked, alone = Answering(runtime, settled), runtime.alone()
    part = batch // threads

    def work(items: list[Numbered]) -> tuple[list[Passed], Readable]:
        alone()
        readable = Readable.of([asked.read(*item) for item in items], skip is not None)
        try:
            return list(asked.settle([asked.run(readable.kept)], part, 1)) if readable.kept else [], readable
        except Exception as error:  # in its place, and after what could not be read has been told
            return [], readable._replace(failed=error)

    with Ahead(_parts(enumerate(images), part), work, threads, 2 * threads) as ahead:
        while found := ahead.take(1):
            [(passed, readable)] = found
            readable.tell(skip)
            yield from passed
            if readable.failed is not None:
                raise readable.failed
            ahead.used(1)
            if done is not None:
                done(readable.drawn)


def _parts(items: Iterable[Numbered], size: int) -> Iterator[list[Numbered]]:
    """Items, so many at a time; an image in memory ends a part, and where one cannot be drawn, those before it come
    first.
    """
    part: list[Numbered] = []
    try:
        for item in items:
            part.append(item)
            if len(part) == size or not _is_file(item[1]):
                yield part
                part = []
    except GeneratorExit:
        raise
    except BaseException:
        if part:
            yield part
        raise
    if part:
        yield part
