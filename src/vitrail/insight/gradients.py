"""Maps (B, h, w) from gradients: of a block's tokens (Grad-CAM), and of pixels (integrated gradients)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.insight.activations import answer, asked, frozen, tokens_with_gradients, total
from vitrail.insight.attribution import Attribution, Method
from vitrail.insight.targets import Aim
from vitrail.network.merging import unmerge
from vitrail.network.vit import ViT

STEPS = (32, 64, 128, 256, 512)  # tried in turn until the sum is right
RIGHT = 0.01  # of the difference of outputs


@dataclass(frozen=True)
class GradCam(Method):
    """The tokens that enter a block, weighted by the mean gradient of each of their values (Selvaraju et al. 2017)."""

    name: ClassVar[str] = "grad-cam"
    block: int = -1

    def __post_init__(self) -> None:
        check_int("block", self.block, least=-1024)

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        """The positive part of the tokens entering a block, each value weighted by its mean gradient over the patches.

        They are taken before the block, not after it: after the last one, a pool that reads the cls token leaves the
        patches without any gradient.
        """
        config = model.config
        block = check_int("block", self.block, -config.depth, config.depth - 1, error=InputError) % config.depth
        inside = tokens_with_gradients(model, pixels, aims, block)
        [tokens], [slope] = inside.values, inside.gradients  # (B, T, D) each
        grid, layout = model.grid_of(pixels), inside.layouts[block]
        merged = (tokens.shape[1] - config.prefix) / (grid[0] * grid[1])  # a merged token's gradient is of all it holds
        weights = slope[:, config.prefix :].mean(dim=1) * merged  # (B, D)
        cam = torch.einsum("btd,bd->bt", tokens, weights).clamp(min=0)
        return unmerge(cam[:, config.prefix :, None], layout).reshape(-1, *grid)


class Integrated(NamedTuple):
    """Attributions of pixels (C, H, W), and how far their sum is from the difference of outputs, as a share of it."""

    pixels: Tensor
    error: float
    steps: int


@dataclass(frozen=True)
class IntegratedGradients(Method):
    """Gradients at the pixels, gathered on the way from an empty image (Sundararajan et al. 2017)."""

    name: ClassVar[str] = "integrated-gradients"
    reads_tokens: ClassVar[bool] = False
    steps: int = 0  # points on the way; 0: as many as it takes for the sum to be right within 1 %
    batch: int = 8

    def __post_init__(self) -> None:
        check_int("steps", self.steps, 0, 4096)
        check_int("batch", self.batch, 1)

    def attribute(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> list[Attribution]:
        """Sums of the patches, and of the pixels; a warning where the sum of all is still wrong."""
        attributions = []
        for image, aim in zip(pixels, aims, strict=True):
            values, error, steps = self.integrate(model, image, aim)
            late = f"after {steps} steps the attributions still miss the difference of outputs by {error:.1%}"
            sums = patch_sums(values, model.config.cell).cpu().numpy()
            warning = late if error > RIGHT else ""
            attributions.append(Attribution(sums, values.sum(dim=0).cpu().numpy(), warning))
        return attributions

    def quicker(self) -> IntegratedGradients:
        return replace(self, steps=self.steps or 32)

    def integrate(self, model: ViT, pixels: Tensor, aim: Aim) -> Integrated:
        """Gradients at the pixels of one image (C, H, W), on the straight way from an empty one (the mean colour)."""
        full, empty = (aim.of(*asked(model, each[None])) for each in (pixels, torch.zeros_like(pixels)))
        difference = float(full - empty)
        for steps in (self.steps,) if self.steps else STEPS:
            values = _integrate(model, pixels, aim, steps, self.batch)
            error = abs(float(values.sum()) - difference) / max(abs(difference), 1e-6)
            if error <= RIGHT:
                break
        return Integrated(values, error, steps)


def _integrate(model: ViT, pixels: Tensor, aim: Aim, steps: int, batch: int) -> Tensor:
    """The integral by Gauss and Legendre's rule of this many points."""
    nodes, shares = np.polynomial.legendre.leggauss(steps)
    gathered = torch.zeros(pixels.shape, dtype=torch.float64)  # on the cpu: not every device has numbers so long
    for first in range(0, steps, batch):
        at = torch.tensor((nodes[first : first + batch] + 1) / 2, dtype=pixels.dtype, device=pixels.device)
        share = torch.tensor(shares[first : first + batch] / 2)
        with frozen(model), torch.enable_grad():
            points = (at[:, None, None, None] * pixels).requires_grad_(True)
            [slope] = torch.autograd.grad(total([aim] * len(at), *answer(model, points)), points)
        gathered += torch.einsum("n,nchw->chw", share, slope.cpu().double())
    return (gathered * pixels.cpu()).float()


def patch_sums(values: Tensor, cell: tuple[int, int]) -> Tensor:
    """The sum over the channels and pixels of every patch: (C, H, W) -> (h, w)."""
    c, height, width = values.shape
    h, w = height // cell[0], width // cell[1]
    return values.reshape(c, h, cell[0], w, cell[1]).sum(dim=(0, 2, 4))
