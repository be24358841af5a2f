"""The loader: views, targets and a plan -> batches of pixels and targets, prepared ahead in threads, on any device.

The plan says which images make up which step. What a batch holds is a function of the plan and the seed: the same
bits for any number of threads, and from whichever step on it is asked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitrail.checks import check_int, check_number
from vitrail.data.augmentation import Augment, augment_images
from vitrail.data.cache import Views, normalise
from vitrail.data.counter_rng import uniform
from vitrail.data.mixing import mix_batch, one_hot
from vitrail.errors import InputError
from vitrail.images import Preprocess
from vitrail.threads import threads_alone
from vitrail.types import Array

_NAME: Final = "vitrail-loader"
_PINS: Final = ("cuda", "xpu")  # devices with a memory of their own: they copy from pinned memory while they compute

Prepared = TypeVar("Prepared")


class BatchRows(NamedTuple):
    """The images of one step, by their rows among the views."""

    epoch: int
    step: int
    rows: Array  # (B,)
    repeats: Array | None = None  # how often each came before in this epoch: each time it looks different


class Batch(NamedTuple):
    """What one step sees."""

    rows: Array  # (B,)
    pixels: Tensor  # (B, C, H, W) float32
    targets: Tensor  # (B, K) float32


class _Collected(NamedTuple):
    """The images of a step before they are pixels: 8-bit where they can be, a quarter of the bytes to move."""

    step: BatchRows
    images: Tensor  # (B, C, H, W) uint8 or float32
    targets: Tensor  # (B, K) float32


# ---- which images, in which order ------------------------------------------------------------------------------


def epoch_order(seed: int, epoch: int, count: int) -> Array:
    """The rows of an epoch in their order, each once."""
    return _shuffled(seed, "order", epoch, np.arange(count))


def balanced_order(labels: Array, seed: int, epoch: int, count: int) -> Array:
    """`count` rows in random order, each class equally often (but for one more where they do not divide).

    The images of a class come round in turn, each round in another order, so that none is left out for long.
    """
    if labels.ndim != 1 or not len(labels):
        raise InputError(f"labels: expected one class number an image, got shape {labels.shape}: balance needs (n,)")
    present = np.unique(labels)
    lucky = _shuffled(seed, "balance classes", epoch, present)  # who gets one more
    share = np.full(len(present), count // len(present))
    share[lucky[: count % len(present)]] += 1
    drawn = []
    for label, wanted in zip(present.tolist(), share.tolist(), strict=True):
        rows = np.flatnonzero(labels == label)
        rounds = -(-wanted // len(rows))
        chances = uniform(seed, "balance rows", epoch, rows, rounds)  # (rows, rounds)
        drawn.append(rows[np.argsort(chances, axis=0, kind="stable")].T.ravel()[:wanted])
    rows = np.concatenate(drawn)
    return np.asarray(rows[_shuffled(seed, "balance order", epoch, np.arange(count))])


def _shuffled(seed: int, stream: str, epoch: int, indices: Array) -> Array:
    """The places of these indices in a random order."""
    return np.argsort(uniform(seed, stream, epoch, indices, 1)[:, 0], kind="stable")


def repeats(rows: Array) -> Array:
    """How often each row stood earlier in the list: 0 everywhere in an order that holds each once."""
    by_row = np.argsort(rows, kind="stable")
    same = rows[by_row]
    first = np.searchsorted(same, same)  # where the run of each row begins
    count = np.empty(len(rows), np.int64)
    count[by_row] = np.arange(len(rows)) - first
    return count


# ---- batches -----------------------------------------------------------------------------------------------------


def batches(
    views: Views,
    targets: Array,
    plan: Iterable[BatchRows],
    *,
    preprocess: Preprocess,
    augment: Augment,
    seed: int,
    classes: int,
    smoothing: float = 0.0,
    threads: int = 1,
    ahead: int = 2,
    device: torch.device | None = None,
) -> Generator[Batch, None, None]:
    """The batches of a plan, in its order, `ahead` of them prepared in `threads` background threads (0: in line).

    On a device other than the cpu images are normalised and mixed there, and the next batch is on its way while one
    is learned from. Targets are class numbers (n,), or 0 and 1 for several labels (n, K). What goes wrong in a thread
    is raised here; a file that can no longer be read is an InputError that names it. Closing the iterator, or losing
    it, ends the threads.
    """
    if len(targets) != len(views):
        raise InputError(f"targets: expected one for each of {len(views)} images, got {len(targets)}")
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[1] != classes):
        raise InputError(f"targets: expected (n,) or (n, {classes}), got {targets.shape}")
    smoothing = check_number("smoothing", smoothing, 0.0, 1.0)
    check_int("threads", threads, 0, 1024, error=InputError)
    check_int("ahead", ahead, 0, 1024, error=InputError)

    def collect(step: BatchRows) -> _Collected:
        images = views.get(step.rows)
        if augment.changes:
            chosen = step.rows if step.repeats is None else step.rows + step.repeats * len(views)
            images = augment_images(images, preprocess.size, augment, seed=seed, epoch=step.epoch, rows=chosen)
        return _Collected(step, images, _wanted(targets[step.rows], classes, smoothing))

    def finish(collected: _Collected) -> Batch:
        (epoch, number, rows, _), images, wanted = collected
        pixels = normalise(images, preprocess)
        return Batch(rows, *mix_batch(pixels, wanted, augment, seed=seed, epoch=epoch, step=number))

    ahead, there = max(ahead, threads), device or torch.device("cpu")
    if there.type == "cpu":
        return _ahead(lambda step: finish(collect(step)), plan, threads, ahead)
    return _moved_ahead(_ahead(lambda step: _pinned(collect(step), there), plan, threads, ahead), there, finish)


def _pinned(collected: _Collected, device: torch.device) -> _Collected:
    """What a device can take by itself while it computes; some know no float64."""
    step, images, wanted = collected
    images = images if images.dtype == torch.uint8 else images.float()
    if device.type in _PINS:
        return _Collected(step, images.pin_memory(), wanted.pin_memory())
    return _Collected(step, images, wanted)


def _moved_ahead(
    feed: Generator[_Collected, None, None], device: torch.device, finish: Callable[[_Collected], Batch]
) -> Generator[Batch, None, None]:
    """Batches on the device; each is sent there before the one in front of it is learned from."""
    with closing(feed):
        before: Batch | None = None
        for step, images, wanted in feed:
            there = _Collected(step, images.to(device, non_blocking=True), wanted.to(device, non_blocking=True))
            moving = finish(there)
            if before is not None:
                yield before
            before = moving
        if before is not None:
            yield before


def _wanted(targets: Array, classes: int, smoothing: float) -> Tensor:
    """Targets (B, K) float32; smoothed labels of several move towards a half, of one towards all classes alike."""
    if targets.ndim == 1:
        return one_hot(torch.from_numpy(targets), classes, smoothing)
    return torch.from_numpy(targets.astype(np.float32)) * (1 - smoothing) + smoothing / 2


def _ahead(
    prepare: Callable[[BatchRows], Prepared], plan: Iterable[BatchRows], threads: int, ahead: int
) -> Generator[Prepared, None, None]:
    """Results in the order of the plan; a generator, so that its end in any way ends the pool."""
    if not threads:
        yield from map(prepare, plan)
        return
    # One torch thread in each, so that together they do not crowd out the network.
    pool = ThreadPoolExecutor(threads, _NAME, threads_alone())
    try:
        waiting: deque[Future[Prepared]] = deque()
        steps = iter(plan)
        while True:
            while len(waiting) < ahead + 1 and (step := next(steps, None)) is not None:
                waiting.append(pool.submit(prepare, step))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        # Rubbish is collected in whichever thread is running: one of the pool's own cannot wait for itself.
        pool.shutdown(wait=not threading.current_thread().name.startswith(_NAME), cancel_futures=True)
