"""A network on the images of a split, while it is in training: its logits (n, K), its score and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.data.cache import normalise
from vitrail.evaluation.metrics import mean_average_precision, top_k
from vitrail.images import Preprocess
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.training.job import Part
from vitrail.training.plan import Plan
from vitrail.types import Array


class Scores(NamedTuple):
    """How good a network is on the validation images."""

    score: float  # share of right answers; for several labels mean average precision
    loss: float


def validate(model: ViT, part: Part, plan: Plan, batch: int = 128) -> Scores:
    """Score and loss, by the very pixels that predict would see."""
    logits = logits_of(model, part, plan, batch)
    if plan.task == "multi-label":
        targets = torch.from_numpy(part.targets)
        loss = float(F.binary_cross_entropy_with_logits(torch.from_numpy(logits), targets))
        return Scores(mean_average_precision(logits, part.targets), loss)
    loss = float(F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(part.targets)))
    return Scores(top_k(logits, part.targets, 1), loss)


def logits_of(model: ViT, part: Part, plan: Plan, batch: int = 128) -> Array:
    """Logits (n, K) of every image, in order."""
    return outputs_of(model, model, part, plan.preprocess, batch).numpy()


def outputs_of(
    model: ViT, forward: Callable[[Tensor], Tensor], part: Part, preprocess: Preprocess, batch: int
) -> Tensor:
    """What a way through the network gives for every image, in order: (n, ...)."""
    rows = np.arange(len(part.targets))
    with eval_mode(model), torch.inference_mode():
        outputs = [
            forward(normalise(part.views.get(rows[start : start + batch]), preprocess)).float()
            for start in range(0, len(rows), batch)
        ]
    return torch.cat(outputs)
