"""A training whose processes hold a part of the network each: what it does otherwise than one that holds all of it.

Everything here is called by all processes, in the same order. The modules that know torch's distributed checkpoints are
imported where they are needed: they take a second.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.checkpoint_file import save_streamed
from vitrail.checkpoint.safetensors_io import DTYPES, storage_order
from vitrail.data.loader import Batch
from vitrail.errors import InputError
from vitrail.training.job import Job
from vitrail.training.processes import flatten, unflatten
from vitrail.training.state import SHARDED, FindState, State, read_state
from vitrail.training.virtual_workers import (
    SharedGradients,
    Wishes,
    merged_wishes,
    places_of,
    running_statistics,
)


def read_any_state(path: Path, run: str) -> State:
    """One state of either form, all of it in memory; of a sharded one the run is checked."""
    if path.suffix != SHARDED:
        return read_state(path)
    from vitrail.training.sharded_state import read_sharded_state

    return read_sharded_state(path, run)


class ShardedTraining:
    """The network of a job, sharded over its processes when this is made."""

    def __init__(self, job: Job) -> None:
        self.job, self.model, self.processes = job, job.model, job.processes
        count = min(job.plan.recipe.batch, len(job.train.targets))
        world = self.processes.world
        self.counts = [len(places_of(count, world, range(rank, rank + 1))) for rank in range(world)]
        if not min(self.counts):
            raise InputError(f"--shard: a batch of {count} has no images for one of {world} processes: take more")
        self.processes.shard(self.model)
        self.tensors = self.model.state_dict()

    def gradients(
        self,
        batch: Batch,
        count: int,
        pieces: int,
        learn: Callable[[int], float],
        wishes: Callable[[], Wishes],
    ) -> SharedGradients:
        """The sum over all processes of what `learn(pieces)` adds, a part of it in each; in as many pieces by each.

        Running statistics of batch norm become the mean of what each process would have made of them.
        """
        running, counters = running_statistics(self.model)
        before = [each.clone() for each in counters]
        loss = learn(min(-(-pieces // self.processes.world), *self.counts))
        told = self.processes.all_gather([*wishes(), loss])
        if running:
            share = len(batch.rows) / count
            total = self.processes.sum(flatten([each * share for each in running]))
            for buffer, value in zip(running, unflatten(total, running), strict=True):
                buffer.copy_(value)
            for counter, value in zip(counters, before, strict=True):
                counter.copy_(value + 1)
        return SharedGradients(sum(row[-1] for row in told) / count, 0.0, merged_wishes(told))

    def save(self, checkpoint: Checkpoint, path: Path) -> None:
        """The whole network as a checkpoint, written by the first process, one tensor at a time in memory."""
        tensors = checkpoint.tensors()
        if self.processes.is_first:
            save_streamed(checkpoint, path, lambda name: self.processes.whole(tensors[name]))
        else:
            for name in storage_order(tensors):
                self.processes.whole(tensors[name])

    # ---- states ------------------------------------------------------------------------------------------------

    def write_state(self, folder: Path, state: State) -> None:
        """A state of which every process has its part."""
        from vitrail.training.sharded_state import write_sharded_state

        write_sharded_state(folder, state, self.job.identity, self.processes)

    def read_state(self, folder: Path, find: FindState) -> State | None:
        """The newest state that the first process finds whole: to every process its part, whoever wrote it."""
        from vitrail.training.sharded_state import ShardManifest, check_sharded_state, read_into

        def read(path: Path) -> tuple[Path, ShardManifest] | State:
            return (path, check_sharded_state(path, self.job.identity)) if path.suffix == SHARDED else read_state(path)

        newest = find(folder, self.job.callbacks.log, read) if self.processes.is_first else None
        loaded = newest if isinstance(newest, State) else None
        told = None
        if isinstance(newest, State):
            told = ["", dict(newest.facts), {}]
        elif newest is not None:
            told = [str(newest[0]), newest[1].facts, newest[1].tensors]
        told = self.processes.broadcast(told)
        if told is None:
            return None
        path, facts, kinds = told
        tensors: dict[str, Tensor] = {}
        if not path:
            for name, value in self.processes.broadcast_tensors({} if loaded is None else loaded.tensors).items():
                like = self._like(name, value.shape)
                tensors[name] = value if like is None else self.processes.part_of(value.to(like.device), like)
            return State(tensors, facts)
        for name, (kind, shape) in kinds.items():
            like, dtype = self._like(name, torch.Size(shape)), DTYPES[kind]
            tensors[name] = torch.empty(shape, dtype=dtype) if like is None else torch.empty_like(like, dtype=dtype)
        read_into(Path(path), tensors, self.processes)
        return State(tensors, facts)

    def _like(self, name: str, shape: torch.Size) -> Tensor | None:
        """The tensor of the network that one of a state is sharded as; None: it is not, or does not fit the network."""
        rest = name.partition(".")[2]
        like = self.tensors.get(rest.partition(".")[2] if name.startswith("optimiser.") else rest)
        return like if like is not None and like.shape == shape else None
