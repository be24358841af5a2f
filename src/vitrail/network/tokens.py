"""patches (B, N, D) -> tokens (B, R+N, D): prefix tokens first, positions added; and the way back."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.network.config import ViTConfig
from vitrail.network.positions import Grid, RotaryAngles, RotaryPositions, build_tables


class TokenLayout(NamedTuple):
    """Where the tokens stand; travels beside them through the encoder."""

    grid: Grid  # (h, w): patches per column and row
    prefix: int  # R
    coordinates: Tensor | None = None  # (N, 2) or (B, N, 2): where rotary positions take each patch to be
    counts: Tensor | None = None  # (B, T): how many tokens each merged token stands for
    patch_to_token: Tensor | None = None  # (B, N): the patch token that now holds each original patch
    angles: RotaryAngles | None = None  # by which queries and keys are turned, in the block that is running


class Tokens(nn.Module):
    """Adds positions to patches and puts the prefix tokens before them."""

    starts: ClassVar = {"cls": "cls", "distillation": "cls", "registers": "registers"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.slots, self.prefix, self.depth = config.slots, config.prefix, config.depth
        self.at_stem = config.positions.at == "stem"
        self.dropout, self.patch_dropout = config.dropout, config.patch_dropout
        self.cls = nn.Parameter(torch.zeros(1, config.width)) if config.cls_token else None
        self.distillation = nn.Parameter(torch.zeros(1, config.width)) if config.distillation_token else None
        self.registers = nn.Parameter(torch.zeros(config.registers, config.width)) if config.registers else None
        self.tables = build_tables(config)
        self.rotary = RotaryPositions(config, config.rotary) if config.rotary else None

    def forward(self, patches: Tensor, grid: Grid) -> tuple[Tensor, TokenLayout]:
        """Tokens (B, T, D) and where they stand."""
        coordinates = self.rotary.coordinates(grid, patches.device) if self.rotary is not None else None
        prefix: list[Tensor] = [each for each in (self.cls, self.distillation) if each is not None]
        named = torch.cat(prefix) if prefix else None
        if self.at_stem and len(self.tables):
            table = self.tables[0](grid)  # (slots + N, D)
            patches = patches + table[self.slots :]  # (B, N, D)
            if named is not None and self.slots:
                named = named + table[: self.slots]
        if self.training and self.patch_dropout > 0:
            patches, coordinates = drop_patches(patches, coordinates, self.patch_dropout)
        parts = [each for each in (named, self.registers) if each is not None]  # registers have no position
        parts = [part.expand(patches.shape[0], -1, -1) for part in parts]
        tokens = torch.cat([*parts, patches], dim=1) if parts else patches  # (B, T, D)
        tokens = F.dropout(tokens, self.dropout, self.training) if self.dropout else tokens
        return tokens, TokenLayout(grid, self.prefix, coordinates)

    def additions(self, grid: Grid) -> list[Tensor]:
        """What to add before each block: (T, D) a block, where positions are added there; else nothing."""
        if self.at_stem or not len(self.tables):
            return []
        tables = [table(grid) for table in self.tables]  # (slots + N, D) each
        none = tables[0].new_zeros(self.prefix - self.slots, tables[0].shape[1])  # registers, and tokens without a slot
        padded = [torch.cat((table[: self.slots], none, table[self.slots :])) for table in tables]
        return padded if len(padded) == self.depth else padded * self.depth


def drop_patches(patches: Tensor, coordinates: Tensor | None, share: float) -> tuple[Tensor, Tensor | None]:
    """Leave out a share of the patches, other ones for each image; at least one stays."""
    b, n, width = patches.shape
    keep = max(1, round(n * (1 - share)))
    chosen = torch.rand(b, n, device=patches.device).argsort(dim=1)[:, :keep].sort(dim=1).values  # (B, keep)
    patches = patches.gather(1, chosen[..., None].expand(-1, -1, width))
    if coordinates is not None:
        coordinates = coordinates.expand(b, -1, -1).gather(1, chosen[..., None].expand(-1, -1, 2))
    return patches, coordinates
