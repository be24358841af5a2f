"""Virtual workers: how a batch is cut among them, and the order in which their gradients are added."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail.errors import InputError
from vitrail.training.processes import ALONE, Processes
from vitrail.training.virtual_workers import Tournament, nodes_of, parts_of, places_of, share_of, usual_workers


@pytest.mark.parametrize(("count", "workers"), [(8, 4), (9, 4), (14, 4), (15, 6), (3, 4), (1, 4), (64, 3)])
def test_every_image_is_in_one_part_with_its_partner(count: int, workers: int) -> None:
    shares = [places_of(count, workers, range(each, each + 1)).tolist() for each in range(workers)]
    assert sorted(place for share in shares for place in share) == list(range(count))
    for share in shares:
        assert [count - 1 - place for place in share] == share[::-1]  # mixing takes the batch in reverse
    assert max(map(len, shares)) - min(map(len, shares)) <= 3
    every = np.arange(count) * 10
    for world in (each for each in range(1, workers + 1) if workers % each == 0):
        for rank in range(world):
            share = share_of(workers, member(rank, world))
            own = every[places_of(count, workers, share)]
            parts = [own[rows].tolist() for rows in parts_of(count, workers, share)]
            assert parts == [every[shares[worker]].tolist() for worker in share]


def member(rank: int, world: int) -> Processes:
    processes = Processes()
    processes.rank, processes.world = rank, world
    return processes


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 12, 20])
def test_the_order_of_a_sum_is_the_same_for_any_number_of_processes(workers: int) -> None:
    torch.manual_seed(workers)
    leaves = torch.randn(workers, 50) * 10.0 ** torch.randint(-4, 5, (workers, 50))
    sums = []
    for world in (each for each in range(1, workers + 1) if workers % each == 0):
        together = Tournament()
        for rank in range(world):
            own, share = Tournament(), share_of(workers, member(rank, world))
            for worker in share:
                own.add(worker, 1, leaves[worker].clone())
            assert [(node.first, node.size) for node in own.nodes] == nodes_of(share)
            for node in own.nodes:
                together.add(*node)
        sums.append(together.total())
    assert all(torch.equal(each, sums[0]) for each in sums)
    torch.testing.assert_close(sums[0], leaves.double().sum(0).float(), rtol=1e-3, atol=1e-2)


def test_a_world_that_does_not_divide_the_virtual_workers_is_told_which_do() -> None:
    with pytest.raises(InputError, match="of 4 virtual workers: expected 1, 2 or 4 processes, got 3"):
        share_of(4, member(0, 3))
    assert [usual_workers(world) for world in (1, 2, 3, 4, 5, 8)] == [4, 4, 6, 4, 5, 8]
    assert share_of(4, ALONE) == range(4)
