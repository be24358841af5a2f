"""Near ties of pictures decoded at a part of their size: answers in; those too close to call, of the full picture, out.

Scaled decoding moves 8-bit values by a level here and there, which moves logits by a tenth or so: enough to exchange
two classes that are as likely as each other, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Answers = tuple[Array, Array]  # logits (B, K) and embedding (B, D)

CLEAR = 1.5  # times as likely as the next: less is a near tie. docs/images.md has the numbers


def near_ties(logits: Array, task: str, clear: float = CLEAR) -> Array:
    """Which pictures have two likeliest classes too close to call: (B, K) -> bool (B,).

    Too close is where the likeliest is less than `clear` times as likely as the next.
    """
    if task != "one" or logits.shape[1] < 2:
        return np.zeros(len(logits), bool)
    second, first = np.partition(logits.astype(np.float64), (-2, -1), axis=1)[:, -2:].T
    return np.asarray(first - second < np.log(clear))


def settle(
    answers: Answers,
    values: Array,
    task: str,
    read: Callable[[list[int]], Iterable[Array | None]],
    run: Callable[[Array], Answers],
) -> Answers:
    """The answers, those of near ties replaced by what `run` says of what `read` gives for their places in the batch.

    A picture of which nothing is read, or the same values again, keeps its answer.
    """
    logits, embedding = answers
    places = np.flatnonzero(near_ties(logits, task)).tolist()
    other = {
        place: each
        for place, each in zip(places, read(places), strict=True)
        if each is not None and not np.array_equal(each, values[place])
    }
    if not other:
        return answers
    places = list(other)
    logits, embedding = logits.copy(), embedding.copy()
    logits[places], embedding[places] = run(np.stack(list(other.values())))
    return logits, embedding
