"""tokens (B, T, D) -> pooled (B, D) -> logits (B, K): the pools, and the layers after them."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from vitrail.network.attention import Attention, Kernel
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import Mlp, build_norm
from vitrail.network.tokens import TokenLayout


class Pool(nn.Module):
    """Takes the cls token, the mean of the patches, all tokens; cls token and mean, cls and distillation token."""

    def __init__(self, pool: str) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, tokens: Tensor, layout: TokenLayout) -> Tensor:
        if self.pool == "cls":
            return tokens[:, 0]  # (B, D)
        if self.pool == "cls+distillation":
            return tokens[:, :2]  # (B, 2, D)
        if self.pool == "none":
            return tokens  # (B, T, D)
        patches = tokens[:, layout.prefix :]  # (B, N, D)
        if layout.counts is None:
            mean = patches.mean(dim=1)  # (B, D)
        else:  # merged tokens count for all they stand for
            counts = layout.counts[:, layout.prefix :, None]  # (B, N, 1)
            mean = ((patches * counts).sum(dim=1) / counts.sum(dim=1)).to(patches.dtype)
        return torch.cat((tokens[:, 0], mean), dim=1) if self.pool == "cls+mean" else mean  # (B, 2D), or (B, D)


class AttentionPool(nn.Module):
    """MAP: a learned probe attends to the patches, then an MLP with a residual (big_vision, SigLIP).

    Prefix tokens are left out, as in timm: registers hold no part of the image.
    """

    starts: ClassVar = {"probe": "xavier"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.zeros(1, 1, config.width))  # the one query, for all images
        self.attention = Attention(config.width, config.heads, config.per_head)
        self.norm = build_norm(config)
        self.mlp = Mlp(config.width, config.mlp_width, "gelu" if config.mlp == "swiglu" else config.activation)

    def forward(self, tokens: Tensor, layout: TokenLayout, kernel: Kernel | None = None) -> Tensor:
        r, counts = layout.prefix, layout.counts
        patches = tokens[:, r:]  # (B, N, D)
        layout = layout._replace(prefix=0, counts=None if counts is None else counts[:, r:])
        probe = self.probe.expand(tokens.shape[0], -1, -1)  # (B, 1, D)
        x = self.attention(probe, patches, layout=layout, kernel=kernel)  # (B, 1, D)
        return cast(Tensor, x + self.mlp(self.norm(x)))[:, 0]  # (B, D)


class Head(nn.Module):
    """What comes after the pool: a representation layer with tanh where asked for, then one linear layer.

    Two linear layers, for the cls and the distillation token, where there are both: the logits are their mean (DeiT).
    """

    starts: ClassVar = {"representation": "dense", "classify": "last", "distil": "last"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.representation_width or config.pooled_width
        self.representation = nn.Linear(config.pooled_width, width) if config.representation_width else None
        self.classify = nn.Linear(width, config.classes, bias=config.head_bias) if config.classes else None
        self.distilled = config.pool == "cls+distillation"
        two = self.distilled and config.classes
        self.distil = nn.Linear(width, config.classes, bias=config.head_bias) if two else None

    def represent(self, pooled: Tensor) -> Tensor:
        """The embedding: what the last layer receives; (B, D), or (B, 2, D) where there are two."""
        return pooled if self.representation is None else torch.tanh(self.representation(pooled))

    def both(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the cls token and of the distillation token, apart: what distillation trains."""
        first, second = embedding.unbind(dim=1)  # (B, D) each
        if self.classify is None or self.distil is None:
            return first, second
        return self.classify(first), self.distil(second)  # (B, K) each

    def forward(self, embedding: Tensor) -> Tensor:
        if self.distilled:
            first, second = self.both(embedding)
            return (first + second) / 2
        return embedding if self.classify is None else self.classify(embedding)  # (B, K)
