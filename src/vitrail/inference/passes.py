"""Pictures through a runtime: read ahead by threads, run a batch at a time, handed on in order.

Whatever the number of pictures, at most two batches of them are held: the one the network works on, and the next.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from vitrail.checks import whole
from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess, Source, decode, streamed
from vitrail.inference.ahead import Ahead
from vitrail.inference.runtime import Runtime, check_runtime
from vitrail.inference.settling import settle

Array = np.ndarray[Any, Any]
Images = Sequence[Source] | Array  # an array of pictures is (n, H, W) or (n, H, W, C)
Skip = Callable[[str, ImageError], None]  # told of a picture that could not be read
Done = Callable[[int], None]  # told how many more pictures are done


class Named(NamedTuple):
    """A picture and what to call it; or, where the picture could not even be found, why."""

    name: str
    image: Source | ImageError


Stream: TypeAlias = "Iterable[Source | Named]"


class Passed(NamedTuple):
    """What the network made of some pictures; those that could not be read are missing."""

    rows: Array  # (B,) their numbers
    names: list[str]
    logits: Array  # (B, K)
    embedding: Array  # (B, D)


class _File(NamedTuple):
    """A picture to be read again, and what shows whether it is still the same one."""

    source: Source
    stamp: tuple[int, int] | None

    @classmethod
    def of(cls, source: Source) -> _File:
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


class _Read(NamedTuple):
    row: int
    name: str
    values: Array  # (C, H, W), or (H, W, C) of bytes
    file: _File | None  # what can be decoded another way, if it may have to be


class _Unread(NamedTuple):
    name: str
    error: ImageError


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
    """Every picture once. One that cannot be read raises ImageError, or is told to `skip` and left out.

    The pictures may come from any iterable, however long; it is drawn from in the reading threads, by one at a time.
    A runtime with `run_bytes` is given 8-bit values of ordinary pictures, another the pixels. Where classes are asked
    for, let near ties be `settled`: pictures decoded at a part of their size are then decoded in full and run again.
    """
    check_runtime(runtime)
    streamed(images)
    whole("batch", batch, error=InputError)
    whole("threads", threads, 1, 256, error=InputError)
    if getattr(runtime, "takes_whole", False):
        batch = 1  # whole pictures have sizes of their own
    settled = settled and runtime.preprocess.scaled_decoding and not getattr(runtime, "takes_whole", False)
    return _passes(runtime, images, batch, threads, skip, done, settled)


def _passes(
    runtime: Runtime, images: Stream, batch: int, threads: int, skip: Skip | None, done: Done | None, settled: bool
) -> Generator[Passed, None, None]:
    make, run = _ways(runtime, runtime.preprocess)
    # Where readers alone fill the machine, they and the network take turns: side by side they only hold each other up.
    held = min(max(batch, threads), 2 * batch) if threads >= _cores() else 2 * batch
    with Ahead(enumerate(images), lambda item: _read(make, settled, *item), threads, held) as ahead:
        while found := ahead.take(batch):
            count = len(found)
            kept, failed = _readable(found, skip)
            del found
            if kept:
                rows, names = [each.row for each in kept], [each.name for each in kept]
                values, files = np.stack([each.values for each in kept]), [each.file for each in kept]
                del kept  # the network may work long: nothing is held twice meanwhile
                answers = _checked(run(values), len(rows), runtime)
                if settled:
                    answers = _settled(answers, values, files, runtime, threads)
                del values, files
                yield Passed(np.array(rows), names, *answers)
            if failed is not None:
                raise failed
            ahead.used(count)
            if done is not None:
                done(count)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _settled(
    answers: tuple[Array, Array], values: Array, files: list[_File | None], runtime: Runtime, threads: int
) -> tuple[Array, Array]:
    """The answers, near ties decided by the full picture."""
    make, run = _ways(runtime, replace(runtime.preprocess, scaled_decoding=False))

    def read(place: int) -> Array | None:
        file = files[place]
        if file is None or not file.same:  # changed since, or gone: there is an answer already
            return None
        try:
            return make(file.source)
        except ImageError:
            return None

    def rerun(again: Array) -> tuple[Array, Array]:
        return _checked(run(again), len(again), runtime)

    with ThreadPoolExecutor(threads) as pool:
        return settle(answers, values, runtime.task, lambda places: pool.map(read, places), rerun)


def _ways(
    runtime: Runtime, preprocess: Preprocess
) -> tuple[Callable[[Source], Array], Callable[[Array], tuple[Array, Array]]]:
    """How one picture is read, and how a batch of what was read is run."""
    run_bytes: Callable[[Array], tuple[Array, Array]] | None = getattr(runtime, "run_bytes", None)
    if run_bytes is not None and getattr(runtime, "takes_whole", False):
        return partial(_whole, preprocess), run_bytes
    if run_bytes is not None and preprocess.ordinary:
        return preprocess.bytes, run_bytes
    return preprocess, runtime.run


def _whole(preprocess: Preprocess, image: Source) -> Array:
    """The whole picture, uint8 (H, W, C): for a runtime that resizes by itself."""
    values = np.asarray(decode(image, "L" if preprocess.channels == 1 else "RGB"))
    return values if values.ndim == 3 else values[:, :, None]


def _read(make: Callable[[Source], Array], keep: bool, row: int, item: Source | Named) -> _Read | _Unread:
    """The values of one picture; to keep it as well, it must be a file or bytes: all else is never scaled."""
    if isinstance(item, Named):
        name, image = item
    else:
        image = item
        name = str(os.fspath(item)) if isinstance(item, str | os.PathLike) else f"image {row}"
    if isinstance(image, ImageError):
        return _Unread(name, image)
    try:
        file = _File.of(image) if keep and not isinstance(image, Image.Image | np.ndarray) else None
        return _Read(row, name, make(image), file)
    except ImageError as error:
        return _Unread(name, error)


def _readable(found: list[_Read | _Unread], skip: Skip | None) -> tuple[list[_Read], ImageError | None]:
    """Those that were read; without `skip`, only those before the first that was not, and its error."""
    kept: list[_Read] = []
    for each in found:
        if isinstance(each, _Read):
            kept.append(each)
        elif skip is None:
            return kept, each.error
        else:
            skip(each.name, each.error)
    return kept, None


def _checked(answers: tuple[Array, Array], count: int, runtime: Runtime) -> tuple[Array, Array]:
    logits, embedding = answers
    if not len(logits) == len(embedding) == count:
        raise InputError(
            f"{type(runtime).__name__} gave {len(logits)} rows of logits and {len(embedding)} embeddings "
            f"for {count} pictures"
        )
    return logits, embedding
