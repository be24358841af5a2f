"""Every kind of position, and how a table made for one grid is read on another.

Tables are added to tokens; relative keys add to the attention logits; rotary positions turn queries and keys.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.network.config import SINCOS_KINDS, Resample, Rotary, ViTConfig

Grid = tuple[int, int]


# ---- tables, added to the tokens -------------------------------------------------------------------------------


def sincos_1d(count: int, width: int) -> Tensor:
    """Sine and cosine in turn, wave lengths from 2 pi to 10000 * 2 pi: (count, width)."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(count, dtype=torch.float64)[:, None] * frequency  # (count, width/2)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).float()  # (count, width)


def sincos_2d(grid: Grid, width: int, moco: bool = False) -> Tensor:
    """Half the width tells the column, half the row, each as sines then cosines: (h*w, width).

    MAE divides the k-th exponent by D/4; MoCo-v3 and big_vision by D/4 - 1. The two are not interchangeable.
    """
    quarter = width // 4
    steps = quarter - 1 if moco else quarter
    frequency = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / steps)
    row, column = grid_coordinates(grid).double().unbind(-1)
    x, y = column[:, None] * frequency, row[:, None] * frequency  # (h*w, width/4) each
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1).float()


def grid_coordinates(grid: Grid, device: torch.device | None = None) -> Tensor:
    """Row and column of every patch, row by row: (N, 2)."""
    rows, columns = (torch.arange(side, dtype=torch.float32, device=device) for side in grid)
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).flatten(0, 1)


def resample(table: Tensor, old: Grid, new: Grid, policy: Resample) -> Tensor:
    """A table of one grid (h*w, D) read on another (h'*w', D); the same grid gives the same table."""
    if old == new:
        return table
    precise = torch.promote_types(table.dtype, torch.float32)
    image = table.to(precise).reshape(1, *old, -1).permute(0, 3, 1, 2)  # (1, D, h, w)
    align = None if policy.mode == "nearest" else policy.align_corners
    scale = tuple((n + policy.offset) / m for n, m in zip(new, old, strict=True)) if policy.offset else None
    image = F.interpolate(image, None if scale else new, scale, policy.mode, align, antialias=policy.antialias)
    return image.permute(0, 2, 3, 1).flatten(0, 2).to(table.dtype)


class PositionTable(nn.Module):
    """One vector a place: slots of prefix tokens first, then the grid, learned or fixed."""

    starts: ClassVar = {"table": "positions"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        kind, self.grid, self.slots = config.positions.kind, config.grid, config.slots
        self.policy, self.recompute_on_resize = config.positions.resample, kind == "sincos-2d-moco"
        patches = self.grid[0] * self.grid[1]
        if kind == "learned":
            self.table = nn.Parameter(torch.zeros(self.slots + patches, config.width))
        else:
            self.register_buffer("table", fixed_table(kind, self.grid, self.slots, config.width))

    def forward(self, grid: Grid) -> Tensor:
        """(slots + h*w, D) for the grid asked for; the slots are never resampled.

        MAE resamples its fixed table for another grid; MoCo-v3 and big_vision make theirs anew.
        """
        if grid == self.grid:
            return self.table
        if self.recompute_on_resize:
            return fixed_table("sincos-2d-moco", grid, self.slots, self.table.shape[1]).to(self.table)
        slots, patches = self.table[: self.slots], self.table[self.slots :]  # (slots, D), (h*w, D)
        return torch.cat((slots, resample(patches, self.grid, grid, self.policy)))


def fixed_table(kind: str, grid: Grid, slots: int, width: int) -> Tensor:
    """The sine-cosine table of a kind; in 2-D the slots are zeros, in 1-D they are the first places."""
    if kind == "sincos-1d":
        return sincos_1d(slots + grid[0] * grid[1], width)
    table = sincos_2d(grid, width, moco=kind == "sincos-2d-moco")
    return torch.cat((torch.zeros(slots, width), table))


class PositionTable2d(nn.Module):
    """Two learned tables of half the width, one for rows and one for columns, side by side."""

    starts: ClassVar = {"slots": "positions", "rows": "positions", "columns": "positions"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.policy = config.grid, config.positions.resample
        self.slots = nn.Parameter(torch.zeros(config.slots, config.width))  # of the prefix
        self.rows = nn.Parameter(torch.zeros(self.grid[0], config.width // 2))
        self.columns = nn.Parameter(torch.zeros(self.grid[1], config.width // 2))

    def forward(self, grid: Grid) -> Tensor:
        """(slots + h*w, D) for the grid asked for."""
        rows = resample(self.rows, (self.grid[0], 1), (grid[0], 1), self.policy)  # (h, D/2)
        columns = resample(self.columns, (1, self.grid[1]), (1, grid[1]), self.policy)  # (w, D/2)
        both = (rows[:, None].expand(-1, grid[1], -1), columns[None].expand(grid[0], -1, -1))  # (h, w, D/2) each
        return torch.cat((self.slots, torch.cat(both, dim=-1).flatten(0, 1)))


# The kinds that are a table: made from a config, and asked for a grid.
TABLES: Final = dict.fromkeys(("learned", *SINCOS_KINDS), PositionTable) | {"learned-2d": PositionTable2d}


def build_tables(config: ViTConfig) -> nn.ModuleList:
    """No table, one table, or one for every block."""
    table = TABLES.get(config.positions.kind)
    count = config.depth if config.positions.at == "every" else 1
    return nn.ModuleList(table(config) for _ in range(count) if table is not None)


# ---- relative keys, added to the attention logits --------------------------------------------------------------


class RelativeKeys(nn.Module):
    """A learned key for every offset along the row-by-row order; its product with the query biases the logits."""

    starts: ClassVar = {"table": "positions"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid = config.grid
        self.table = nn.Parameter(torch.zeros(2 * self.grid[0] * self.grid[1] - 1, config.per_head))

    def forward(self, queries: Tensor, grid: Grid, prefix: int) -> Tensor:
        """Queries (B, A, T, d) -> bias (B, A, T, T), zero where a prefix token takes part.

        On another grid each patch takes its place on the native one, ends on ends, and keys are mixed linearly.
        """
        keys = self.table.T.to(queries.dtype)  # (d, 2*N0-1)
        scores = queries[..., prefix:, :] @ keys * queries.shape[-1] ** -0.5  # (B, A, N, 2*N0-1)
        rows, columns = grid_coordinates(grid, queries.device).unbind(-1)
        rows = rows * ((self.grid[0] - 1) / max(grid[0] - 1, 1))
        places = rows * self.grid[1] + columns * ((self.grid[1] - 1) / max(grid[1] - 1, 1))  # (N,) on the native grid
        offsets = places[:, None] - places[None, :] + (self.table.shape[0] // 2)  # (N, N), query past key
        offsets = offsets.clamp(0, self.table.shape[0] - 1)  # rounding may step over the ends
        low = offsets.floor().long()
        wide = (*scores.shape[:2], *offsets.shape)  # (B, A, N, N)
        bias = scores.gather(-1, low.expand(wide))
        if grid != self.grid:
            above = scores.gather(-1, (low + 1).clamp(max=scores.shape[-1] - 1).expand(wide))
            bias = torch.lerp(bias, above, (offsets - low).to(scores.dtype))
        return F.pad(bias, (prefix, 0, prefix, 0))  # (B, A, T, T)


# ---- rotary positions: queries and keys are turned -------------------------------------------------------------


class RotaryAngles(NamedTuple):
    """Cosines and sines for every patch, (…, N, d), and how values pair up: (0, 1), (2, 3)… or (0, d/2)…"""

    cos: Tensor
    sin: Tensor
    halves: bool


def apply_rotary(x: Tensor, angles: RotaryAngles, prefix: int) -> Tensor:
    """Turn the patches of queries or keys (B, A, T, d); prefix tokens stay as they are."""
    cos, sin, halves = angles
    patches = x[..., prefix:, :]  # (B, A, N, d)
    if halves:
        first, second = patches.chunk(2, dim=-1)
        swapped = torch.cat((-second, first), dim=-1)
    else:
        swapped = torch.stack((-patches[..., 1::2], patches[..., 0::2]), dim=-1).flatten(-2)
    patches = patches * cos.to(x.dtype) + swapped * sin.to(x.dtype)
    return torch.cat((x[..., :prefix, :], patches), dim=-2) if prefix else patches


class RotaryPositions(nn.Module):
    """Angles from the coordinates of patches; the mixed kind learns its frequencies per block and head."""

    def __init__(self, config: ViTConfig, rotary: Rotary) -> None:
        super().__init__()
        self.rotary, self.head_width = rotary, config.per_head
        self.mixed: nn.ParameterList | None = None
        if rotary.kind == "mixed":
            kept = (len(config.heads_of(block)) for block in range(config.depth))  # heads of each block
            tables = (mixed_frequencies(heads, config.per_head, rotary.theta) for heads in kept)
            self.mixed = nn.ParameterList(map(nn.Parameter, tables))

    def coordinates(self, grid: Grid, device: torch.device) -> Tensor:
        """Where the patches stand, in the units of this kind: (N, 2)."""
        points = grid_coordinates(grid, device)
        if self.rotary.kind != "dinov3":
            return points
        rows, columns = points.unbind(-1)  # (N,) each
        points = torch.stack(((rows + 0.5) / grid[0], (columns + 0.5) / grid[1]), dim=-1)
        points = points * 2 - 1  # centres, each axis from -1 to 1
        return self._augmented(points) if self.training else points

    def _augmented(self, points: Tensor) -> Tensor:
        """Shift, jitter per axis and rescale at random, so that other sizes are not new (DINOv3)."""
        shift, jitter, rescale = self.rotary.shift, math.log(self.rotary.jitter), math.log(self.rotary.rescale)
        if shift:
            points = points + points.new_empty(2).uniform_(-shift, shift)
        if jitter:
            points = points * points.new_empty(2).uniform_(-jitter, jitter).exp()
        if rescale:
            points = points * points.new_empty(1).uniform_(-rescale, rescale).exp()  # both axes alike
        return points

    def forward(self, points: Tensor, block: int) -> RotaryAngles:
        """The turn of every patch in a block; points (N, 2), or (B, N, 2) where patches have moved."""
        points = points[..., None, :, :]  # room for the heads: (…, 1, N, 2)
        row, column = points[..., :1], points[..., 1:]
        if self.mixed is not None:
            along_rows, along_columns = self.mixed[block].to(points.dtype)[:, :, None].unbind(1)  # (A, 1, d/2)
            angle = row * along_rows + column * along_columns  # (…, A, N, d/2); no matmul, which autocast would round
        else:
            frequency = axis_frequencies(self.rotary, self.head_width, points.device)
            first, second = (row, column) if self.rotary.kind == "dinov3" else (column, row)
            angle = torch.cat((first * frequency, second * frequency), dim=-1)  # (…, 1, N, d/2)
        halves = self.rotary.kind == "dinov3"
        angle = torch.cat((angle, angle), dim=-1) if halves else angle.repeat_interleave(2, dim=-1)
        return RotaryAngles(angle.cos(), angle.sin(), halves)


def axis_frequencies(rotary: Rotary, head_width: int, device: torch.device | None = None) -> Tensor:
    """d/4 frequencies along one axis, falling from 1 towards 1/theta (in DINOv3 times 2 pi)."""
    exponent = torch.arange(head_width // 4, dtype=torch.float32, device=device) / (head_width // 4)
    frequency = rotary.theta**-exponent
    return 2 * math.pi * frequency if rotary.kind == "dinov3" else frequency


def mixed_frequencies(heads: int, head_width: int, theta: float) -> Tensor:
    """A start for learned frequencies: axial ones, every head turned by an angle of its own: (heads, 2, d/2)."""
    magnitude = axis_frequencies(Rotary(theta=theta), head_width)  # (d/4,)
    angle = torch.rand(heads, 1) * 2 * math.pi  # of each head
    quarter = angle + math.pi / 2
    column = torch.cat((magnitude * angle.cos(), magnitude * quarter.cos()), dim=1)  # (heads, d/2)
    row = torch.cat((magnitude * angle.sin(), magnitude * quarter.sin()), dim=1)
    return torch.stack((row, column), dim=1)
