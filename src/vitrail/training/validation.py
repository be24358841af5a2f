"""A network on the images of a split, while it is in training: its logits (n, K), its score and its loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from vitrail.checkpoint.devices import device_of
from vitrail.data.cache import normalise
from vitrail.evaluation.metrics import mean_average_precision, top_k
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.training.job import Part
from vitrail.training.losses import loss_of
from vitrail.training.plan import Plan
from vitrail.training.processes import ALONE, Processes
from vitrail.types import Array


class Scores(NamedTuple):
    """How good a network is on the validation images."""

    score: float
    loss: float


def validate(model: ViT, part: Part, plan: Plan, processes: Processes = ALONE, *, is_sharded: bool = False) -> Scores:
    """Score and loss, by the very pixels that predict would see."""
    logits = logits_of(model, part, plan, processes=processes, is_sharded=is_sharded)
    loss = loss_of(torch.from_numpy(logits), torch.from_numpy(part.targets), plan.task, None)
    return Scores(score_of(logits, part.targets, plan.task), float(loss))


def score_of(logits: Array, targets: Array, task: str) -> float:
    """The share of right answers; for several labels mean average precision."""
    return mean_average_precision(logits, targets) if task == "multi-label" else top_k(logits, targets, 1)


def logits_of(
    model: ViT,
    part: Part,
    plan: Plan,
    batch: int = 128,
    processes: Processes = ALONE,
    *,
    is_sharded: bool = False,
) -> Array:
    """Logits (n, K) of every image, in order. Each process takes whole batches: those that one alone would make.

    The passes of a sharded network need every process, so one that has fewer batches computes an image once more.
    """
    rows, device = np.arange(len(part.targets)), device_of(model)
    shares = np.array_split(np.arange(0, len(rows), batch), processes.world)
    counts = [int(sum(len(rows[start : start + batch]) for start in share)) for share in shares]
    # A sharded network makes weights that the next step learns from, which no tensor of inference mode can be.
    with eval_mode(model), torch.no_grad() if is_sharded else torch.inference_mode():
        logits = [
            model(normalise(part.views.get(rows[start : start + batch]), plan.preprocess, device)).float().cpu()
            for start in shares[processes.rank]
        ]
        for _ in range(len(logits), max(map(len, shares)) if is_sharded else 0):
            model(normalise(part.views.get(rows[:1]), plan.preprocess).to(device))
        own = torch.cat(logits) if logits else torch.zeros(0, len(plan.classes))
        return processes.concatenate(own, counts).numpy()
