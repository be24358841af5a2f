"""Which heads matter, on the user's own images: by gradient, or by silencing each; and which MLP channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    for _, targets in batches:
        if (
            targets.ndim == 1
            and len(targets)
            and not 0 <= int(targets.min()) <= int(targets.max()) < model.config.classes
        ):
            raise InputError(f"targets: expected classes from 0 to {model.config.classes - 1}")
    by_gradient = way == "gradient"
    heads, inner = (
        _by_gradient(model, batches, done if by_gradient else None) if by_gradient or channels else (None, None)
    )
    if not by_gradient:
        heads = _by_ablation(model, batches, done)
    count = sum(len(pixels) for pixels, _ in batches)
    none = np.zeros((model.config.depth, 0))
    return Importance(cast(Array, heads), cast(Array, inner) if channels else none, way, count)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of every image, (B,)."""
    logits = logits.float()
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
        with frozen(model), torch.enable_grad(), _watched(model) as kept:
            total = losses(model(pixels.detach().requires_grad_(True)), targets).sum()
            inside = [each for pair in kept for each in pair]
            slopes = torch.autograd.grad(total, inside)
        for block in range(config.depth):
            for part, store in ((0, heads), (1, channels)):
                values, slope = inside[2 * block + part], slopes[2 * block + part]
                gates = (values.detach() * slope).float().sum(dim=1)  # (B, A*d) or (B, M)
                if part == 0:
                    gates = gates.unflatten(1, (-1, config.per_head)).sum(dim=2)  # (B, A)
                    store[block, list(config.heads_of(block))] += gates.abs().sum(dim=0).numpy()
                else:
                    store[block] += gates.abs().sum(dim=0).numpy()
        count += len(pixels)
        if done is not None:
            done(len(pixels))
    return heads / count, channels / count


@contextmanager
def _watched(model: ViT) -> Iterator[list[list[Tensor]]]:
    """What goes into the last layer of every block's attention (B, T, A*d) and MLP (B, T, M), kept for gradients."""
    kept: list[list[Tensor]] = [[] for _ in model.encoder.blocks]
    watches = []
    chunk, model.encoder.mlp_chunk = model.encoder.mlp_chunk, 0  # a block's MLP in one piece
    for number, block in enumerate(model.encoder.blocks):
        for layer in (cast(Block, block).attention.out, cast(Block, block).mlp.down):
            watches.append(layer.register_forward_pre_hook(_keep(kept[number])))
    try:
        yield kept
    finally:
        model.encoder.mlp_chunk = chunk
        for each in watches:
            each.remove()


def _keep(store: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def keep(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        store.append(given[0])

    return keep


def _by_ablation(model: ViT, batches: Batches, done: ProgressCallback | None) -> Array:
    config = model.config
    rises = np.full((config.depth, config.heads), np.nan)
    unmasked = mean_loss(model, batches)
    for block in range(config.depth):
        for head in config.heads_of(block):
            mask = torch.ones(config.depth, config.heads)
            mask[block, head] = 0
            rises[block, head] = mean_loss(model, batches, mask) - unmasked
            if done is not None:
                done(1)
    return rises


def mean_loss(model: ViT, batches: Batches, head_mask: Tensor | None = None) -> float:
    """Over all images, with some heads masked."""
    with frozen(model), torch.no_grad():
        each = [losses(model(pixels, head_mask), targets) for pixels, targets in batches]
    return float(torch.cat(each).double().mean())
