"""What is to be explained: a class, the difference of two, likeness to another image, or any scalar of the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.checks import join_limited, short_repr
from vitrail.errors import InputError, nearest

Class: TypeAlias = int | str  # by number or by name


@dataclass(frozen=True)
class Versus:
    """Why one class rather than another: the difference of their logits."""

    a: Class
    b: Class


@dataclass(frozen=True, eq=False)
class Likeness:
    """Why an image is like another: cosine similarity to that one's embedding (D,)."""

    to: Tensor | np.ndarray[Any, Any]
    words: str = "likeness to another image"


Scalar: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # logits (n, K), embedding (n, D) -> (n,)
Target: TypeAlias = Class | Versus | Likeness | Scalar | None  # None: the class that the network itself names


@dataclass(frozen=True, eq=False)
class Aim:
    """A target of one image, ready to be asked for."""

    words: str
    of: Scalar  # what is explained
    level: Scalar  # the same as faithfulness counts it: a probability where there is one
    probability: bool = True


def aim_at(
    target: Target,
    logits: Tensor,
    classes: Sequence[str] = (),
    task: str = "single-label",
    temperature: float | None = None,
) -> Aim:
    """The aim for an image of these logits (K,); classes are the names, where there are names.

    Levels are probabilities as `predict` gives them, calibrated where a temperature was fitted.
    """
    heat = 1.0 if temperature is None else temperature
    if isinstance(target, Likeness):
        return _like(target)
    if callable(target):
        return Aim(getattr(target, "__name__", "a function of the output"), _checked(target), _checked(target), False)
    if isinstance(target, Versus):
        a, b = (_number(each, logits, classes) for each in (target.a, target.b))
        if a == b:
            raise InputError(f"target: expected two classes that differ, got {short_repr(target.a)} twice")
        words = f"{_named(a, classes)} rather than {_named(b, classes)}"
        return Aim(words, lambda z, _: z[:, a] - z[:, b], lambda z, _: torch.sigmoid((z[:, a] - z[:, b]) / heat))
    number = int(logits.argmax()) if target is None else _number(target, logits, classes)

    def level(z: Tensor, _: Tensor) -> Tensor:
        return ((z / heat).softmax(dim=1) if task == "single-label" else (z / heat).sigmoid())[:, number]

    return Aim(_named(number, classes), lambda z, _: z[:, number], level)


def _like(target: Likeness) -> Aim:
    other = torch.from_numpy(target.to) if isinstance(target.to, np.ndarray) else target.to
    if not isinstance(other, Tensor) or other.ndim != 1:
        raise InputError(
            f"Likeness: expected an embedding (D,), got {short_repr(target.to)}: vitrail.embed gives (n, D)"
        )

    def likeness(_: Tensor, embedding: Tensor) -> Tensor:
        if embedding.shape[1:] != other.shape:
            raise InputError(
                f"Likeness: expected an embedding of width {tuple(embedding.shape[1:])}, as the network's, "
                f"got {tuple(other.shape)}"
            )
        return F.cosine_similarity(embedding, other.to(embedding)[None], dim=1)

    return Aim(target.words, likeness, likeness, False)


def _checked(scalar: Scalar) -> Scalar:
    def asked(logits: Tensor, embedding: Tensor) -> Tensor:
        value = scalar(logits, embedding)
        if not isinstance(value, Tensor) or tuple(value.shape) != (len(logits),):
            got = tuple(value.shape) if isinstance(value, Tensor) else short_repr(value)
            raise InputError(f"target: expected one number for each of {len(logits)} images, got {got}")
        return value

    return asked


def _number(target: Class, logits: Tensor, classes: Sequence[str]) -> int:
    """The number of a class, by number or by name; names come first, since a name may be a numeral."""
    count = logits.shape[-1]
    if isinstance(target, str) and target in classes:
        return list(classes).index(target)
    numeral = isinstance(target, str) and target.isdecimal()
    if numeral or (isinstance(target, int | np.integer) and not isinstance(target, bool)):
        if 0 <= int(target) < count:
            return int(target)
        known = f", or one of {join_limited(classes, ', ')}" if classes else ""
        raise InputError(f"target: expected a class from 0 to {count - 1}{known}, got {short_repr(target)}")
    if isinstance(target, str) and classes:
        raise InputError(f"target: no class {target!r:.80}: {nearest(target, classes)}")
    if isinstance(target, str):
        raise InputError(f"target: this network's classes have no names, got {target!r:.80}: give a number")
    raise InputError(
        f"target: expected a class by number or name, Versus, Likeness or a function, got {short_repr(target)}"
    )


def _named(number: int, classes: Sequence[str]) -> str:
    return classes[number] if classes else f"class {number}"
