"""predict, predictions and embed: a runtime and images -> labels with probabilities, or vectors."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing

import numpy as np

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.inference.answers import Prediction, answer, marked
from vitrail.inference.batches import BatchResult, Stream, run_batches
from vitrail.inference.image_inputs import ManyImages, PreparedPixels, as_images, count_of
from vitrail.inference.image_reader import Skip
from vitrail.inference.recognisers import as_runtime
from vitrail.inference.runtime import Runtime
from vitrail.progress import counting
from vitrail.types import Array, Device, ProgressCallback


def predict(
    runtime: Runtime | str | os.PathLike[str],
    images: ManyImages,
    top: int = 5,
    batch: int = 16,
    skip: Skip | None = None,
    done: ProgressCallback | None = None,
    threads: int = 2,
    decline: bool = False,
    trust: bool = False,
    progress: bool | None = None,
    device: Device | None = None,
) -> list[Prediction]:
    """The `top` likeliest classes of every image, in order, by a runtime or an exported file.

    Images come as a path, a folder (all images in it), a pattern such as photos/*.jpg; a PIL image, bytes, an open
    file; an array (H, W), (H, W, C) or (N, H, W, C); an 8-bit tensor (C, H, W) or (N, C, H, W); or a list or generator
    of these. A float tensor (B, C, H, W) is taken as pixels that `preprocess` has made already.

    Where the checkpoint has a threshold for each class, those that reach theirs. Every image has an answer: one below
    the checkpoint's minimum confidence is marked (`confident`, `needed`, `remark`); `decline` leaves its labels out.
    So is one of an image unlike anything the network was trained on (`unlike`, `familiarity`), unless you `trust` it.
    An image that cannot be read raises ImageError; give `skip` to be told of it and go on without it.

    - runtime: a Checkpoint, an exported file or any runtime, or the path of one, or a run's folder.
    - images: one image or many, in any of these forms; of one comes a list of one.
    - top: how many classes are named.
    - batch: images in a batch.
    - skip: a function that hears of images that cannot be read: name, error.
    - done: a function that hears how many more images are done.
    - threads: threads that read images.
    - decline: leave the labels of answers out that are not confident enough.
    - trust: do not look whether an image is unlike those of the training.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never.
    - device: where to compute, such as "auto", "cpu", "cuda:1" or "mps"; None: where it lies, of a path "auto".
    """
    runtime = as_runtime(runtime, device)
    stream = as_images(images, runtime.preprocess)
    with counting(done, progress, count_of(images, stream)) as told:
        return list(_answers(runtime, stream, top, batch, skip, told, threads, decline, trust))


def predictions(
    runtime: Runtime | str | os.PathLike[str],
    images: ManyImages,
    top: int = 5,
    batch: int = 16,
    skip: Skip | None = None,
    done: ProgressCallback | None = None,
    threads: int = 2,
    decline: bool = False,
    trust: bool = False,
    device: Device | None = None,
) -> Generator[Prediction, None, None]:
    """The same, one by one as they come, of any iterable of images, however long: a folder, a video, a camera.

    At most two batches of images are drawn ahead; a batch of 1 answers soonest.
    """
    runtime = as_runtime(runtime, device)
    stream = as_images(images, runtime.preprocess)
    return _answers(runtime, stream, top, batch, skip, done, threads, decline, trust)


def _answers(
    runtime: Runtime,
    stream: Stream | PreparedPixels,
    top: int,
    batch: int,
    skip: Skip | None,
    done: ProgressCallback | None,
    threads: int,
    decline: bool,
    trust: bool,
) -> Generator[Prediction, None, None]:
    if not runtime.classes:
        raise InputError("this network has no head, so it cannot predict: use embed, or train a head")
    check_int("top", top, error=InputError)
    results = run_batches(runtime, stream, batch=batch, threads=threads, skip=skip, done=done)
    return _predictions(runtime, results, top, decline, trust)


def _predictions(
    runtime: Runtime, results: Generator[BatchResult, None, None], top: int, decline: bool, trust: bool
) -> Generator[Prediction, None, None]:
    with closing(results):
        for _, names, logits, embedding in results:
            rows = probabilities(logits, runtime.task, runtime.temperature)
            answers = [answer(name, row, runtime, top, decline) for name, row in zip(names, rows, strict=True)]
            yield from answers if trust else marked(answers, embedding, runtime)


def embed(
    runtime: Runtime | str | os.PathLike[str],
    images: ManyImages,
    batch: int = 16,
    skip: Skip | None = None,
    done: ProgressCallback | None = None,
    threads: int = 2,
    progress: bool | None = None,
    device: Device | None = None,
) -> Array:
    """What the head receives for every image, in order: float32 (n, D).

    - runtime: a Checkpoint, an exported file or any runtime, or the path of one, or a run's folder.
    - images: one image or many, as `predict` takes them.
    - batch: images in a batch.
    - skip: a function that hears of images that cannot be read: name, error.
    - done: a function that hears how many more images are done.
    - threads: threads that read images.
    - progress: a bar on stderr; None: at a terminal and in a notebook, False: never.
    - device: where to compute, such as "auto", "cpu", "cuda:1" or "mps"; None: where it lies, of a path "auto".
    """
    runtime = as_runtime(runtime, device)
    stream = as_images(images, runtime.preprocess)
    with counting(done, progress, count_of(images, stream)) as told:
        results = run_batches(runtime, stream, batch=batch, threads=threads, skip=skip, done=told)
        rows = [each.embedding for each in results]
    if not rows:
        raise InputError("no images to embed")
    return np.concatenate(rows)


def probabilities(logits: Array, task: str = "single-label", temperature: float | None = None) -> Array:
    """Softmax over the classes, or for several labels each class by itself; calibrated by the temperature if fitted."""
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    if task == "multi-label":
        return np.asarray(0.5 * (1 + np.tanh(scaled / 2)))  # the logistic function, without overflow
    raised = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))
