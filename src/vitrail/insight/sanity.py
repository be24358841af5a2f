"""Does a map depend on what the network learned? The same map with shuffled weights; and tokens that distort maps."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from vitrail.network.vit import ViT
from vitrail.types import Array

UNCHANGED = 0.9  # a rank correlation from here on means that the weights hardly matter
OUTLYING = 3.0  # times the median norm of an image's patches


def shuffled(model: ViT, seed: int = 0) -> ViT:
    """A copy whose every weight stands elsewhere in its tensor: same values, nothing learned."""
    dice = torch.Generator().manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for each in other.parameters():
            each.copy_(each.flatten()[torch.randperm(each.numel(), generator=dice)].view_as(each))
    return other


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's: 1 where two maps put the patches in the same order, 0 where a flat one puts them in none."""
    ranks = [_ranks(each.ravel()) for each in (a, b)]
    spread = [float(each.std()) for each in ranks]
    if min(spread) == 0:
        return 1.0 if max(spread) == 0 else 0.0
    return float(((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean() / (spread[0] * spread[1]))


def _ranks(values: Array) -> Array:
    """Places in order; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((last - counts + last - 1) / 2)[inverse], np.float64)


def outlying(patches: Tensor) -> Tensor:
    """Patches whose tokens (B, N, D) are far larger than the others of their image: (B, N), True where so.

    Networks that were trained long, without registers, store facts of the whole image in tokens of plain
    background (Darcet et al. 2024): attention goes there, and maps of attention show places that hold nothing.
    """
    norms = patches.float().norm(dim=-1)  # (B, N)
    large: Tensor = norms > OUTLYING * norms.median(dim=1, keepdim=True).values
    return large
