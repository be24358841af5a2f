"""Virtual workers: how a batch is cut among them, and the order in which their gradients are added."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training import tiny
from vitrail.errors import InputError
from vitrail.network.vit import ViT
from vitrail.training import backpropagation, loop, virtual_workers
from vitrail.training.job import Job
from vitrail.training.processes import ALONE, Processes
from vitrail.training.recipe import Recipe
from vitrail.training.virtual_workers import (
    SharedGradients,
    Tournament,
    Wishes,
    nodes_of,
    parts_of,
    places_of,
    running_statistics,
    share_of,
    usual_workers,
)


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


# ---- a step ------------------------------------------------------------------------------------------------------


def parted_job(folder: Path, recipe: Recipe, workers: int, **config: Any) -> Job:
    torch.manual_seed(5)
    made = replace(tiny.CONFIG, initialisation="timm", **config)
    job = tiny.job(folder, 6, recipe, model=ViT(made))
    return replace(job, plan=replace(job.plan, model=made, virtual_workers=workers))


def shared(job: Job, step: int = 0) -> tuple[SharedGradients, dict[str, torch.Tensor]]:
    """What a step of a job comes to, and its gradients."""
    [batch, *_] = loop.job_batches(job, loop._Loop(job).batch_rows(step))
    way = loop.BatchPass(job.model, job.plan.recipe.pieces)
    found = loop.share_gradients(job.model, batch, job, None, step, way, lambda pieces: Wishes(0, False, pieces))
    return found, {name: each.grad.clone() for name, each in job.model.named_parameters() if each.grad is not None}


PLAIN = Recipe(batch=13, lr=1e-3, clip=0.0)
CALM: dict[str, Any] = {"stem": None, "dropout": 0.0, "drop_path": 0.0}


@pytest.mark.row("001.14")
@pytest.mark.parametrize(("workers", "pieces"), [(1, 1), (2, 1), (4, 6), (5, 1), (8, 13)])
def test_parts_of_uneven_sizes_count_by_their_images(tmp_path: Path, workers: int, pieces: int) -> None:
    whole = parted_job(tmp_path / "whole", PLAIN, 0, **CALM)
    [batch, *_] = loop.job_batches(whole, loop._Loop(whole).batch_rows(0))
    loss, norm = backpropagation.gradients(whole.model, batch, whole.plan, None)
    expected = {name: each.grad for name, each in whole.model.named_parameters() if each.grad is not None}
    found, gradients = shared(parted_job(tmp_path / "parted", replace(PLAIN, pieces=pieces), workers, **CALM))
    assert (found.loss, found.norm) == pytest.approx((loss, norm), rel=1e-5)
    assert gradients.keys() == expected.keys()
    for name, value in gradients.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_the_norm_that_is_clipped_is_that_of_the_sum(tmp_path: Path) -> None:
    _, free = shared(parted_job(tmp_path / "free", PLAIN, 4, **CALM))
    found, clipped = shared(parted_job(tmp_path / "clipped", replace(PLAIN, clip=0.01), 4, **CALM))
    assert found.norm > 0.1
    for name, value in clipped.items():
        torch.testing.assert_close(value, free[name] * (0.01 / found.norm), rtol=1e-3, atol=1e-9)


def test_every_virtual_worker_drops_other_values_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    true = backpropagation.backward

    def watched(*arguments: Any) -> float:
        seeds.append(torch.initial_seed())
        return true(*arguments)

    monkeypatch.setattr(backpropagation, "backward", watched)
    job = parted_job(tmp_path, PLAIN, 4)
    for step in (0, 1, 0):
        shared(job, step)
    assert len(set(seeds[:8])) == 8
    assert seeds[8:] == seeds[:4]


def test_batch_norm_keeps_the_mean_of_what_its_virtual_workers_saw(tmp_path: Path) -> None:
    job = parted_job(tmp_path, replace(PLAIN, batch=16), 4)
    running, counters = running_statistics(job.model)
    start = [each.clone() for each in running]
    [batch, *_] = loop.job_batches(job, loop._Loop(job).batch_rows(0))
    expected = [torch.zeros_like(each) for each in running]
    for rows in parts_of(16, 4, range(4)):
        for each, value in zip(running, start, strict=True):
            each.copy_(value)
        with torch.no_grad():
            job.model(batch.pixels[rows])
        for total, each in zip(expected, running, strict=True):
            total += each / 4
    for each, value in zip(running, start, strict=True):
        each.copy_(value)
    for each in counters:
        each.zero_()
    shared(job)
    for each, value in zip(running, expected, strict=True):
        torch.testing.assert_close(each, value, rtol=1e-5, atol=1e-7)
    assert [int(each) for each in counters] == [1] * len(counters)


@pytest.mark.parametrize(
    ("exact", "world", "parameters", "expected"),
    [(None, 1, 10, 0), (None, 2, 10, 4), (None, 2, 11, 0), (True, 2, 11, 4), (True, 1, 10, 4), (False, 2, 10, 0)],
)
def test_several_processes_are_exact_up_to_a_size(
    exact: bool | None, world: int, parameters: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_workers, "MOST_PARAMETERS", 10)
    model = torch.nn.Linear(parameters, 1, bias=False)
    assert virtual_workers.virtual_workers_of(model, exact, world) == expected
