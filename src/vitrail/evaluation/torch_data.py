"""A torch Dataset or DataLoader, or any pairs of image and label -> logits (n, K) and targets, for `evaluate`.

torch is not imported here: whoever hands its tensors over has done so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.checks import check_int, join_limited, short_repr
from vitrail.data.classes import differing
from vitrail.errors import InputError, nearest
from vitrail.inference import Runtime
from vitrail.inference.batches import run_batches
from vitrail.inference.image_inputs import check_normalised
from vitrail.inference.image_reader import Named, Skip
from vitrail.progress import counting
from vitrail.types import Array, ProgressCallback

EXPECTED: Final = "a pair (image, label): a PIL image, an 8-bit array or pixels (C, H, W), and a number or a name"
IMAGES: Final = ("image", "pixel_values", "img", "pixels")  # what data sets call them that give dicts
LABELS: Final = ("label", "labels", "target", "targets")
NO_DATA: Final = (str, bytes, os.PathLike, Mapping, np.ndarray)


class LabelledAnswers(NamedTuple):
    """What a network said of images as they came, and what it should have said."""

    names: list[str]
    logits: Array  # (n, K)
    embedding: Array  # (n, D)
    targets: Array  # (n,), or (n, K) for several labels
    caveat: str = ""  # what limits the scores that follow


class Pace(NamedTuple):
    """How images are run, and who is told of it."""

    batch: int
    threads: int
    skip: Skip
    done: ProgressCallback | None
    progress: bool | None = None  # whether there is a bar where nobody else listens


def is_torch_data(data: object) -> bool:
    """Whether images and labels can be drawn from it, one pair or one batch after another."""
    draws = hasattr(data, "__iter__") or (hasattr(data, "__getitem__") and hasattr(data, "__len__"))
    return draws and not isinstance(data, NO_DATA)


def name_of(data: object) -> str:
    """What to call it: ImageFolder photos/val."""
    inner = _innermost(data)
    root = getattr(inner, "root", "")
    return f"{type(inner).__name__} {root}".strip() if isinstance(root, str | os.PathLike) else type(inner).__name__


def judge_pairs(runtime: Runtime, data: Any, pace: Pace) -> LabelledAnswers:
    """Every image once. All of them are images for the preprocess, or all of them prepared pixels."""
    check_int("batch", pace.batch, error=InputError)
    labels = Labels(runtime, data)
    pairs = iter(_pairs(data))
    first = next(pairs, None)
    if first is None:
        raise InputError(f"{name_of(data)} has no images")
    truth: list[Any] = []

    def images() -> Iterator[Any]:
        """The images alone; the labels are kept as they go by."""
        for image, label in chain([first], pairs):
            truth.append(labels.target(label))
            yield _plain(image)

    if _is_pixels(_plain(first[0])):
        rows, logits, embedding = _run_pixels(runtime, images(), pace, _count(data))
    else:
        named = (Named(f"image {row}", _image(image)) for row, image in enumerate(images()))
        rows, logits, embedding = run_images(runtime, named, pace, _count(data))
    return LabelledAnswers([f"image {row}" for row in rows], logits, embedding, np.array(truth)[rows])


def run_images(runtime: Runtime, images: Iterable[Named], pace: Pace, count: int | None) -> tuple[Array, Array, Array]:
    """The numbers (n,) of the images that can be read, their logits (n, K) and embeddings (n, D)."""
    batch, threads, skip = pace[:3]
    with counting(pace.done, pace.progress, count) as done:
        results = list(run_batches(runtime, images, batch=batch, threads=threads, skip=skip, done=done))
    if not results:
        return np.zeros(0, np.int64), np.zeros((0, len(runtime.classes))), np.zeros((0, 0))
    rows, _, logits, embedding = zip(*results, strict=True)
    return np.concatenate(rows), np.concatenate(logits), np.concatenate(embedding)


class Labels:
    """How the labels of a dataset are meant: by name, through its own `classes` where it has them."""

    def __init__(self, runtime: Runtime, data: object) -> None:
        self.classes, self.task = runtime.classes, runtime.task
        own = _own_classes(_innermost(data))
        self.names = tuple(map(str, own)) if isinstance(own, list | tuple) and own else self.classes
        if difference := differing(self.classes, self.names):
            raise InputError(
                f"the classes of {name_of(data)} are not those of the checkpoint: {difference}; they go by name, so "
                "rename them, or train on this data"
            )
        self.numbers = {name: number for number, name in enumerate(self.classes)}

    def target(self, label: Any) -> Any:
        """The number of a class; for several labels 0 and 1 of every class (K,)."""
        label = _plain(label)
        if self.task == "single-label":
            return self._number(label)
        marks = np.zeros(len(self.classes), np.float32)
        if isinstance(label, np.ndarray):
            if label.shape != (len(self.names),) or not np.isin(label, (0, 1)).all():
                raise InputError(f"expected labels as 0 and 1 of {len(self.names)} classes, got {short_repr(label)}")
            label = np.flatnonzero(label).tolist()
        if not isinstance(label, list | tuple | set):
            raise InputError(f"expected a list of labels, or 0 and 1 of every class, got {short_repr(label)}")
        marks[[self._number(each) for each in label]] = 1
        return marks

    def _number(self, label: Any) -> int:
        if isinstance(label, np.ndarray) and label.ndim == 0:
            label = label.item()
        if isinstance(label, str):
            if label not in self.numbers:
                raise InputError(f"class {label!r} is unknown: {nearest(label, self.classes)}")
            return self.numbers[label]
        if isinstance(label, bool) or not isinstance(label, int | np.integer):
            raise InputError(f"expected the number or the name of a class, got {short_repr(label)}")
        if not 0 <= label < len(self.names):
            raise InputError(f"class number {label}: expected one from 0 to {len(self.names) - 1}")
        return self.numbers[self.names[int(label)]]


def _pairs(data: Any) -> Iterator[tuple[Any, Any]]:
    """One image and its label after another, out of batches where it gives batches."""
    batched = getattr(data, "batch_size", None) is not None or getattr(data, "batch_sampler", None) is not None
    for item in _items(data):
        images, labels = _pair(item, data)
        if not batched:
            yield images, labels
        elif len(images) != len(labels):
            raise InputError(f"a batch of {len(images)} images with {len(labels)} labels: expected as many of both")
        else:
            yield from zip(images, labels, strict=True)


def _pair(item: Any, data: Any) -> tuple[Any, Any]:
    """Image and label, or batches of them, from a pair or a dict."""
    if isinstance(item, Mapping):
        names = [next((name for name in known if name in item), None) for known in (IMAGES, LABELS)]
        if None not in names:
            return item[names[0]], item[names[1]]
        raise InputError(
            f"expected a dict with {' or '.join(IMAGES[:2])} and {' or '.join(LABELS[:2])}, got one of "
            f"{join_limited(list(map(str, item)), ', ')} from {name_of(data)}"
        )
    if not isinstance(item, list | tuple) or len(item) != 2:
        several = f" of {len(item)}" if isinstance(item, list | tuple) else ""
        raise InputError(f"expected {EXPECTED}; got {type(item).__name__}{several} from {name_of(data)}")
    return item[0], item[1]


def _items(data: Any) -> Iterable[Any]:
    if not hasattr(data, "__iter__"):
        return (data[row] for row in range(len(data)))
    items: Iterable[Any] = data
    return items


def _run_pixels(runtime: Runtime, images: Iterator[Any], pace: Pace, count: int | None) -> tuple[Array, Array, Array]:
    """The same of prepared pixels, which must be as the preprocess makes them."""
    answers = []
    expected = (runtime.preprocess.channels, *runtime.preprocess.size)
    low, high = 0.0, 1.0
    with counting(pace.done, pace.progress, count) as done:
        while part := list(islice(images, pace.batch)):
            for pixels in part:
                if not _is_pixels(pixels) or pixels.shape != expected:
                    got = f"{getattr(pixels, 'dtype', type(pixels).__name__)} {getattr(pixels, 'shape', '')}".strip()
                    raise InputError(f"expected pixels {expected} of floats, as checkpoint.transform gives, got {got}")
            stacked = np.stack(part).astype(np.float32)
            low, high = min(low, float(stacked.min())), max(high, float(stacked.max()))
            answers.append(runtime.run(stacked))
            if done is not None:
                done(len(part))
    check_normalised(runtime.preprocess, low, high)
    logits, embedding = (np.concatenate(each) for each in zip(*answers, strict=True))
    return np.arange(len(logits)), logits, embedding


def _plain(value: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") and hasattr(value, "cpu") else value


def _is_pixels(image: Any) -> bool:
    return isinstance(image, np.ndarray) and image.dtype.kind == "f" and image.ndim == 3


def _image(image: Any) -> Any:
    """An image for the preprocess; 8-bit tensors have their channels first, as torch has them."""
    if _is_pixels(image):
        raise InputError("expected images alone, as those before, or prepared pixels alone; got pixels among images")
    first = isinstance(image, np.ndarray) and image.ndim == 3 and image.dtype == np.uint8
    if first and image.shape[0] in (1, 3) and image.shape[2] not in (1, 3):
        image = image.transpose(1, 2, 0)
    return image[:, :, 0] if first and image.shape[2] == 1 else image


def _own_classes(data: Any) -> Any:
    """The names of a dataset's classes: its `classes`, or those of its label's feature, as Hugging Face's have it."""
    features = getattr(data, "features", None)
    labels = [features[name] for name in LABELS if name in features] if isinstance(features, Mapping) else []
    return getattr(data, "classes", None) or getattr(labels[0] if labels else None, "names", None)


def _innermost(data: Any) -> Any:
    """The dataset itself, of a loader, a subset or several in a row of which the first speaks for all."""
    for _ in range(16):
        several = getattr(data, "datasets", None)
        inner = several[0] if isinstance(several, list | tuple) and several else getattr(data, "dataset", None)
        if inner is None:
            break
        data = inner
    return data


def _count(data: Any) -> int | None:
    """How many images there are, where that is known: a loader's own length is of batches."""
    try:
        return len(getattr(data, "sampler", data))
    except TypeError:
        return None
