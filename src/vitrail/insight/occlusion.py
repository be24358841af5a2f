"""Pieces of an image covered by its mean colour: occlusion, and the images that faithfulness is measured on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vitrail.insight.activations import Answer
from vitrail.insight.methods import Occlusion
from vitrail.insight.targets import Scalar

Array: TypeAlias = np.ndarray[Any, Any]
Ask: TypeAlias = Callable[[Tensor], Answer]  # pixels (n, C, H, W) -> what a network or runtime says


def covered(pixels: Tensor, hidden: Tensor) -> Tensor:
    """An image (C, H, W) with some patches hidden, once for each mask (n, h, w): (n, C, H, W)."""
    c, height, width = pixels.shape
    h, w = hidden.shape[1:]
    cells = hidden.to(pixels.device)[:, None]  # (n, 1, h, w)
    mask = cells.repeat_interleave(height // h, dim=2).repeat_interleave(width // w, dim=3)  # (n, 1, H, W)
    return torch.where(mask, pixels.mean(dim=(1, 2)).view(1, c, 1, 1), pixels[None])


def levels(ask: Ask, pixels: Tensor, masks: Tensor, scalar: Scalar, batch: int = 16) -> Tensor:
    """The aim's value for an image under each mask (n, h, w) of hidden patches: (n,)."""
    found = [scalar(*ask(covered(pixels, part))) for part in masks.split(batch)]
    return torch.cat(found).double().cpu()


def occlusion_map(ask: Ask, pixels: Tensor, grid: tuple[int, int], method: Occlusion, scalar: Scalar) -> Tensor:
    """How much the value falls when a window is covered; a patch gets the mean of all windows over it: (h, w)."""
    h, w = grid
    side = min(method.window or max(1, min(grid) // 7), h, w)
    places = [(row, column) for row in range(h - side + 1) for column in range(w - side + 1)]
    masks = torch.zeros(len(places) + 1, h, w, dtype=torch.bool)
    for number, (row, column) in enumerate(places, start=1):
        masks[number, row : row + side, column : column + side] = True
    values = levels(ask, pixels, masks, scalar, method.batch)
    falls = values[0] - values[1:]  # (windows,)
    over = masks[1:].double()
    return torch.einsum("n,nhw->hw", falls, over).div(over.sum(dim=0)).float()
