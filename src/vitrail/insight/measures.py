"""Numbers behind the figures of a model: attention distance, norms of tokens, patch features as colours."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import InputError
from vitrail.insight.activations import traced, traced_hidden
from vitrail.network.positions import grid_coordinates
from vitrail.network.vit import ViT
from vitrail.types import Array


def patch_distances(grid: tuple[int, int], cell: tuple[int, int]) -> Tensor:
    """Pixels between the centres of every two patches: (N, N)."""
    centres = grid_coordinates(grid).double() * torch.tensor(cell)  # (N, 2)
    distances: Tensor = (centres[:, None] - centres[None]).norm(dim=-1)
    return distances


def attention_distance(weights: Tensor, distances: Tensor, prefix: int) -> Tensor:
    """How far the patches look, in pixels, the mean over images and patches: (B, A, T, T) -> (A,).

    Only what goes from patch to patch counts, each patch's rows made to sum to 1 again.
    """
    among = weights[:, :, prefix:, prefix:].double()
    among = among / among.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    return (among * distances).sum(dim=-1).mean(dim=(0, 2))


def attention_distances(model: ViT, pixels: Tensor) -> Array:
    """Of every block and head by its original number (depth, heads); NaN where a head is gone. A block at a time."""
    config = model.config
    if config.merge_per_block:
        raise InputError("distances are between patches, and this network merges them: use with_merging(model, 0)")
    distances = patch_distances(model.grid_of(pixels), config.cell)
    means = np.full((config.depth, config.heads), np.nan)
    for block in range(config.depth):
        [weights] = traced(model, pixels, [block]).trace.attention
        means[block, list(config.heads_of(block))] = attention_distance(weights.cpu(), distances, config.prefix).numpy()
    return means


def token_norms(model: ViT, pixels: Tensor) -> tuple[Array, Array]:
    """Norms of the prefix tokens and of the patches after the last block, of all images in a row."""
    norms = traced_hidden(model, pixels).trace.hidden[-1].float().norm(dim=-1).cpu()  # (B, T)
    prefix = model.config.prefix
    return norms[:, :prefix].flatten().numpy(), norms[:, prefix:].flatten().numpy()


def principal_colours(patches: Tensor) -> Array:
    """Patch features of several images (B, N, D) as colours (B, N, 3), 0 to 1: their first three directions.

    The directions are of all images together, so that the same colour means the same thing on each.
    """
    b, n, width = patches.shape
    if min(b * n, width) < 3:
        raise InputError(f"colours need at least 3 patches of width 3, got {b * n} of width {width}")
    flat = patches.detach().cpu().double().flatten(0, 1)
    centred = flat - flat.mean(dim=0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    sign = torch.sign(directions[:3].sum(dim=1, keepdim=True))  # else the sign of a direction is chance
    values = centred @ (directions[:3] * torch.where(sign == 0, 1.0, sign)).T  # (B*N, 3)
    low, high = values.quantile(0.01, dim=0), values.quantile(0.99, dim=0)
    colours: Array = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1).view(b, n, 3).numpy()
    return colours
