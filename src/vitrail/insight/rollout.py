"""Attention of all blocks (B, A, T, T) each -> a map (B, h, w): raw, rollout, gradient rollout, relevance.

Every one starts from what the pool reads (B, T), so that the map is of the tokens that the answer was made from, and
goes back block by block. Multiplying this one row through the blocks is the same as the row of the full product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.checks import whole
from vitrail.errors import InputError
from vitrail.insight.methods import Attention, GradientRollout, Relevance, Rollout
from vitrail.insight.recording import attention_with_gradients, keep_tokens, traced
from vitrail.insight.targets import Aim
from vitrail.network.vit import ViT


def attention_map(model: ViT, pixels: Tensor, method: Attention) -> Tensor:
    """What a block looks at, of all heads or one, seen from the pool or from a patch."""
    config, grid = model.config, model.grid_of(pixels)
    keep_tokens(model)
    block = whole("block", method.block, -config.depth, config.depth - 1, error=InputError) % config.depth
    heads = config.heads_of(block)
    if method.head is not None and method.head not in heads:
        raise InputError(f"head {method.head}: block {block} has the heads {', '.join(map(str, heads))}")
    if method.query is not None:
        row = config.prefix + _patch(method.query, grid)
        weights = traced(model, pixels, [block], [row]).attention[0][:, :, 0]  # (B, A, T)
    elif config.pool == "cls":
        weights = traced(model, pixels, [block], [0]).attention[0][:, :, 0]
    else:
        found = traced(model, pixels, [block])
        weights = torch.einsum("bt,bats->bas", found.pool_weights, found.attention[0])
    chosen = weights.mean(dim=1) if method.head is None else weights[:, heads.index(method.head)]
    return to_grid(chosen.float(), config.prefix, grid)


def rollout_map(model: ViT, pixels: Tensor, method: Rollout) -> Tensor:
    """Attention multiplied through all blocks, half of each token kept for the residual way around it."""
    found = traced(model, pixels)
    prefix = model.config.prefix
    fused = [without_weak(fuse(each.float(), method.fusion), method.discard, prefix) for each in found.attention]
    return to_grid(roll(fused, found.pool_weights.float()), prefix, model.grid_of(pixels))


def gradient_rollout_map(model: ViT, pixels: Tensor, method: GradientRollout, aims: Sequence[Aim]) -> Tensor:
    """Rollout of the mean over heads of attention times gradient, what speaks against the target left out."""
    found = attention_with_gradients(model, pixels, aims)
    prefix = model.config.prefix
    fused = [
        without_weak((weights * slope).mean(dim=1).clamp(min=0), method.discard, prefix)
        for weights, slope in zip(found.values, found.gradients, strict=True)
    ]
    return to_grid(roll(fused, found.pool_weights), prefix, model.grid_of(pixels))


def relevance_map(model: ViT, pixels: Tensor, method: Relevance, aims: Sequence[Aim]) -> Tensor:
    """R = I, then R + mean of the positive parts of (attention * gradient) @ R, block by block; read by the pool."""
    found = attention_with_gradients(model, pixels, aims)
    row = found.pool_weights  # (B, T)
    for weights, slope in zip(reversed(found.values), reversed(found.gradients), strict=True):
        positive = (weights * slope).clamp(min=0).mean(dim=1)  # (B, T, T)
        row = row + torch.einsum("bt,bts->bs", row, positive)
    if (
        model.config.pool != "map"
    ):  # what a mean reads of a patch by itself is the same for all: it says nothing of where
        row = row - found.pool_weights
    return to_grid(row, model.config.prefix, model.grid_of(pixels))


def fuse(weights: Tensor, fusion: str) -> Tensor:
    """One matrix of all heads: (B, A, T, T) -> (B, T, T)."""
    if fusion == "mean":
        return weights.mean(dim=1)
    return weights.amax(dim=1) if fusion == "max" else weights.amin(dim=1)


def without_weak(fused: Tensor, discard: float, prefix: int) -> Tensor:
    """The weakest share of the links set to 0, picture by picture; links to prefix tokens are never cut."""
    if not discard:
        return fused
    patches = fused[:, :, prefix:]  # (B, T, N)
    flat = patches.flatten(1)
    count = int(flat.shape[1] * discard)
    weakest = flat.argsort(dim=1, stable=True)[:, :count]
    return torch.cat((fused[:, :, :prefix], flat.scatter(1, weakest, 0.0).view_as(patches)), dim=2)


def roll(fused: Sequence[Tensor], start: Tensor) -> Tensor:
    """start @ A_L @ … @ A_1, where A = (fused + I) with rows that sum to 1."""
    row = start
    for each in reversed(fused):
        row = torch.einsum("bt,bts->bs", row, with_residual(each))
    return row


def with_residual(fused: Tensor) -> Tensor:
    """Each token's own way around attention added, and every row made to sum to 1."""
    kept = fused + torch.eye(fused.shape[-1], device=fused.device)
    return kept / kept.sum(dim=-1, keepdim=True)


def to_grid(row: Tensor, prefix: int, grid: tuple[int, int]) -> Tensor:
    """The patches of a row (B, T), in their places (B, h, w)."""
    return row[:, prefix:].reshape(-1, *grid)


def _patch(query: int | tuple[int, int], grid: tuple[int, int]) -> int:
    """The number of a patch, from 0."""
    h, w = grid
    if isinstance(query, tuple):
        row = whole("query row", query[0], 0, h - 1, error=InputError)
        return row * w + whole("query column", query[1], 0, w - 1, error=InputError)
    return whole("query", query, 0, h * w - 1, error=InputError)
