"""Attention of all blocks (B, A, T, T) each, and what the pool reads (B, T) -> that row at the first block (B, T).

Multiplying this one row through the blocks is the same as the row of the full product.
Where a block merges tokens, the row goes back to those that were merged, each by its share; the first block has all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.insight.token_rows import carry
from vitrail.insight.tracing import LaidOutTrace
from vitrail.network.tokens import TokenLayout


def rows_of(seen: LaidOutTrace, block: int, weights: Tensor, patch: int | None = None) -> Tensor:
    """Where the pool looks through a block's weights (B, A, T, T), or the token that holds a patch: (B, A, T)."""
    layout = seen.layouts[block]
    if patch is None:
        row = carry(seen.trace.pool_weights, seen.layouts[-1], layout)
        return torch.einsum("bt,bats->bas", row.to(weights.dtype), weights)
    if layout.patch_to_token is None:
        return weights[:, :, layout.prefix + patch]
    holder = layout.prefix + layout.patch_to_token[:, patch]  # (B,)
    return weights[torch.arange(len(weights), device=weights.device), :, holder]


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
        counted = links.gather(1, order).long().cumsum(dim=1)  # up to each, from the weakest on
        weak = counted <= int(int(counted[0, -1]) * discard)  # as many links in every image
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
    """The patches of a row (B, T), in their places (B, h, w)."""
    return row[:, prefix:].reshape(-1, *grid)
