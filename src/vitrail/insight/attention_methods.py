"""Methods that follow attention (B, A, T, T) of the blocks: raw, rollout, gradient rollout, relevance.

Every one starts from what the pool reads (B, T), so that the map is of the tokens that the answer was made from, and
goes back block by block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from vitrail.checks import check_choice, check_int, check_number
from vitrail.errors import InputError
from vitrail.insight.activations import attention_with_gradients, traced
from vitrail.insight.attribution import Method
from vitrail.insight.rollout import fuse, roll, rows_of, to_grid, without_weak
from vitrail.insight.targets import Aim
from vitrail.insight.token_rows import carry, spread
from vitrail.network.vit import ViT

FUSIONS: Final = ("mean", "max", "min")


@dataclass(frozen=True)
class Attention(Method):
    """What one block looks at: the weights of its attention, nothing added."""

    name: ClassVar[str] = "attention"
    block: int = -1
    head: int | None = None  # by its original number; None: the mean of all
    query: int | tuple[int, int] | None = None  # a patch, by number or (row, column); None: what the pool reads

    def __post_init__(self) -> None:
        check_int("block", self.block, least=-1024)
        if self.head is not None:
            check_int("head", self.head, least=0)
        if self.query is not None:
            for each in self.query if isinstance(self.query, tuple) else (self.query,):
                check_int("query", each, least=0)
            if isinstance(self.query, tuple) and len(self.query) != 2:
                raise InputError(f"query: expected the number of a patch or (row, column), got {self.query}")

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        """What a block looks at, of all heads or one, seen from the pool or from a patch."""
        config, grid = model.config, model.grid_of(pixels)
        block = check_int("block", self.block, -config.depth, config.depth - 1, error=InputError) % config.depth
        heads = config.heads_of(block)
        if self.head is not None and self.head not in heads:
            raise InputError(f"head {self.head}: block {block} has the heads {', '.join(map(str, heads))}")
        patch = None if self.query is None else _patch(self.query, grid)
        is_one_row = config.pool == "cls" if patch is None else not config.merge_per_block
        row = 0 if patch is None else config.prefix + patch
        record = traced(model, pixels, [block], [row] if is_one_row else None)
        [weights] = record.trace.attention
        weights = weights[:, :, 0] if is_one_row else rows_of(record, block, weights, patch)  # (B, A, T)
        chosen = weights.mean(dim=1) if self.head is None else weights[:, heads.index(self.head)]
        return to_grid(spread(chosen.float(), record.layouts[block]), config.prefix, grid)


@dataclass(frozen=True)
class Rollout(Method):
    """Attention followed through all blocks (Abnar and Zuidema 2020)."""

    name: ClassVar[str] = "rollout"
    fusion: str = "mean"  # of the heads: mean, max or min
    discard: float = 0.9  # share of the weakest links between patches that are cut, in every block
    blocks: int | None = None  # so many of them, from the first: how far attention has come by then; None: all

    def __post_init__(self) -> None:
        check_choice("fusion", self.fusion, FUSIONS)
        check_number("discard", self.discard, 0.0, 1.0, below=True)
        if self.blocks is not None:
            check_int("blocks", self.blocks, 1, 1024)

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        """Attention multiplied through the blocks, half of each token kept for the residual way around it."""
        count = model.config.depth if self.blocks is None else self.blocks
        check_int("blocks", count, 1, model.config.depth, error=InputError)
        record = traced(model, pixels, list(range(count)))
        layouts = record.layouts[: count + 1]
        fused = [
            without_weak(fuse(each.float(), self.fusion), self.discard, layout)
            for each, layout in zip(record.trace.attention, layouts[:-1], strict=True)
        ]
        start = carry(record.trace.pool_weights.float(), record.layouts[-1], layouts[-1])
        rolled = roll(fused, start, layouts)
        return to_grid(rolled, model.config.prefix, model.grid_of(pixels))


@dataclass(frozen=True)
class GradientRollout(Method):
    """Rollout of attention times its gradient: what speaks for the target."""

    name: ClassVar[str] = "gradient-rollout"
    discard: float = 0.9

    def __post_init__(self) -> None:
        check_number("discard", self.discard, 0.0, 1.0, below=True)

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        """Rollout of the mean over heads of attention times gradient, what speaks against the target left out."""
        record = attention_with_gradients(model, pixels, aims)
        fused = [
            without_weak((weights * slope).mean(dim=1).clamp(min=0), self.discard, layout)
            for weights, slope, layout in zip(record.values, record.gradients, record.layouts[:-1], strict=True)
        ]
        return to_grid(roll(fused, record.pool_weights, record.layouts), model.config.prefix, model.grid_of(pixels))


@dataclass(frozen=True)
class Relevance(Method):
    """Attention weighted by its gradient, head by head, added up through all blocks (Chefer et al. 2021)."""

    name: ClassVar[str] = "relevance"

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        """R = I, then R + mean of the positive parts of (attention * gradient) @ R, block by block; the pool's row."""
        record = attention_with_gradients(model, pixels, aims)
        row = record.pool_weights  # (B, T)
        for block in reversed(range(model.config.depth)):
            row = carry(row, record.layouts[block + 1], record.layouts[block])
            positive = (record.values[block] * record.gradients[block]).clamp(min=0).mean(dim=1)  # (B, T, T)
            row = row + torch.einsum("bt,bts->bs", row, positive)
        if model.config.pool != "map":
            # what a mean reads of a patch by itself is the same for all: it says nothing of where
            row = row - spread(record.pool_weights, record.layouts[-1])
        return to_grid(row, model.config.prefix, model.grid_of(pixels))


def _patch(query: int | tuple[int, int], grid: tuple[int, int]) -> int:
    """The number of a patch, from 0."""
    h, w = grid
    if isinstance(query, tuple):
        row = check_int("query row", query[0], 0, h - 1, error=InputError)
        return row * w + check_int("query column", query[1], 0, w - 1, error=InputError)
    return check_int("query", query, 0, h * w - 1, error=InputError)
