"""Training and evaluation: a network's modes, kept as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module, modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Without dropout inside; every module is left in the mode it was in.

    Looking for its `modules` takes as long as a small layer: who asks often may keep them.
    """
    training = [module for module in modules or model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
