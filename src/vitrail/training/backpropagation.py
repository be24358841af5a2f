"""A batch -> the gradients of its loss in the network, clipped: piece by piece, and shared with other processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.devices import device_of, seed_device
from vitrail.data.counter_rng import key
from vitrail.data.loader import Batch
from vitrail.network.vit import ViT
from vitrail.training.compilation import Forward
from vitrail.training.job import Job
from vitrail.training.losses import loss_of
from vitrail.training.memory import in_pieces_that_fit
from vitrail.training.mixed_precision import autocast
from vitrail.training.plan import Plan
from vitrail.training.processes import ALONE, Processes
from vitrail.training.recipe import Recipe
from vitrail.training.virtual_workers import SharedGradients, Wishes, shared_gradients


class BatchPass(NamedTuple):
    """How a batch goes through the network."""

    forward: Forward  # the network's own, or compiled
    pieces: int  # of the whole batch
    scale: float = 1.0  # of the loss, on the way back


def gradients(
    model: ViT, batch: Batch, plan: Plan, weights: Tensor | None, way: BatchPass | None = None
) -> tuple[float, float]:
    """Forward and backward, piece by piece, and the gradients clipped; the mean loss, and their norm before."""
    way, count = way or BatchPass(model, plan.recipe.pieces), len(batch.rows)
    total = backward(model, batch, plan, weights, way._replace(pieces=min(way.pieces, count)), count)
    return total / count, clipped(model, plan.recipe, way.scale)


def fitting_gradients(
    model: ViT, batch: Batch, plan: Plan, weights: Tensor | None, seed: int, way: BatchPass
) -> tuple[float, float, int]:
    """The same in as many pieces as memory asks for, and how many those were."""

    def compute(pieces: int) -> tuple[float, float]:
        seed_device(device_of(model), seed)  # for dropout and drop path
        return gradients(model, batch, plan, weights, way._replace(pieces=pieces))

    (loss, norm), pieces = in_pieces_that_fit(model, len(batch.rows), way.pieces, compute)
    return loss, norm, pieces


def backward(model: ViT, batch: Batch, plan: Plan, weights: Tensor | None, way: BatchPass, count: int) -> float:
    """Add the gradients of these images of a batch of `count`, piece by piece; the sum of their losses."""
    device, losses = device_of(model), []
    parts = (each.tensor_split(way.pieces) for each in (batch.pixels, batch.targets))
    for pixels, targets in zip(*parts, strict=True):
        with autocast(device, plan.recipe.precision):
            logits = way.forward(pixels.to(device))
        loss = loss_of(logits.float(), targets.to(device), plan.task, weights)
        (loss * (way.scale * len(pixels) / count)).backward()
        losses.append((loss.detach(), len(pixels)))
    return sum(float(loss) * images for loss, images in losses)  # read last: till then no accelerator is waited for


def clipped(model: ViT, recipe: Recipe, scale: float = 1.0, processes: Processes = ALONE) -> float:
    """Clip the gradients, freed of the scale of their loss, as the recipe says; their norm before."""
    trained = [each for each in model.parameters() if each.grad is not None]
    if scale != 1:
        torch._foreach_mul_([each.grad for each in trained if each.grad is not None], 1 / scale)
    return float(processes.whole(torch.nn.utils.clip_grad_norm_(trained, recipe.clip or math.inf)))


def share_gradients(
    model: ViT,
    batch: Batch,
    job: Job,
    weights: Tensor | None,
    step: int,
    way: BatchPass,
    wish: Callable[[int], Wishes],
) -> SharedGradients:
    """The gradients of all virtual workers of all processes, clipped; `batch` holds this process's own images."""
    plan = job.plan
    count = min(plan.recipe.batch, len(job.train.targets))
    workers = plan.virtual_workers or job.processes.world
    most = first = -(-way.pieces // workers)  # pieces of the part of one of them

    def learn(worker: int, part: Batch) -> float:
        nonlocal most

        def compute(pieces: int) -> float:
            seed_device(device_of(model), key(plan.seed, f"step of worker {worker}", step))
            return backward(model, part, plan, weights, way._replace(pieces=pieces), count)

        loss, pieces = in_pieces_that_fit(model, len(part.rows), most, compute)
        most = max(most, pieces)
        return loss

    def wishes() -> Wishes:
        return wish(way.pieces if most == first else workers * most)

    shared = shared_gradients(
        model, batch, count, workers, learn, job.processes, wishes, is_exact=plan.virtual_workers > 0
    )
    return shared._replace(norm=clipped(model, plan.recipe, way.scale))
