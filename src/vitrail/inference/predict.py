"""predict and embed: a runtime and pictures -> labels with probabilities, or vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from vitrail.checks import whole
from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess, Source, several
from vitrail.inference.runtimes import runtime_of

Array = np.ndarray[Any, Any]
Images = Sequence[Source] | Array  # an array of pictures is (n, H, W) or (n, H, W, C)
Skip = Callable[[str, ImageError], None]  # told of a picture that could not be read
Done = Callable[[int], None]  # told how many more pictures are done


class Runtime(Protocol):
    """Anything that turns pixels into logits and embeddings: a checkpoint, an exported file, a packed network."""

    @property
    def preprocess(self) -> Preprocess: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def task(self) -> str: ...

    @property
    def temperature(self) -> float | None: ...

    @property
    def thresholds(self) -> tuple[float, ...] | None: ...

    @property
    def reject(self) -> float | None: ...

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D)."""


class Prediction(NamedTuple):
    """The likeliest classes of one picture, best first."""

    path: str
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]


def predict(
    runtime: Runtime | str | os.PathLike[str],
    images: Images,
    top: int = 5,
    batch: int = 16,
    skip: Skip | None = None,
    done: Done | None = None,
) -> list[Prediction]:
    """The `top` likeliest classes of every picture, in order, by a runtime or an exported file.

    Fewer, or none, where the checkpoint has thresholds or a reject threshold and its classes stay below them.
    A picture that cannot be read raises ImageError; give `skip` to be told of it and go on without it.
    """
    runtime = runtime_of(runtime)
    _check(runtime)
    if not runtime.classes:
        raise InputError("this network has no head, so it cannot predict: use embed, or train a head")
    whole("top", top, error=InputError)
    found: list[Prediction] = []
    for names, logits, _ in _run(runtime, images, batch, skip, done):
        for name, row in zip(names, probabilities(logits, runtime.task, runtime.temperature), strict=True):
            best = _answers(row, runtime)[:top]
            labels = tuple(runtime.classes[number] for number in best)
            found.append(Prediction(name, labels, tuple(float(row[number]) for number in best)))
    return found


def _answers(row: Array, runtime: Runtime) -> Array:
    """The classes to name, likeliest first: none where the checkpoint is not sure enough to answer."""
    best = np.argsort(-row, kind="stable")
    if runtime.reject is not None and row.max() < runtime.reject:
        return best[:0]
    return best if runtime.thresholds is None else best[row[best] >= np.asarray(runtime.thresholds)[best]]


def embed(
    runtime: Runtime | str | os.PathLike[str],
    images: Images,
    batch: int = 16,
    skip: Skip | None = None,
    done: Done | None = None,
) -> Array:
    """What the head receives for every picture, in order: float32 (n, D)."""
    runtime = runtime_of(runtime)
    _check(runtime)
    rows = [embedding for _, _, embedding in _run(runtime, images, batch, skip, done)]
    if not rows:
        raise InputError("no pictures to embed")
    return np.concatenate(rows)


def probabilities(logits: Array, task: str = "one", temperature: float | None = None) -> Array:
    """Softmax over the classes, or for several labels each class by itself; calibrated by the temperature if fitted."""
    scaled = logits.astype(np.float64) / (temperature or 1.0)
    if task == "several":
        return np.asarray(0.5 * (1 + np.tanh(scaled / 2)))  # the logistic function, without overflow
    raised = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=-1, keepdims=True))


def _check(runtime: Runtime) -> None:
    if not hasattr(runtime, "run") or not hasattr(runtime, "preprocess"):
        raise InputError(f"expected a checkpoint or another runtime, got {type(runtime).__name__}: see vitrail.load")


def _run(
    runtime: Runtime, images: Images, batch: int, skip: Skip | None, done: Done | None
) -> Iterator[tuple[list[str], Array, Array]]:
    """Names, logits and embeddings, a batch at a time."""
    several(images)
    whole("batch", batch, error=InputError)
    for start in range(0, len(images), batch):
        names: list[str] = []
        pixels: list[Array] = []
        for number, image in enumerate(images[start : start + batch], start):
            name = os.fspath(image) if isinstance(image, str | os.PathLike) else f"image {number}"
            try:
                pixels.append(runtime.preprocess(image))
                names.append(str(name))
            except ImageError as error:
                if skip is None:
                    raise
                skip(str(name), error)
        if pixels:
            yield names, *runtime.run(np.stack(pixels))
        if done is not None:
            done(min(batch, len(images) - start))
