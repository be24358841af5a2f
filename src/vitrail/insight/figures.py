"""Figures of a network: attention over a picture, what its positions and patch filters look like."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.insight.pictures import coloured, normalised, overlay, sheet
from vitrail.insight.trace import Trace
from vitrail.network.positions import sincos_2d
from vitrail.network.vit import ViT


def attention_sheet(
    trace: Trace, grid: tuple[int, int], prefix: int, image: Image.Image, query: int = 0, tile: int = 132
) -> Image.Image:
    """Where one token looks: a row for every block traced, a column for every head, the mean of heads last."""
    small = image.resize((tile, tile), Image.Resampling.LANCZOS)
    tiles = []
    for weights in trace.attention:
        maps = weights[0, :, query, prefix:].reshape(-1, *grid)  # (A, h, w)
        maps = torch.cat((maps, maps.mean(dim=0, keepdim=True)))
        tiles.append([overlay(small, each.detach().numpy()) for each in maps])
    heads = [f"head {number}" for number in range(len(tiles[0]) - 1)]
    name = "the cls token" if query == 0 and prefix else f"patch {query - prefix}"
    rows = [f"block {number}" for number in range(len(tiles))]
    return sheet(tiles, f"Where {name} looks", rows, [*heads, "mean"])


def position_similarity(table: Tensor, grid: tuple[int, int], cell: int = 5) -> Image.Image:
    """Cosine similarity of every patch's position to all others: a tile for each patch (table (h*w, D))."""
    unit = F.normalize(table.float(), dim=1)
    likeness = (unit @ unit.T).reshape(*grid, *grid).detach().numpy()
    low, high = float(likeness.min()), float(likeness.max())
    side = (grid[1] * cell, grid[0] * cell)
    tiles = []
    for row in range(grid[0]):
        scaled = [(likeness[row, column] - low) / max(high - low, 1e-12) for column in range(grid[1])]
        tiles.append([coloured(each).resize(side, Image.Resampling.NEAREST) for each in scaled])
    return sheet(tiles, "Positions: how alike each patch's is to all others", gap=3)


def sincos_heat_map(grid: tuple[int, int], width: int, cell: int = 5) -> Image.Image:
    """The fixed sine-cosine table: a row for every patch, a column for every value."""
    table = (sincos_2d(grid, width).numpy() + 1) / 2
    picture = coloured(table).resize((width * cell, len(table) * cell), Image.Resampling.NEAREST)
    return sheet([[picture]], f"Sine-cosine positions of a {grid[0]}x{grid[1]} grid, width {width}")


def patch_filters(model: ViT, count: int = 28, columns: int = 7, cell: int = 9) -> Image.Image:
    """The principal components of the patch kernel, strongest first."""
    kernel = model.patches.projection.weight.detach().float()  # (D, C, P, P)
    _, _, directions = torch.linalg.svd(kernel.flatten(1) - kernel.flatten(1).mean(dim=0), full_matrices=False)
    parts = directions[:count].reshape(-1, *kernel.shape[1:])
    tiles = []
    for part in parts:
        values = part.mean(dim=0, keepdim=True).expand(3, -1, -1) if part.shape[0] != 3 else part
        array = (normalised(values.permute(1, 2, 0).numpy()) * 255).round().astype(np.uint8)
        side = (part.shape[2] * cell, part.shape[1] * cell)
        tiles.append(Image.fromarray(array).resize(side, Image.Resampling.NEAREST))
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    return sheet(rows, "What a patch is measured by: principal components of the filters")
