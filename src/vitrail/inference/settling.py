"""Near ties of images decoded at a part of their size: answers in; those too close to call, of the full image, out.

Scaled decoding moves 8-bit values by a level here and there, which moves logits by a tenth or so: enough to exchange
two classes that are as likely as each other, and no others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CLEAR = 1.4  # times as likely as the next: less is a near tie. docs/images.md has the numbers


def near_ties(logits: Array, task: str, clear: float = CLEAR) -> Array:
    """Which images have two likeliest classes too close to call: (B, K) -> bool (B,).

    Too close is where the likeliest is less than `clear` times as likely as the next.
    """
    if task != "single-label" or logits.shape[1] < 2:
        return np.zeros(len(logits), bool)
    second, first = np.partition(logits.astype(np.float64), (-2, -1), axis=1)[:, -2:].T
    return np.asarray(first - second < np.log(clear))
