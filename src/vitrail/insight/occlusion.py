"""Pieces of an image covered by its mean colour: occlusion, and the images that faithfulness is measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from vitrail.checks import check_int
from vitrail.insight.activations import asked
from vitrail.insight.attribution import Ask, Attribution, Method
from vitrail.insight.targets import Aim, Scalar
from vitrail.network.vit import ViT


def covered(pixels: Tensor, hidden: Tensor) -> Tensor:
    """An image (C, H, W) with some patches hidden, once for each mask (n, h, w): (n, C, H, W)."""
    c, height, width = pixels.shape
    h, w = hidden.shape[1:]
    cells = hidden.to(pixels.device)[:, None]  # (n, 1, h, w)
    mask = cells.repeat_interleave(height // h, dim=2).repeat_interleave(width // w, dim=3)  # (n, 1, H, W)
    return torch.where(mask, pixels.mean(dim=(1, 2)).view(1, c, 1, 1), pixels[None])


def levels(ask: Ask, pixels: Tensor, masks: Tensor, scalar: Scalar, batch: int = 16) -> Tensor:
    """The aim's value for an image under each mask (n, h, w) of hidden patches: (n,)."""
    values = [scalar(*ask(covered(pixels, part))) for part in masks.split(batch)]
    return torch.cat(values).cpu().double()


@dataclass(frozen=True)
class Occlusion(Method):
    """How much is lost when a piece of the image is covered; asks for answers only, so any runtime will do."""

    name: ClassVar[str] = "occlusion"
    reads_tokens: ClassVar[bool] = False
    needs_network: ClassVar[bool] = False
    window: int = 0  # side of the piece, in patches; 0: a seventh of the grid's shorter side
    batch: int = 16

    def __post_init__(self) -> None:
        check_int("window", self.window, 0, 1024)
        check_int("batch", self.batch, 1)

    def attribute(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> list[Attribution]:
        grid, ask = model.grid_of(pixels), partial(asked, model)
        return [self.attribute_answers(ask, each, grid, aim) for each, aim in zip(pixels, aims, strict=True)]

    def attribute_answers(self, ask: Ask, pixels: Tensor, grid: tuple[int, int], aim: Aim) -> Attribution:
        """How much the value falls when a window is covered; a patch gets the mean of all windows over it: (h, w)."""
        h, w = grid
        side = min(self.window or max(1, min(grid) // 7), h, w)
        corners = [(row, column) for row in range(h - side + 1) for column in range(w - side + 1)]
        masks = torch.zeros(len(corners) + 1, h, w, dtype=torch.bool)
        for number, (row, column) in enumerate(corners, start=1):
            masks[number, row : row + side, column : column + side] = True
        values = levels(ask, pixels, masks, aim.of, self.batch)
        falls = values[0] - values[1:]  # (windows,)
        over = masks[1:].double()
        return Attribution(torch.einsum("n,nhw->hw", falls, over).div(over.sum(dim=0)).float().numpy())
