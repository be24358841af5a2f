"""The forward pass of a training, compiled by torch where that is asked for; the network's names stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.network.vit import ViT

BACKEND: Final = "inductor"

Forward = Callable[[Tensor], Tensor]


def training_forward(model: ViT, compiled: bool) -> Forward:
    """The network itself, or a compiled function of it that shares its weights.

    Every size of a batch has a program of its own: with programs for any size, what a step computes would depend on
    the sizes that came before, and a run that went on would end with other bits.
    """
    if not compiled:
        return model
    forward: Forward = torch.compile(model, backend=BACKEND, dynamic=False)
    return forward


@contextmanager
def compiler_named() -> Iterator[None]:
    """What torch's compiler cannot do as an error that says what to do."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        why = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise InputError(f"--compile: torch could not compile the network: {why:.200}: leave --compile out") from error
