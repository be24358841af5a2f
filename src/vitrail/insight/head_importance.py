"""Which heads matter, on the user's own images: by gradient, or by silencing each; and which MLP channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.checkpoint.devices import device_of
from vitrail.checks import check_choice, check_type
from vitrail.errors import InputError
from vitrail.insight.activations import frozen
from vitrail.network.encoder import Block
from vitrail.network.vit import ViT
from vitrail.types import Array, ProgressCallback

WAYS: Final = ("gradient", "ablation")
Batches: TypeAlias = Sequence[tuple[Tensor, Tensor]]  # pixels (B, C, H, W) and targets: (B,) numbers, or (B, K) marks


class Importance(NamedTuple):
    """How much the answer depends on parts of every block."""

    heads: Array  # (depth, heads); NaN where a head is gone
    channels: Array  # (depth, M) of the MLPs, by gradient; (depth, 0) where not asked for
    way: str
    images: int


def importance(
    model: ViT, batches: Batches, way: str = "gradient", channels: bool = False, done: ProgressCallback | None = None
) -> Importance:
    """By gradient (Michel et al. 2019, Molchanov et al. 2017): the mean over images of |d loss / d gate|.

    A gate multiplies what a head gathered, or what a channel holds, and stands at 1: the product with the gradient is
    how much the loss would change without it, to first order. By ablation: how much the loss rises with a head masked.
    """
    check_type("model", model, ViT, error=InputError)
    check_choice("way", way, WAYS)
    if not batches:
        raise InputError("importance is measured on images, and there are none")
    if not model.config.classes:
        raise InputError("importance is measured on the answers, and this network has no classes")
    last = model.config.classes - 1
    for _, targets in batches:
        if targets.ndim == 1 and len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) <= last:
            raise InputError(f"targets: expected classes from 0 to {last}")
    of_channels = np.zeros((model.config.depth, 0))
    if way == "gradient":
        heads, by_gradient = _by_gradient(model, batches, done)
    else:
        heads = _by_ablation(model, batches, done)
        by_gradient = _by_gradient(model, batches, None)[1] if channels else of_channels
    count = sum(len(pixels) for pixels, _ in batches)
    return Importance(heads, by_gradient if channels else of_channels, way, count)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of every image, (B,)."""
    logits, targets = logits.float(), targets.to(logits.device)
    if targets.ndim == 2:
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits), reduction="none").mean(dim=1)
    return F.cross_entropy(logits, targets, reduction="none")


def _by_gradient(model: ViT, batches: Batches, done: ProgressCallback | None) -> tuple[Array, Array]:
    config = model.config
    heads = np.full((config.depth, config.heads), np.nan)
    for block in range(config.depth):
        heads[block, list(config.heads_of(block))] = 0.0
    channels = np.zeros((config.depth, config.mlp_width))
    count = 0
    for pixels, targets in batches:
        with frozen(model), torch.enable_grad(), _watched(model) as inside:
            total = losses(model(pixels.detach().to(device_of(model)).requires_grad_(True)), targets).sum()
            slopes = torch.autograd.grad(total, inside)
        gates = [(values.detach() * slope).float().sum(dim=1) for values, slope in zip(inside, slopes, strict=True)]
        for block in range(config.depth):
            of_heads = gates[2 * block].unflatten(1, (-1, config.per_head)).sum(dim=2)  # (B, A*d) -> (B, A)
            heads[block, list(config.heads_of(block))] += of_heads.abs().sum(dim=0).cpu().numpy()
            channels[block] += gates[2 * block + 1].abs().sum(dim=0).cpu().numpy()  # (B, M) -> (M,)
        count += len(pixels)
        if done is not None:
            done(len(pixels))
    return heads / count, channels / count


@contextmanager
def _watched(model: ViT) -> Iterator[list[Tensor]]:
    """What goes into the last layer of each block's attention (B, T, A*d) and then MLP (B, T, M), for gradients."""
    kept: list[Tensor] = []
    chunk, model.encoder.mlp_chunk = model.encoder.mlp_chunk, 0  # a block's MLP in one piece
    with ExitStack() as watches:
        for block in model.encoder.blocks:
            for layer in (cast(Block, block).attention.out, cast(Block, block).mlp.down):
                watches.enter_context(layer.register_forward_pre_hook(lambda _, given: kept.append(given[0])))
        try:
            yield kept
        finally:
            model.encoder.mlp_chunk = chunk


def _by_ablation(model: ViT, batches: Batches, done: ProgressCallback | None) -> Array:
    config = model.config
    rises = np.full((config.depth, config.heads), np.nan)
    unmasked = mean_loss(model, batches)
    for block in range(config.depth):
        for head in config.heads_of(block):
            mask = torch.ones(config.depth, config.heads, device=device_of(model))
            mask[block, head] = 0
            rises[block, head] = mean_loss(model, batches, mask) - unmasked
            if done is not None:
                done(1)
    return rises


def mean_loss(model: ViT, batches: Batches, head_mask: Tensor | None = None) -> float:
    """Over all images, with some heads masked."""
    with frozen(model), torch.no_grad():
        each = [losses(model(pixels.to(device_of(model)), head_mask), targets) for pixels, targets in batches]
    return float(torch.cat(each).cpu().double().mean())
