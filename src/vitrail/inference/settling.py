"""Near ties of images decoded at a part of their size: answers in; those too close to call, of the full image, out.

Scaled decoding moves 8-bit values by a level here and there, which moves logits by a tenth or so: enough to exchange
two classes that are as likely as each other, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Answers = tuple[Array, Array]  # logits (B, K) and embedding (B, D)

CLEAR = 1.4  # times as likely as the next: less is a near tie. docs/images.md has the numbers


def near_ties(logits: Array, task: str, clear: float = CLEAR) -> Array:
    """Which images have two likeliest classes too close to call: (B, K) -> bool (B,).

    Too close is where the likeliest is less than `clear` times as likely as the next.
    """
    if task != "single-label" or logits.shape[1] < 2:
        return np.zeros(len(logits), bool)
    second, first = np.partition(logits.astype(np.float64), (-2, -1), axis=1)[:, -2:].T
    return np.asarray(first - second < np.log(clear))


def settle(
    given: Sequence[Answers],
    again: Mapping[tuple[int, int], Array | None],
    run: Callable[[Array], Answers],
) -> list[Answers]:
    """Answers of some batches, those of near ties replaced by what `run` says of them, all at once.

    `again` has what was read again of each, by batch and place; an image of which nothing was keeps its answer.
    """
    values = {place: each for place, each in again.items() if each is not None}
    if not values:
        return list(given)
    after = [(logits.copy(), embedding.copy()) for logits, embedding in given]
    for (number, place), logits, embedding in zip(values, *run(np.stack(list(values.values()))), strict=True):
        after[number][0][place], after[number][1][place] = logits, embedding
    return after
