"""Maps (B, h, w) from gradients: of a block's tokens (Grad-CAM), and of pixels (integrated gradients)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.insight.activations import answer, frozen, tokens_with_gradients, total
from vitrail.insight.methods import GradCam, IntegratedGradients
from vitrail.insight.targets import Aim
from vitrail.network.merging import unmerge
from vitrail.network.vit import ViT

STEPS = (32, 64, 128, 256, 512)  # tried in turn until the sum is right
RIGHT = 0.01  # of the difference of outputs


def grad_cam_map(model: ViT, pixels: Tensor, method: GradCam, aims: Sequence[Aim]) -> Tensor:
    """The positive part of the tokens entering a block, each value weighted by its mean gradient over the patches.

    They are taken before the block, not after it: after the last one, a pool that reads the cls token leaves the
    patches without any gradient.
    """
    config = model.config
    block = check_int("block", method.block, -config.depth, config.depth - 1, error=InputError) % config.depth
    found = tokens_with_gradients(model, pixels, aims, block)
    [tokens], [slope] = found.values, found.gradients  # (B, T, D) each
    grid, layout = model.grid_of(pixels), found.layouts[block]
    merged = (tokens.shape[1] - config.prefix) / (grid[0] * grid[1])  # a merged token's gradient is of all it holds
    weights = slope[:, config.prefix :].mean(dim=1) * merged  # (B, D)
    cam = torch.einsum("btd,bd->bt", tokens, weights).clamp(min=0)
    return unmerge(cam[:, config.prefix :, None], layout).reshape(-1, *grid)


class Integrated(NamedTuple):
    """Attributions of pixels (C, H, W), and how far their sum is from the difference of outputs, as a share of it."""

    pixels: Tensor
    error: float
    steps: int


def integrated_gradients(
    model: ViT, pixels: Tensor, method: IntegratedGradients, aim: Aim, baseline: Tensor | None = None
) -> Integrated:
    """Gradients at the pixels of one image (C, H, W), on the straight way from a baseline (zero: the mean colour)."""
    start = torch.zeros_like(pixels) if baseline is None else baseline
    with frozen(model), torch.no_grad():
        ends = [answer(model, each[None]) for each in (pixels, start)]
        difference = float(aim.of(*ends[0]) - aim.of(*ends[1]))
    for steps in (method.steps,) if method.steps else STEPS:
        found = _integrate(model, pixels, start, aim, steps, method.batch)
        error = abs(float(found.sum()) - difference) / max(abs(difference), 1e-6)
        if error <= RIGHT:
            break
    return Integrated(found, error, steps)


def _integrate(model: ViT, pixels: Tensor, start: Tensor, aim: Aim, steps: int, batch: int) -> Tensor:
    """The integral by Gauss and Legendre's rule of this many points."""
    places, shares = np.polynomial.legendre.leggauss(steps)
    way = pixels - start
    gathered = torch.zeros_like(pixels, dtype=torch.float64)
    for first in range(0, steps, batch):
        at = torch.tensor((places[first : first + batch] + 1) / 2).to(pixels)
        share = torch.tensor(shares[first : first + batch] / 2, device=pixels.device)
        with frozen(model), torch.enable_grad():
            points = (start + at[:, None, None, None] * way).requires_grad_(True)
            found = answer(model, points)
            [slope] = torch.autograd.grad(total([aim] * len(at), *found), points)
        gathered += torch.einsum("n,nchw->chw", share, slope.double())
    return (gathered * way).float()


def patch_sums(values: Tensor, cell: tuple[int, int]) -> Tensor:
    """The sum over the channels and pixels of every patch: (C, H, W) -> (h, w)."""
    c, height, width = values.shape
    h, w = height // cell[0], width // cell[1]
    return values.reshape(c, h, cell[0], w, cell[1]).sum(dim=(0, 2, 4))
