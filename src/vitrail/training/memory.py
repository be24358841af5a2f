"""Where memory ends in a step: which errors say so, and the same batch in more pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitrail.checkpoint.devices import device_of
from vitrail.errors import InputError
from vitrail.reporting.html_page import counted
from vitrail.training.recipe import Recipe
from vitrail.training.virtual_workers import running_statistics

Result = TypeVar("Result")


def in_pieces_that_fit(
    model: nn.Module, count: int, pieces: int, compute: Callable[[int], Result]
) -> tuple[Result, int]:
    """`compute(pieces)` on a batch of `count` images; out of memory, the same again in twice as many pieces.

    With it comes how many those were. What a pass that failed left behind goes first: gradients, and the running
    statistics of batch norm. The error goes on where single images do not fit.
    """
    pieces = min(pieces, count)
    while True:
        before = saved_statistics(model)
        try:
            return compute(pieces), pieces
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if pieces >= count:
                raise InputError(_not_enough(count, pieces)) from error
        # Only here is the error gone, and with it the tensors of the pass that it came from.
        model.zero_grad(set_to_none=True)
        restore(before)
        free_cached(device_of(model))
        pieces = min(2 * pieces, count)


def saved_statistics(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """What batch norm keeps of the images that it has seen, each with a copy: a forward pass changes it."""
    running, counters = running_statistics(model)
    return [(each, each.clone()) for each in (*running, *counters)]


def restore(saved: list[tuple[Tensor, Tensor]]) -> None:
    """Statistics as they were when they were saved."""
    for buffer, value in saved:
        buffer.copy_(value)


def pieces_note(model: nn.Module, batch: int, pieces: int) -> str:
    """What is told where a batch goes through in more pieces than was asked for."""
    part = -(-batch // pieces)
    note = f"batches of {batch} go through in {pieces} pieces of {part}, since memory did not hold more at once"
    if saved_statistics(model):
        return f"{note}: the step is the same but for batch norm, which sees {part} images at a time"
    return f"{note}: the step is the same"


def free_cached(device: torch.device) -> None:
    """Give back what torch keeps of a device's memory for later; on a CPU it keeps none."""
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


@contextmanager
def memory_named(recipe: Recipe) -> Iterator[None]:
    """Running out of memory as an error that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(_not_enough(recipe.batch, recipe.pieces)) from error


def _not_enough(batch: int, pieces: int) -> str:
    return (
        f"not enough memory for a step of {counted(batch, 'image')} in {counted(pieces, 'piece')}; "
        "what is saved stays: take a recipe with checkpointing, or a smaller --size, --batch or --model"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """torch has no kind of its own for this on the CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "t allocate memory" in str(error)
