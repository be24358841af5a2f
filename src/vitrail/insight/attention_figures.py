"""Figures of a network: attention over an image, what its positions and patch filters look like."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitrail.insight.rollout import rows_of
from vitrail.insight.token_rows import spread
from vitrail.insight.tracing import LaidOutTrace
from vitrail.network.config import ViTConfig
from vitrail.network.positions import sincos_2d
from vitrail.network.vit import ViT
from vitrail.reporting.image_sheets import PAPER, TileSheet, coloured, marked, normalised, overlay

HOW_IT_WORKS: Final = (
    "A vision transformer cuts an image into patches and turns each into a token, a row of numbers. The tokens pass "
    "through blocks; in each, every token looks at the others, in several ways at once, called heads. The answer is "
    "read after the last block."
)
LOOKS: Final = ("looks least", "looks most")  # the ends of the scale of colours
ALIKE: Final = ("unlike", "alike")


def looks(seen: LaidOutTrace, block: int, grid: tuple[int, int], patch: int | None = None) -> Tensor:
    """Where a patch looks in a block of a whole trace, for every head (A, h, w); without one: what the pool reads."""
    block %= len(seen.trace.attention)
    layout = seen.layouts[block]
    rows = rows_of(seen, block, seen.trace.attention[block].detach().float(), patch)  # (B, A, T)
    return spread(rows, layout)[0, :, layout.prefix :].reshape(-1, *grid).detach().cpu()


def attention_tiles(
    seen: LaidOutTrace, config: ViTConfig, grid: tuple[int, int], image: Image.Image, patch: int | None = None
) -> TileSheet:
    """A row for every block of a whole trace, a column for every head by its original number, the mean last."""
    small = image.resize((132, round(132 * image.height / image.width)), Image.Resampling.LANCZOS)
    tiles = []
    for block in range(config.depth):
        maps = looks(seen, block, grid, patch)
        drawn = {head: overlay(small, each.numpy()) for head, each in zip(config.heads_of(block), maps, strict=True)}
        gone = Image.new("RGB", small.size, PAPER)
        tiles.append([drawn.get(head, gone) for head in range(config.heads)] + [overlay(small, maps.mean(0).numpy())])
    columns = [*(f"head {number}" for number in range(config.heads)), "mean"]
    return TileSheet(
        tiles, f"Where {reader(config, patch)}", [f"block {number}" for number in range(config.depth)], columns
    )


def attention_sheet(
    seen: LaidOutTrace, config: ViTConfig, grid: tuple[int, int], image: Image.Image, patch: int | None = None
) -> Image.Image:
    """The same as an image, on light paper."""
    return attention_tiles(seen, config, grid, image, patch).image()


def framed(image: Image.Image, grid: tuple[int, int], patch: int) -> Image.Image:
    """An image with a frame around one of its patches."""
    row, column = divmod(patch, grid[1])
    h, w = image.height / grid[0], image.width / grid[1]
    return marked(image, (column * w, row * h, (column + 1) * w, (row + 1) * h), (253, 240, 170))


def reader(config: ViTConfig, patch: int | None = None) -> str:
    """Who looks, for titles."""
    if patch is not None:
        return f"patch {patch} looks"
    return "the cls token looks" if config.pool == "cls" else "the pooled tokens look"


def position_tiles(table: Tensor, grid: tuple[int, int], cell: int = 5) -> TileSheet:
    """Cosine similarity of every patch's position to all others: a tile for each patch (table (h*w, D))."""
    unit = F.normalize(table.float().cpu(), dim=1)
    likeness = (unit @ unit.T).reshape(*grid, *grid).detach().numpy()
    low, high = float(likeness.min()), float(likeness.max())
    side = (grid[1] * cell, grid[0] * cell)
    tiles = []
    for row in range(grid[0]):
        scaled = [(likeness[row, column] - low) / max(high - low, 1e-12) for column in range(grid[1])]
        tiles.append([coloured(each).resize(side, Image.Resampling.NEAREST) for each in scaled])
    return TileSheet(tiles, "Positions: how alike each patch's is to all others", gap=3)


def position_similarity(table: Tensor, grid: tuple[int, int], cell: int = 5) -> Image.Image:
    """The same as an image, on light paper."""
    return position_tiles(table, grid, cell).image()


def sincos_tiles(grid: tuple[int, int], width: int, cell: int = 5, moco: bool = False) -> TileSheet:
    """The fixed sine-cosine table in its four parts: a row for every patch, a column for every value."""
    table = (sincos_2d(grid, width, moco).numpy() + 1) / 2
    quarters = [coloured(part) for part in np.split(table, 4, axis=1)]
    tiles = [each.resize((each.width * cell, each.height * cell), Image.Resampling.NEAREST) for each in quarters]
    names = ("sin of column", "cos of column", "sin of row", "cos of row")
    return TileSheet([tiles], f"Sine-cosine positions of a {grid[0]}x{grid[1]} grid, width {width}", columns=names)


def sincos_heat_map(grid: tuple[int, int], width: int, cell: int = 5, moco: bool = False) -> Image.Image:
    """The same as an image, on light paper."""
    return sincos_tiles(grid, width, cell, moco).image()


def filter_tiles(model: ViT, count: int = 14, columns: int = 7, cell: int = 9, order: str = "RGB") -> TileSheet:
    """The principal components of the patch kernel, strongest first; `order` of the colours the network receives."""
    kernel = model.patches.kernel.detach().float().cpu()  # (D, C, P, P)
    kernel = kernel.flip(1) if order == "BGR" else kernel
    _, _, directions = torch.linalg.svd(kernel.flatten(1) - kernel.flatten(1).mean(dim=0), full_matrices=False)
    parts = directions[:count].reshape(-1, *kernel.shape[1:])
    tiles = []
    for part in parts:
        values = part.mean(dim=0, keepdim=True).expand(3, -1, -1) if part.shape[0] != 3 else part
        array = (normalised(values.permute(1, 2, 0).numpy()) * 255).round().astype(np.uint8)
        side = (part.shape[2] * cell, part.shape[1] * cell)
        tiles.append(Image.fromarray(array).resize(side, Image.Resampling.NEAREST))
    rows = [tiles[start : start + columns] for start in range(0, len(tiles), columns)]
    return TileSheet(rows, "What a patch is measured by: principal components of the filters")


def patch_filters(model: ViT, count: int = 14, columns: int = 7, cell: int = 9, order: str = "RGB") -> Image.Image:
    """The same as an image, on light paper."""
    return filter_tiles(model, count, columns, cell, order).image()
