"""Pictures through a runtime: read ahead by threads, run a batch at a time, handed on in order.

Whatever the number of pictures, at most two batches of them are held: the one the network works on, and the next; and
as many near ties, until they are decided.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
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
from vitrail.inference.settling import CLEAR, near_ties, settle

Array = np.ndarray[Any, Any]
Images = Sequence[Source] | Array  # an array of pictures is (n, H, W) or (n, H, W, C)
Skip = Callable[[str, ImageError], None]  # told of a picture that could not be read
Done = Callable[[int], None]  # told how many more pictures are done


class Named(NamedTuple):
    """A picture and what to call it; or, where the picture could not even be found, why."""

    name: str
    image: Source | ImageError


PATIENCE = 8  # batches that wait, at most, until there are near ties for a batch of their own

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


class _Tie(NamedTuple):
    """A picture whose likeliest classes are too close to call: what was seen of it, and where to see it in full."""

    values: Array
    file: _File | None


class _Waiting(NamedTuple):
    """A batch that was run, and its near ties by place; those of several are decided at once, which takes less time."""

    passed: Passed
    ties: dict[int, _Tie]


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
    for, let near ties be `settled`: pictures decoded at a part of their size are then decoded in full and run again; by
    its `sure` network, if a runtime has a quick and a sure one, so that no picture is run more than twice.
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
    # Two networks: one that is quick, and one that is sure.
    two = settled and hasattr(runtime, "quick") and hasattr(runtime, "sure") and getattr(runtime, "clear", 1.0) > 1
    waiting: list[_Waiting] = []
    with closing(_batches(runtime, images, batch, threads, skip, done, settled, two)) as batches:
        try:
            for each in batches:
                waiting.append(each)
                unsettled = sum(len(each.ties) for each in waiting)
                if not 0 < unsettled < batch or len(waiting) >= PATIENCE:
                    ready, waiting = waiting, []
                    yield from _settled(ready, runtime, batch, threads, two)
        except Exception:  # what came before it is handed on first
            ready, waiting = waiting, []
            yield from _settled(ready, runtime, batch, threads, two)
            raise
    yield from _settled(waiting, runtime, batch, threads, two)


def _batches(
    runtime: Runtime,
    images: Stream,
    batch: int,
    threads: int,
    skip: Skip | None,
    done: Done | None,
    settled: bool,
    two: bool,
) -> Generator[_Waiting, None, None]:
    """Every batch, run once, and its near ties, if they are to be settled."""
    make, run = _ways(runtime.quick if two else runtime, runtime.preprocess)  # type: ignore[attr-defined]
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
                passed = Passed(np.array(rows), names, *_checked(run(values), len(rows), runtime))
                near = near_ties(passed.logits, runtime.task, _clear(runtime, two)) if settled else np.zeros(0)
                ties = {int(place): _Tie(values[place].copy(), files[place]) for place in np.flatnonzero(near)}
                del values, files
                yield _Waiting(passed, ties)
            if failed is not None:
                raise failed
            ahead.used(count)
            if done is not None:
                done(count)


def _clear(runtime: Runtime, two: bool) -> float:
    """What is no near tie, in times as likely as the next: by scaled decoding, or by the network, whichever is more."""
    return max(CLEAR, runtime.clear) if two else CLEAR  # type: ignore[attr-defined]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _settled(waiting: list[_Waiting], runtime: Runtime, batch: int, threads: int, two: bool) -> Iterator[Passed]:
    """What was passed, near ties decided by the full picture; of two networks by the sure one, whatever it sees."""
    if not any(each.ties for each in waiting):
        yield from (each.passed for each in waiting)
        return
    full = replace(runtime.preprocess, scaled_decoding=False)
    make, run = _ways(runtime.sure if two else runtime, full)  # type: ignore[attr-defined]
    ties = {(number, place): tie for number, each in enumerate(waiting) for place, tie in each.ties.items()}

    def read(tie: _Tie) -> Array | None:
        seen = tie.values if two else None
        if tie.file is None or not tie.file.same:  # changed since, or gone: what was read of it must do
            return seen
        try:
            values = make(tie.file.source)
        except ImageError:
            return seen
        return seen if np.array_equal(values, tie.values) else values

    def rerun(again: Array) -> tuple[Array, Array]:
        parts = [again[first : first + batch] for first in range(0, len(again), batch)]
        logits, embedding = zip(*(_checked(run(part), len(part), runtime) for part in parts), strict=True)
        return np.concatenate(logits), np.concatenate(embedding)

    with ThreadPoolExecutor(threads) as pool:
        again = dict(zip(ties, pool.map(read, ties.values()), strict=True))
    answers = settle([each.passed[2:] for each in waiting], again, rerun)
    for each, (logits, embedding) in zip(waiting, answers, strict=True):
        yield each.passed._replace(logits=logits, embedding=embedding)


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
