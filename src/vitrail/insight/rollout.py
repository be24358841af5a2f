"""Attention of all blocks (B, A, T, T) each -> a map (B, h, w): raw, rollout, gradient rollout, relevance.

Every one starts from what the pool reads (B, T), so that the map is of the tokens that the answer was made from, and
goes back block by block. Multiplying this one row through the blocks is the same as the row of the full product.
Where a block merges tokens, the row goes back to those that were merged, each by its share; the first block has all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.insight.activations import attention_with_gradients, traced
from vitrail.insight.methods import Attention, GradientRollout, Relevance, Rollout
from vitrail.insight.targets import Aim
from vitrail.insight.token_rows import carry, spread
from vitrail.insight.tracing import LaidOutTrace
from vitrail.network.tokens import TokenLayout
from vitrail.network.vit import ViT


def attention_map(model: ViT, pixels: Tensor, method: Attention) -> Tensor:
    """What a block looks at, of all heads or one, seen from the pool or from a patch."""
    config, grid = model.config, model.grid_of(pixels)
    block = check_int("block", method.block, -config.depth, config.depth - 1, error=InputError) % config.depth
    heads = config.heads_of(block)
    if method.head is not None and method.head not in heads:
        raise InputError(f"head {method.head}: block {block} has the heads {', '.join(map(str, heads))}")
    patch = None if method.query is None else _patch(method.query, grid)
    if patch is None and config.pool == "cls":
        found = traced(model, pixels, [block], [0])
        weights = found.trace.attention[0][:, :, 0]  # (B, A, T)
    elif patch is not None and not config.merge_per_block:
        found = traced(model, pixels, [block], [config.prefix + patch])
        weights = found.trace.attention[0][:, :, 0]
    else:
        found = traced(model, pixels, [block])
        weights = rows_of(found, block, found.trace.attention[0], patch)
    chosen = weights.mean(dim=1) if method.head is None else weights[:, heads.index(method.head)]
    return to_grid(spread(chosen.float(), found.layouts[block]), config.prefix, grid)


def rows_of(found: LaidOutTrace, block: int, weights: Tensor, patch: int | None = None) -> Tensor:
    """Where the pool looks through a block's weights (B, A, T, T), or the token that holds a patch: (B, A, T)."""
    layout = found.layouts[block]
    if patch is None:
        row = carry(found.trace.pool_weights, found.layouts[-1], layout)
        return torch.einsum("bt,bats->bas", row.to(weights.dtype), weights)
    if layout.patch_to_token is None:
        return weights[:, :, layout.prefix + patch]
    holder = layout.prefix + layout.patch_to_token[:, patch]  # (B,)
    return weights[torch.arange(len(weights), device=weights.device), :, holder]


def rollout_map(model: ViT, pixels: Tensor, method: Rollout) -> Tensor:
    """Attention multiplied through the blocks, half of each token kept for the residual way around it."""
    count = model.config.depth if method.blocks is None else method.blocks
    check_int("blocks", count, 1, model.config.depth, error=InputError)
    found = traced(model, pixels, list(range(count)))
    layouts = found.layouts[: count + 1]
    fused = [
        without_weak(fuse(each.float(), method.fusion), method.discard, layout)
        for each, layout in zip(found.trace.attention, layouts[:-1], strict=True)
    ]
    start = carry(found.trace.pool_weights.float(), found.layouts[-1], layouts[-1])
    rolled = roll(fused, start, layouts)
    return to_grid(rolled, model.config.prefix, model.grid_of(pixels))


def gradient_rollout_map(model: ViT, pixels: Tensor, method: GradientRollout, aims: Sequence[Aim]) -> Tensor:
    """Rollout of the mean over heads of attention times gradient, what speaks against the target left out."""
    found = attention_with_gradients(model, pixels, aims)
    fused = [
        without_weak((weights * slope).mean(dim=1).clamp(min=0), method.discard, layout)
        for weights, slope, layout in zip(found.values, found.gradients, found.layouts[:-1], strict=True)
    ]
    return to_grid(roll(fused, found.pool_weights, found.layouts), model.config.prefix, model.grid_of(pixels))


def relevance_map(model: ViT, pixels: Tensor, method: Relevance, aims: Sequence[Aim]) -> Tensor:
    """R = I, then R + mean of the positive parts of (attention * gradient) @ R, block by block; read by the pool."""
    found = attention_with_gradients(model, pixels, aims)
    row = found.pool_weights  # (B, T)
    for block in reversed(range(model.config.depth)):
        row = carry(row, found.layouts[block + 1], found.layouts[block])
        positive = (found.values[block] * found.gradients[block]).clamp(min=0).mean(dim=1)  # (B, T, T)
        row = row + torch.einsum("bt,bts->bs", row, positive)
    if model.config.pool != "map":
        # what a mean reads of a patch by itself is the same for all: it says nothing of where
        row = row - spread(found.pool_weights, found.layouts[-1])
    return to_grid(row, model.config.prefix, model.grid_of(pixels))


def fuse(weights: Tensor, fusion: str) -> Tensor:
    """One matrix of all heads: (B, A, T, T) -> (B, T, T)."""
    if fusion == "mean":
        return weights.mean(dim=1)
    return weights.amax(dim=1) if fusion == "max" else weights.amin(dim=1)


def without_weak(fused: Tensor, discard: float, layout: TokenLayout) -> Tensor:
    """The weakest share of the links set to 0, image by image; links to prefix tokens are never cut.

    The link between two merged tokens is as many as there are between the patches that they hold, all as strong.
    """
    if not discard:
        return fused
    prefix = layout.prefix
    patches = fused[:, :, prefix:]  # (B, T, N)
    flat = patches.flatten(1)
    if layout.counts is None:
        count = int(flat.shape[1] * discard)
        weakest = flat.argsort(dim=1, stable=True)[:, :count]
        kept = flat.scatter(1, weakest, 0.0)
    else:
        holds = layout.counts[:, prefix:]  # (B, N)
        links = (layout.counts[:, :, None] * holds[:, None]).flatten(1)  # (B, T*N)
        order = (patches / holds[:, None]).flatten(1).argsort(dim=1, stable=True)
        counted = links.gather(1, order).double().cumsum(dim=1)  # up to each, from the weakest on
        weak = counted <= int(float(counted[0, -1]) * discard)  # as many links in every image
        kept = flat.masked_fill(torch.zeros_like(weak).scatter(1, order, weak), 0.0)
    return torch.cat((fused[:, :, :prefix], kept.view_as(patches)), dim=2)


def roll(fused: Sequence[Tensor], start: Tensor, layouts: Sequence[TokenLayout]) -> Tensor:
    """start @ M_L @ A_L @ … @ M_1 @ A_1, where A = (fused + I) with rows that sum to 1, and M are the mergings."""
    row = start
    for block in reversed(range(len(fused))):
        row = carry(row, layouts[block + 1], layouts[block])
        row = torch.einsum("bt,bts->bs", row, with_residual(fused[block]))
    return row


def with_residual(fused: Tensor) -> Tensor:
    """Each token's own way around attention added, and every row made to sum to 1."""
    kept = fused + torch.eye(fused.shape[-1], device=fused.device)
    return kept / kept.sum(dim=-1, keepdim=True)


def to_grid(row: Tensor, prefix: int, grid: tuple[int, int]) -> Tensor:
    """The patches of a row (B, T), in their layouts (B, h, w)."""
    return row[:, prefix:].reshape(-1, *grid)


def _patch(query: int | tuple[int, int], grid: tuple[int, int]) -> int:
    """The number of a patch, from 0."""
    h, w = grid
    if isinstance(query, tuple):
        row = check_int("query row", query[0], 0, h - 1, error=InputError)
        return row * w + check_int("query column", query[1], 0, w - 1, error=InputError)
    return check_int("query", query, 0, h * w - 1, error=InputError)
