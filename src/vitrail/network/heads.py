"""tokens (B, T, D) -> pooled (B, D) -> logits (B, K): the pools, and the layers after them."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.network.attention import Attention
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import Mlp, build_norm
from vitrail.network.tokens import Place


class Pooled(NamedTuple):
    """The pooled vector, and how much of each token went into it: weights (B, T)."""

    vector: Tensor
    weights: Tensor


def pool_weights(tokens: Tensor, place: Place, pool: str) -> Tensor:
    """How much of each token a plain pool takes: (B, T), rows sum to 1."""
    if pool == "cls+mean":
        return (pool_weights(tokens, place, "cls") + pool_weights(tokens, place, "mean")) / 2
    weights = tokens.new_zeros(tokens.shape[:2])
    if pool == "mean":
        weights[:, place.prefix :] = 1 if place.sizes is None else place.sizes[:, place.prefix :]
    elif pool == "none":
        weights[:] = 1
    else:
        weights[:, : 2 if pool == "cls+distillation" else 1] = 1
    return weights / weights.sum(dim=1, keepdim=True)


def mean_of_patches(tokens: Tensor, place: Place) -> Tensor:
    """The mean of the patches (B, D); merged tokens count for all they stand for."""
    patches = tokens[:, place.prefix :]
    if place.sizes is None:
        return patches.mean(dim=1)
    sizes = place.sizes[:, place.prefix :, None]
    return ((patches * sizes).sum(dim=1) / sizes.sum(dim=1)).to(patches.dtype)


class Pool(nn.Module):
    """Takes the cls token, the mean of the patches, or all tokens.

    Or two: cls token and mean side by side (B, 2D), cls and distillation tokens (B, 2, D).
    """

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, tokens: Tensor, place: Place) -> Tensor:
        if self.pool == "cls":
            return tokens[:, 0]
        if self.pool == "cls+distillation":
            return tokens[:, :2]
        if self.pool == "none":
            return tokens
        mean = mean_of_patches(tokens, place)
        return torch.cat((tokens[:, 0], mean), dim=1) if self.pool == "cls+mean" else mean

    def weigh(self, tokens: Tensor, place: Place) -> Pooled:
        """The pooled vector with the weights of the tokens."""
        return Pooled(self(tokens, place), pool_weights(tokens, place, self.pool))


class AttentionPool(nn.Module):
    """MAP: a learned probe attends to the patches, then an MLP with a residual (big_vision, SigLIP).

    Prefix tokens are left out, as in timm: registers hold no part of the picture.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, config.width))
        self.attention = Attention(config.width, config.heads, config.per_head)
        self.norm = build_norm(config)
        self.mlp = Mlp(config.width, config.mlp_width, "gelu" if config.mlp == "swiglu" else config.activation)

    def forward(self, tokens: Tensor, place: Place) -> Tensor:
        patches, place = _without_prefix(tokens, place)
        return self._finish(self.attention(self._probe(patches), patches, place=place))

    def weigh(self, tokens: Tensor, place: Place) -> Pooled:
        """The pooled vector with the probe's attention, averaged over its heads."""
        patches, without = _without_prefix(tokens, place)
        attended = self.attention.attend(self._probe(patches), patches, place=without, explicit=True)
        weights = cast(Tensor, attended.weights).mean(dim=1)[:, 0]  # (B, N)
        return Pooled(self._finish(attended.output), F.pad(weights, (place.prefix, 0)))

    def _probe(self, tokens: Tensor) -> Tensor:
        return self.probe.expand(tokens.shape[0], -1, -1)

    def _finish(self, x: Tensor) -> Tensor:
        x = x + self.mlp(self.norm(x))  # (B, 1, D)
        return x[:, 0]


def _without_prefix(tokens: Tensor, place: Place) -> tuple[Tensor, Place]:
    sizes = None if place.sizes is None else place.sizes[:, place.prefix :]
    return tokens[:, place.prefix :], place._replace(prefix=0, sizes=sizes)


class Head(nn.Module):
    """What comes after the pool: a representation layer with tanh where asked for, then one linear layer."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.representation_width or config.pooled_width
        self.representation = nn.Linear(config.pooled_width, width) if config.representation_width else None
        self.classify = nn.Linear(width, config.classes, bias=config.head_bias) if config.classes else None

    def represent(self, pooled: Tensor) -> Tensor:
        """The embedding: what the last layer receives."""
        return pooled if self.representation is None else torch.tanh(self.representation(pooled))

    def forward(self, embedding: Tensor) -> Tensor:
        return embedding if self.classify is None else self.classify(embedding)


class DistillationHead(nn.Module):
    """Two linear layers, for the cls and the distillation token; the logits are their mean (DeiT)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.classify = nn.Linear(config.width, config.classes, bias=config.head_bias) if config.classes else None
        self.distil = nn.Linear(config.width, config.classes, bias=config.head_bias) if config.classes else None

    def represent(self, pooled: Tensor) -> Tensor:
        return pooled  # (B, 2, D)

    def both(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the cls token and of the distillation token, apart: what distillation trains."""
        first, second = embedding.unbind(dim=1)
        if self.classify is None or self.distil is None:
            return first, second
        return self.classify(first), self.distil(second)

    def forward(self, embedding: Tensor) -> Tensor:
        first, second = self.both(embedding)
        return (first + second) / 2


def build_pool(config: ViTConfig) -> Pool | AttentionPool:
    """The pool the config asks for."""
    return AttentionPool(config) if config.pool == "map" else Pool(config.pool)


def build_head(config: ViTConfig) -> Head | DistillationHead:
    """The head the config asks for."""
    return DistillationHead(config) if config.pool == "cls+distillation" else Head(config)
