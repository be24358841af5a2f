"""ViT: pixels (B, C, H, W) -> logits (B, K), in the paper's order: embed, encode, norm, pool, head."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vitrail.checks import check_type
from vitrail.errors import ConfigError, InputError
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import BlockOutput, Encoder, Observer, build_norm
from vitrail.network.heads import AttentionPool, Head, Pool
from vitrail.network.initialisation import initialise
from vitrail.network.merging import build_block, unmerge
from vitrail.network.patches import PatchEmbed
from vitrail.network.positions import Grid
from vitrail.network.stem import build_stem
from vitrail.network.tokens import TokenLayout, Tokens


class Features(NamedTuple):
    """Tokens after the final norm, apart: prefix (B, R, D), patches (B, N, D), and the grid (h, w)."""

    prefix: Tensor
    patches: Tensor
    grid: Grid


class ViT(nn.Module):
    """A vision transformer as its config describes it; `model(pixels)` gives logits, always."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        check_type("config", config, ViTConfig)
        self.config = config
        self.stem = build_stem(config.stem, config.channels) if config.stem else None
        self.patches = PatchEmbed(config)
        self.tokens = Tokens(config)
        self.embedding_norm = build_norm(config) if config.embedding_norm else None
        self.encoder = Encoder(config, build_block)
        self.norm = build_norm(config) if config.final_norm != "none" else None
        self.pool = AttentionPool(config) if config.pool == "map" else Pool(config.pool)
        self.head = Head(config)
        initialise(self, config)

    def forward(self, pixels: Tensor, head_mask: Tensor | None = None) -> Tensor:
        """Logits (B, K). A head mask (heads,) or (depth, heads) scales heads: 1 keeps, 0 silences."""
        return cast(Tensor, self.head(self.embed(pixels, head_mask)))

    def embed(self, pixels: Tensor, head_mask: Tensor | None = None) -> Tensor:
        """What the last layer receives: pooled, and past the representation layer where there is one.

        (B, D); (B, 2D) for pool "cls+mean", (B, 2, D) for "cls+distillation", (B, T, D) for "none".
        """
        return self.summarise(*self.encode(pixels, head_mask))

    def encode(self, pixels: Tensor, head_mask: Tensor | None = None, observer: Observer | None = None) -> BlockOutput:
        """Tokens after the last block (B, T, D), before the final norm, and where they stand."""
        grid = self.grid_of(pixels)
        x, layout = self.tokenise(pixels, grid)  # (B, T, D)
        mask = None if head_mask is None else self.mask_of_blocks(head_mask)
        additions, rotary = self.tokens.additions(grid), self.tokens.rotary
        return cast(BlockOutput, self.encoder(x, layout, additions, rotary, mask, observer))

    def tokenise(self, pixels: Tensor, grid: Grid) -> BlockOutput:
        """Tokens as they enter the first block (B, T, D), and where they stand: equation 1 of the paper."""
        x = pixels if self.stem is None else self.stem(pixels)  # (B, C', H/r, W/r)
        x, layout = self.tokens(self.patches(x), grid)  # (B, N, D) -> (B, T, D)
        return BlockOutput(x if self.embedding_norm is None else self.embedding_norm(x), layout)

    def summarise(self, tokens: Tensor, layout: TokenLayout) -> Tensor:
        """The final norm, the pool, and the representation layer: equation 4."""
        if self.config.final_norm == "pooled":
            return self.head.represent(self.normed(self.pool(tokens, layout)))
        return self.head.represent(self.pool(self.normed(tokens), layout))

    def normed(self, x: Tensor) -> Tensor:
        """The final norm, where the network has one."""
        return x if self.norm is None else self.norm(x)

    def features(self, pixels: Tensor, head_mask: Tensor | None = None) -> Features:
        """After the final norm; merged patches are given back to their places, dropped ones (training) are missing."""
        tokens, layout = self.encode(pixels, head_mask)
        tokens = self.normed(tokens)  # (B, T, D)
        return Features(tokens[:, : layout.prefix], unmerge(tokens[:, layout.prefix :], layout), layout.grid)

    def grid_of(self, pixels: Tensor) -> Grid:
        """Check the pixels at the door, and say how many patches they make."""
        config = self.config
        if not isinstance(pixels, Tensor):
            raise InputError(
                f"expected pixels, a float tensor (B, {config.channels}, H, W), got {pixels!r:.80}: "
                "checkpoint.transform(image)[None] makes them"
            )
        shape = tuple(pixels.shape)
        if len(shape) != 4 or shape[1] != config.channels:
            last = len(shape) == 4 and shape[3] == config.channels
            hint = "; for (B, H, W, C) use vitrail.network.channels_first(pixels)" if last else ""
            hint = "; for one image use pixels[None]" if len(shape) == 3 and shape[0] == config.channels else hint
            raise InputError(f"expected pixels (B, {config.channels}, H, W), got {shape}{hint}")
        self.check_dtype(pixels)
        size = (pixels.shape[2], pixels.shape[3])
        if config.fixed_size and size != config.image_size:
            (h, w), (height, width) = size, config.image_size
            way = "resize them, or set fixed_size=False to resample positions"
            raise InputError(f"expected images of {height}x{width}, got {h}x{w}: {way}")
        try:
            return config.grid_for(size)
        except ConfigError as error:
            raise InputError(str(error)) from None

    def check_dtype(self, pixels: Tensor) -> None:
        """Refuse pixels that were not prepared, or lie elsewhere than the weights or are of another kind."""
        if not pixels.is_floating_point():
            raise InputError(f"expected float pixels, got {pixels.dtype}: Preprocess scales and normalises images")
        w = next(self.parameters())
        if pixels.device != w.device:
            where = f"expected pixels on {w.device}, as the weights are, got some on {pixels.device}"
            raise InputError(f"{where}: pixels.to({str(w.device)!r})")
        if pixels.dtype != w.dtype and not torch.is_autocast_enabled(pixels.device.type):
            raise InputError(f"expected {w.dtype} pixels, as the weights are, got {pixels.dtype}: pixels.to({w.dtype})")

    def mask_of_blocks(self, head_mask: Tensor) -> list[Tensor]:
        """One vector of factors a block, for the heads it has left; masks name heads by their original numbers."""
        depth, heads = self.config.depth, self.config.heads
        if not isinstance(head_mask, Tensor) or tuple(head_mask.shape) not in ((heads,), (depth, heads)):
            got = tuple(head_mask.shape) if isinstance(head_mask, Tensor) else f"{head_mask!r:.80}"
            raise InputError(f"head_mask: expected a tensor ({heads},) or ({depth}, {heads}), got {got}")
        mask = head_mask.to(next(self.parameters())).expand(depth, heads)  # (L, A)
        return [mask[block, torch.tensor(self.config.heads_of(block), dtype=torch.long)] for block in range(depth)]
