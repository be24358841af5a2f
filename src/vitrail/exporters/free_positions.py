"""Positions for any grid, for graphs whose size is known only when they run: each a module that takes another's place.

The network's own modules ask whether a grid is the native one, and resample where it is not; a graph can ask nothing.
These always resample, by matrices that leave the native grid as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.exporters.resample_matrices import over, same, size_tensor, weights
from vitrail.network.attention import Attention
from vitrail.network.positions import Grid, PositionTable, PositionTable2d, RelativeKeys, grid_coordinates
from vitrail.network.vit import ViT


def free_the_size(model: ViT) -> None:
    """Give a network whose sizes are symbols modules that can do with them, in place; or say why it has none."""
    if model.config.fixed_size:
        raise InputError("this network refuses other sizes (fixed_size=True): export without dynamic_size")
    if model.config.merge_per_block:
        raise InputError(
            "token merging joins a number of tokens that the size decides, which a graph must know beforehand: export "
            "without dynamic_size, or with merge_per_block=0"
        )
    for index, table in enumerate(model.tokens.tables):
        model.tokens.tables[index] = _any_grid(table)
    for module in model.encoder.modules():
        if isinstance(module, Attention) and isinstance(module.relative, RelativeKeys):
            module.relative = AnyGridKeys(module.relative)  # type: ignore[assignment]


def _any_grid(table: nn.Module) -> nn.Module:
    if isinstance(table, PositionTable2d):
        return AnyGridTable2d(table)
    if isinstance(table, PositionTable):
        return AnyGridWaves(table) if table.recompute_on_resize else AnyGridTable(table)
    raise InputError(f"positions of kind {type(table).__name__} cannot be exported for any size")


class AnyGridTable(nn.Module):
    """A table, learned or fixed, that is resampled on every grid."""

    table: Tensor

    def __init__(self, source: PositionTable) -> None:
        super().__init__()
        self.grid, self.policy, self.slots = source.grid, source.policy, source.slots
        self.register_buffer("table", source.table.detach(), persistent=False)

    def forward(self, grid: Grid) -> Tensor:
        """(slots + h*w, D)."""
        slots, patches = self.table[: self.slots], self.table[self.slots :]
        # 1 on the table's own grid, else 0
        keep = same(size_tensor(grid[0]), self.grid[0]) * same(size_tensor(grid[1]), self.grid[1])
        rows, columns = (weights(old, new, self.policy, keep) for old, new in zip(self.grid, grid, strict=True))
        width = patches.shape[1]
        across = rows @ patches.reshape(self.grid[0], -1)  # (h, w0*D)
        across = across.reshape(grid[0], self.grid[1], width)  # (h, w0, D)
        return torch.cat((slots, (columns @ across).reshape(grid[0] * grid[1], width)))


class AnyGridWaves(nn.Module):
    """Sines and cosines made anew for every grid (MoCo-v3, big_vision)."""

    frequency: Tensor

    def __init__(self, source: PositionTable) -> None:
        super().__init__()
        self.slots, self.width = source.slots, source.table.shape[1]
        quarter = self.width // 4
        frequency = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / (quarter - 1))
        self.register_buffer("frequency", frequency.float(), persistent=False)

    def forward(self, grid: Grid) -> Tensor:
        """(slots + h*w, D)."""
        row, column = grid_coordinates(grid).unbind(-1)
        x, y = column[:, None] * self.frequency, row[:, None] * self.frequency
        table = torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)
        return torch.cat((table.new_zeros(self.slots, self.width), table))


class AnyGridTable2d(nn.Module):
    """Two tables, of rows and of columns, each resampled along its side."""

    slots: Tensor
    rows: Tensor
    columns: Tensor

    def __init__(self, source: PositionTable2d) -> None:
        super().__init__()
        self.grid, self.policy = source.grid, source.policy
        for name in ("slots", "rows", "columns"):
            self.register_buffer(name, getattr(source, name).detach(), persistent=False)

    def forward(self, grid: Grid) -> Tensor:
        """(slots + h*w, D)."""
        along = [
            weights(old, new, self.policy, same(size_tensor(new), old)) @ table
            for old, new, table in zip(self.grid, grid, (self.rows, self.columns), strict=True)
        ]
        rows = along[0][:, None].expand(-1, grid[1], -1)
        columns = along[1][None].expand(grid[0], -1, -1)
        return torch.cat((self.slots, torch.cat((rows, columns), dim=-1).flatten(0, 1)))


class AnyGridKeys(nn.Module):
    """Relative keys that are always mixed from two neighbours; on the native grid one of them has no share."""

    table: Tensor

    def __init__(self, source: RelativeKeys) -> None:
        super().__init__()
        self.grid = source.grid
        self.register_buffer("table", source.table.detach(), persistent=False)

    def forward(self, queries: Tensor, grid: Grid, prefix: int) -> Tensor:
        """Queries (B, A, T, d) -> bias (B, A, T, T)."""
        scores = queries[..., prefix:, :] @ self.table.T * queries.shape[-1] ** -0.5  # (B, A, N, 2*N0-1)
        steps = [
            over(old - 1, torch.clamp(size_tensor(new) - 1, min=1)) for old, new in zip(self.grid, grid, strict=True)
        ]
        rows, columns = grid_coordinates(grid).unbind(-1)
        places = rows * steps[0] * self.grid[1] + columns * steps[1]
        last = self.table.shape[0] - 1
        offsets = (places[:, None] - places[None, :] + last // 2).clamp(0, last)  # (N, N)
        low = offsets.floor()
        share = offsets - low
        images, heads = scores.shape[:2]
        first, second = (
            scores.gather(-1, each.long().expand(images, heads, -1, -1)) for each in (low, (low + 1).clamp(max=last))
        )
        return F.pad(first + share * (second - first), (prefix, 0, prefix, 0))
