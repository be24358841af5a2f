"""Virtual workers: a batch cut into a fixed number of parts, whose gradients are added in a fixed order.

Which process computes a part changes nothing, so any number of processes comes to the same bits. Part k holds images
of both ends of the batch, as far from the one end as from the other: so mixing, which takes the batch in reverse for
partners, stays within each part. Gradients are added in pairs, as in a tournament: ((0 + 1) + (2 + 3)). A process that
has the parts 2 and 3 sends one sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.loader import Batch
from vitrail.errors import InputError
from vitrail.training.processes import Processes, flatten, unflatten
from vitrail.types import Array

USUAL: Final = 4  # virtual workers, where nobody asks for others
MOST_PARAMETERS: Final = 30_000_000  # of a network that is trained exactly unless told otherwise


def usual_workers(world: int) -> int:
    """The least multiple of the world that is not under the usual number."""
    return world * -(-USUAL // world)


def virtual_workers_of(model: nn.Module, exact: bool | None, world: int) -> int:
    """How many a run has; 0: none, since it is not to be exact, or is too large for that to be worth its price."""
    if exact is None:
        exact = world > 1 and sum(each.numel() for each in model.parameters()) <= MOST_PARAMETERS
    return usual_workers(world) if exact else 0


def share_of(workers: int, processes: Processes) -> range:
    """The virtual workers of a process: as many for each."""
    if workers % processes.world:
        worlds = [world for world in range(1, workers + 1) if workers % world == 0]
        raise InputError(
            f"this run adds the gradients of {workers} virtual workers: expected "
            f"{', '.join(map(str, worlds[:-1]))} or {worlds[-1]} processes, got {processes.world}"
        )
    each = workers // processes.world
    return range(processes.rank * each, (processes.rank + 1) * each)


def places_of(count: int, workers: int, share: range) -> Array:
    """Where in a batch of `count` the images of some neighbouring virtual workers stand."""
    pairs = (count + 1) // 2
    edges = [0, *np.cumsum([len(part) for part in np.array_split(np.arange(pairs), workers)]).tolist()]
    start, stop = edges[share.start], edges[share.stop]
    return np.concatenate([np.arange(start, stop), np.arange(max(stop, count - stop), count - start)])


def parts_of(count: int, workers: int, share: range) -> list[Array]:
    """Of the images of a share, as `places_of` lists them: where those of each of its virtual workers stand."""
    own = places_of(count, workers, share)
    where = {place: number for number, place in enumerate(own.tolist())}
    every = (places_of(count, workers, range(each, each + 1)) for each in share)
    return [np.array([where[place] for place in places.tolist()], np.int64) for places in every]


class Node(NamedTuple):
    """The sum over some virtual workers, from the first of them on."""

    first: int
    size: int
    total: Tensor


class Tournament:
    """Sums of neighbours as they come in; each is added as soon as its partner is there."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(self, first: int, size: int, total: Tensor) -> None:
        """Take in a sum, which becomes part of another's: it is changed."""
        self.nodes.append(Node(first, size, total))
        while len(self.nodes) > 1:
            left, right = self.nodes[-2:]
            if left.size != right.size or left.first % (2 * left.size):
                return
            self.nodes[-2:] = [Node(left.first, 2 * left.size, left.total.add_(right.total))]

    def total(self) -> Tensor:
        """The sum of all, those that found no partner last."""
        total = self.nodes[-1].total
        for left in self.nodes[-2::-1]:
            total = left.total.add_(total)
        return total


def nodes_of(share: range) -> list[tuple[int, int]]:
    """The sums, first and size, that are left of a share of virtual workers when all pairs in it are added."""
    nodes: list[tuple[int, int]] = []
    for each in share:
        first, size = each, 1
        while nodes and nodes[-1][1] == size and nodes[-1][0] % (2 * size) == 0:
            first, size = nodes.pop()[0], 2 * size
        nodes.append((first, size))
    return nodes


def add_all(own: Tournament, workers: int, processes: Processes) -> Tensor:
    """The sum over all virtual workers of all processes, the same bits for any number of these."""
    each = workers // processes.world
    by_rank = [nodes_of(range(rank * each, (rank + 1) * each)) for rank in range(processes.world)]

    def fold(parts: Sequence[Tensor]) -> Tensor:
        sums = Tournament()
        for (first, size), part in zip((node for nodes in by_rank for node in nodes), parts, strict=True):
            sums.add(first, size, part)
        return sums.total()

    return processes.fold([node.total for node in own.nodes], [len(nodes) for nodes in by_rank], fold)


class Wishes(NamedTuple):
    """What any process wants done after a step, and all do then: alike, or they would wait for each other."""

    stop: int  # by a signal of this number
    save: bool
    pieces: int = 0  # in which a batch fits, so far


class SharedGradients(NamedTuple):
    """What all processes know after the gradients of a step lie in the network."""

    loss: float  # of the whole batch
    norm: float  # of the gradient, before it is clipped
    wishes: Wishes


@torch.no_grad()
def shared_gradients(
    model: nn.Module,
    batch: Batch,
    count: int,
    workers: int,
    learn: Callable[[int, Batch], float],
    processes: Processes,
    wishes: Callable[[], Wishes],
    *,
    is_exact: bool,
) -> SharedGradients:
    """The gradients of a batch of `count`, of which this process has `batch`, into the network; alike everywhere.

    `learn` adds those of one virtual worker, as its share of the whole batch, and gives the sum of its losses; what
    this process wishes is asked after that. Running
    statistics of batch norm become the mean of what each virtual worker would have made of them.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    running, counters = running_statistics(model)
    before = [each.clone() for each in (*running, *counters)]
    own = Tournament()
    losses: list[float] = []
    has_gradient = [0.0] * len(trained)
    share = share_of(workers, processes)
    for worker, rows in zip(share, parts_of(count, workers, share), strict=True):
        for parameter in trained:
            parameter.grad = None
        for buffer, value in zip((*running, *counters), before, strict=True):
            buffer.copy_(value)
        part = Batch(batch.rows[rows], batch.pixels[rows], batch.targets[rows])  # copies: aligned alike everywhere
        with torch.enable_grad():
            losses.append(learn(worker, part) if len(rows) else 0.0)
        has_gradient = [max(mark, each.grad is not None) for mark, each in zip(has_gradient, trained, strict=True)]
        values = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
        values += [each * (len(rows) / count) for each in running]
        own.add(worker, 1, flatten(values))
    first = len(Wishes._fields)
    told = processes.all_gather([*wishes(), *losses, *has_gradient])
    total = add_all(own, workers, processes) if is_exact else processes.sum(own.total())
    values = unflatten(total, [*trained, *running])
    marks = [max(column) for column in zip(*(row[first + len(losses) :] for row in told), strict=True)]
    for parameter, value, mark in zip(trained, values, marks, strict=False):
        parameter.grad = value if mark else None
    for buffer, value in zip(running, values[len(trained) :], strict=True):
        buffer.copy_(value)
    for counter, value in zip(counters, before[len(running) :], strict=True):
        counter.copy_(value + 1)
    loss = sum(each for row in told for each in row[first : first + len(losses)]) / count
    return SharedGradients(loss, 0.0, merged_wishes(told))


def merged_wishes(told: Sequence[Sequence[float]]) -> Wishes:
    """What is done then, from rows that begin with the wishes of a process each."""
    return Wishes(int(max(row[0] for row in told)), any(row[1] for row in told), int(max(row[2] for row in told)))


def running_statistics(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """What batch norms keep of the batches they saw: means and variances, and how many those were."""
    norms = [each for each in model.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    running = [each for norm in norms for each in (norm.running_mean, norm.running_var) if each is not None]
    return running, [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
