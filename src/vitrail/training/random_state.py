"""The random generators of the process: a run starts them from its seed, keeps their states, and gives them back.

Vitrail's own choices are functions of seed, epoch and index; these are for the modules of torch that draw numbers
(dropout, drop path), and for whatever a user's own code uniform.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from vitrail.data.counter_rng import key


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Generators that start from the seed; afterwards they stand where they stood before."""
    before, torch_before = random_states(), torch.get_rng_state()
    random.seed(key(seed, "python"))
    np.random.seed(key(seed, "numpy") % 2**32)
    torch.default_generator.manual_seed(key(seed, "torch"))
    try:
        yield
    finally:
        set_random_states(before)
        torch.set_rng_state(torch_before)


def random_states() -> dict[str, Any]:
    """Where python's and numpy's generators stand, as plain values for JSON."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    numbers = np.asarray(keys).tolist()
    return {"python": [version, list(internal), gauss], "numpy": [kind, numbers, int(position), has_gauss, cached]}


def set_random_states(states: Mapping[str, Any]) -> None:
    """Back to where they stood."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
