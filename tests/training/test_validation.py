"""Validation by several processes: the batches that one would make, each once, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from training import tiny
from vitrail.training.processes import Processes
from vitrail.training.validation import logits_of


class Watched(Processes):
    """One of several, which notes how many rows each is said to have."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.counts: Sequence[int] = ()

    def concatenate(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        self.counts = counts
        return rows


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("batch", [5, 16, 100])  # of 16 images
def test_every_image_is_judged_once_in_the_batches_of_one_process(tmp_path: Path, world: int, batch: int) -> None:
    job = tiny.job(tmp_path, 1)
    assert job.val is not None
    alone = logits_of(job.model, job.val, job.plan, batch)
    each = [Watched(rank, world) for rank in range(world)]
    shares = [logits_of(job.model, job.val, job.plan, batch, processes=one) for one in each]
    assert all(list(one.counts) == [len(share) for share in shares] for one in each)
    assert np.array_equal(np.concatenate(shares), alone)
