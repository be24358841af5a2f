"""Gradients of a batch: the same in any pieces, and clipped as the recipe says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from training import tiny
from vitrail.network.vit import ViT
from vitrail.training import loop
from vitrail.training.backpropagation import gradients
from vitrail.training.batch_feed import job_batches
from vitrail.training.job import Job
from vitrail.training.recipe import Recipe

PLAIN = Recipe(batch=8, lr=1e-3, warmup=0.0, clip=0.0, weight_decay=0.0)


def plain_batch(job: Job) -> Any:
    """The first batch of a job."""
    return next(iter(job_batches(job, loop._Loop(job).batch_rows(0))))


def gradients_of(job: Job, batch: Any) -> tuple[float, float, dict[str, Tensor]]:
    """Loss, norm before clipping, and every gradient of one batch."""
    job.model.zero_grad(set_to_none=True)
    loss, norm = gradients(job.model, batch, job.plan, None)
    return loss, norm, {name: each.grad.clone() for name, each in job.model.named_parameters() if each.grad is not None}


def calm_job(folder: Path, recipe: Recipe) -> Job:
    """A job whose network sees no batch statistics and draws no numbers."""
    config = replace(tiny.CONFIG, stem=None, dropout=0.0, drop_path=0.0, initialisation="timm")
    torch.manual_seed(5)
    return tiny.job(folder, 6, recipe, model=ViT(config))


def test_pieces_of_uneven_sizes_count_by_their_images(tmp_path: Path) -> None:
    job = calm_job(tmp_path, PLAIN)
    batch = plain_batch(job)
    loss, norm, whole = gradients_of(job, batch)
    for pieces in (3, 5, 8):  # of 8 images: 3, 3 and 2; three of 2 and two of 1; one each
        parted = replace(job, plan=replace(job.plan, recipe=replace(PLAIN, pieces=pieces)))
        other_loss, other_norm, found = gradients_of(parted, batch)
        assert (other_loss, other_norm) == pytest.approx((loss, norm), rel=1e-5)
        for name, value in whole.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.row("001.11")
def test_gradients_are_clipped_to_the_norm_that_the_recipe_says(tmp_path: Path) -> None:
    job = calm_job(tmp_path, PLAIN)
    batch = plain_batch(job)
    _, norm, free = gradients_of(job, batch)
    assert norm == pytest.approx(math.sqrt(sum(float(each.square().sum()) for each in free.values())), rel=1e-5)
    for clip in (norm / 10, norm * 10):
        clipped = replace(job, plan=replace(job.plan, recipe=replace(PLAIN, clip=clip)))
        _, before, found = gradients_of(clipped, batch)
        assert before == pytest.approx(norm, rel=1e-6)  # what is told, and watched for NaN
        for name, value in free.items():
            torch.testing.assert_close(found[name], value * min(1.0, clip / norm), rtol=1e-3, atol=1e-9)
