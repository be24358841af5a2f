"""What a training makes small: logits (B, K) and targets (B, K) -> a loss, and how much each class counts in it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.training.plan import Plan
from vitrail.types import Array


def loss_of(logits: Tensor, targets: Tensor, task: str, weights: Tensor | None) -> Tensor:
    """Cross entropy to shares of classes (B, K); for several labels each by itself."""
    if task == "multi-label":
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights)
    return F.cross_entropy(logits, targets, weight=weights)


def class_weights(targets: Array, plan: Plan) -> Tensor:
    """So that each class counts alike: n / (K * its images); for several labels absent / present, 1/20 to 20."""
    if plan.task == "multi-label":
        present = targets.sum(axis=0)
        return torch.from_numpy(np.clip((len(targets) - present) / np.maximum(present, 1), 0.05, 20).astype(np.float32))
    counts = np.bincount(targets, minlength=len(plan.classes))
    return torch.from_numpy((len(targets) / (len(counts) * np.maximum(counts, 1))).astype(np.float32))
