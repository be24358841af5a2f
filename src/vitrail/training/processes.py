"""Processes: those that train one network together, seen from one of them; alone, there is nobody to ask or to tell.

`scale` makes the ones that talk; whoever trains asks `current()`. What goes between processes is JSON and tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.network.vit import ViT

# Parts of a sum, in their order, in tensors of one length -> their sum, in an order of its own.
Fold = Callable[[Sequence[Tensor]], Tensor]


class Processes:
    """One process by itself. Every method is called by all processes, in the same order; or none of them returns."""

    rank = 0  # of this process
    local_rank = 0  # among those on its machine
    world = 1  # how many there are

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes files, logs and pages, and whose decisions all follow."""
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """What the first gives, for all; others may give anything. Plain values, as in JSON."""
        return value

    def broadcast_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The first one's tensors, for all; others may give none."""
        return dict(tensors)

    def copy_first(self, tensors: Mapping[str, Tensor]) -> None:
        """The first one's values into everybody's tensors, which have the same names and shapes."""

    def all_gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Everybody's numbers, by rank; as many from each."""
        return [list(numbers)]

    def concatenate(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Everybody's rows (n, ...), by rank, one after the other; `counts` says how many each has."""
        return rows

    def collect(self, value: Any) -> list[Any]:
        """Everybody's plain values, by rank."""
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        counts = [int(count) for (count,) in self.all_gather([len(text)])]
        rows = self.concatenate(text, counts).split(counts)
        return [json.loads(bytes(each.numpy())) for each in rows]

    def sum(self, values: Tensor) -> Tensor:
        """The sum of everybody's tensors, in whatever order is fastest: for all the same, for other worlds another."""
        return values

    def fold(self, parts: Sequence[Tensor], counts: Sequence[int], fold: Fold) -> Tensor:
        """`fold` of everybody's flat parts, by rank; each process folds a share of the places. `counts`: parts each."""
        return fold(parts)

    @contextmanager
    def first_before_others(self) -> Iterator[None]:
        """The first goes through the block, then all others at once: they find what it has left on disk."""
        if not self.is_first:
            self.barrier()
        yield
        if self.is_first:
            self.barrier()

    def shard(self, model: ViT) -> None:
        """Leave to each process a part of every weight; from here on those are no plain tensors."""

    def own_values(self, tensor: Tensor) -> Tensor:
        """This process's part of a tensor: the very memory, as a plain tensor; all of one that is not sharded."""
        return tensor

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor with everybody's parts, as a plain one."""
        return tensor

    def part_of(self, whole: Tensor, like: Tensor) -> Tensor:
        """Of a plain tensor that all have: the part of this process, sharded as another tensor is."""
        return whole

    def barrier(self) -> None:
        """Wait until all are here."""

    def is_teller(self) -> bool:
        """Whether it falls to this process to say what ended them all: the first that asks."""
        return True

    def device(self, name: str) -> str:
        """The device by this name that is this process's own."""
        return name


ALONE = Processes()
_current: ContextVar[Processes | None] = ContextVar("processes", default=None)


def current() -> Processes:
    """The processes that this one trains with; one that a launcher started beside others has to join them first."""
    joined = _current.get()
    if joined is None and started_world() > 1:
        raise InputError(
            f"this process is one of {started_world()} that were started together, and has not joined them: "
            "train inside `with vitrail.scale.joined():`, or start `torchrun -m vitrail train DATA`"
        )
    return joined or ALONE


def check_processes(wanted: int) -> None:
    """Refuse a number of processes that are not there: a process that runs cannot become several."""
    check_int("processes", wanted, 1, 4096, InputError)
    world = current().world
    if wanted not in (1, world):
        raise InputError(
            f"processes: expected {world}, as many as were started together, got {wanted}: start "
            f"`vitrail train DATA --processes {wanted}`, or your own script by `torchrun --nproc-per-node {wanted}`, "
            "with the training inside `with vitrail.scale.joined():`"
        )


def started_world() -> int:
    """How many processes a launcher such as torchrun has started together, by the environment."""
    number = os.environ.get("WORLD_SIZE", "1")
    return int(number) if "RANK" in os.environ and number.isdigit() else 1


@contextmanager
def using(processes: Processes) -> Iterator[Processes]:
    """Inside, this is who trains together."""
    token = _current.set(processes)
    try:
        yield processes
    finally:
        _current.reset(token)


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """The values of all, in one row."""
    return torch.cat([each.reshape(-1) for each in tensors]) if tensors else torch.zeros(0)


def unflatten(values: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A row of values as tensors of these shapes: views of it."""
    found, start = [], 0
    for each in like:
        found.append(values[start : start + each.numel()].view(each.shape))
        start += each.numel()
    return found
