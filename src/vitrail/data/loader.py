"""The loader: views, targets and a plan -> batches of pixels and targets, prepared ahead in threads.

The plan says which images make up which step. What a batch holds is a function of the plan and the seed: the same
bits for any number of threads, and from whichever step on it is asked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

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
) -> Generator[Batch, None, None]:
    """The batches of a plan, in its order, `ahead` of them prepared in `threads` background threads (0: in line).

    Targets are class numbers (n,), or 0 and 1 for several labels (n, K). What goes wrong in a thread is raised here;
    a file that can no longer be read is an InputError that names it. Closing the iterator, or losing it, ends the
    threads.
    """
    if len(targets) != len(views):
        raise InputError(f"targets: expected one for each of {len(views)} images, got {len(targets)}")
    if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[1] != classes):
        raise InputError(f"targets: expected (n,) or (n, {classes}), got {targets.shape}")
    smoothing = check_number("smoothing", smoothing, 0.0, 1.0)
    check_int("threads", threads, 0, 1024, error=InputError)
    check_int("ahead", ahead, 0, 1024, error=InputError)

    def prepare(step: BatchRows) -> Batch:
        images = views.get(step.rows)
        if augment.changes:
            chosen = step.rows if step.repeats is None else step.rows + step.repeats * len(views)
            images = augment_images(images, preprocess.size, augment, seed=seed, epoch=step.epoch, rows=chosen)
        pixels = normalise(images, preprocess)
        wanted = _wanted(targets[step.rows], classes, smoothing)
        return Batch(step.rows, *mix_batch(pixels, wanted, augment, seed=seed, epoch=step.epoch, step=step.step))

    return _ahead(prepare, plan, threads, max(ahead, threads)) if threads else (prepare(step) for step in plan)


def _wanted(targets: Array, classes: int, smoothing: float) -> Tensor:
    """Targets (B, K) float32; smoothed labels of several move towards a half, of one towards all classes alike."""
    if targets.ndim == 1:
        return one_hot(torch.from_numpy(targets), classes, smoothing)
    return torch.from_numpy(targets.astype(np.float32)) * (1 - smoothing) + smoothing / 2


def _ahead(
    prepare: Callable[[BatchRows], Batch], plan: Iterable[BatchRows], threads: int, ahead: int
) -> Generator[Batch, None, None]:
    """Results in the order of the plan; a generator, so that its end in any way ends the pool."""
    # One torch thread in each, so that together they do not crowd out the network.
    pool = ThreadPoolExecutor(threads, _NAME, threads_alone())
    try:
        waiting: deque[Future[Batch]] = deque()
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
