"""ViT: pixels (B, C, H, W) -> logits (B, K), in the paper's order: embed, encode, norm, pool, head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitrail.checks import instance
from vitrail.errors import ConfigError, InputError
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import Encoder, Tape, build_norm
from vitrail.network.heads import build_head, build_pool
from vitrail.network.initialisation import initialise
from vitrail.network.merging import unmerge
from vitrail.network.patches import PatchEmbed
from vitrail.network.positions import Grid
from vitrail.network.stem import build_stem
from vitrail.network.tokens import Place, Tokens


class Features(NamedTuple):
    """Tokens after the final norm, apart: prefix (B, R, D), patches (B, N, D), and the grid (h, w)."""

    prefix: Tensor
    patches: Tensor
    grid: Grid


class Encoded(NamedTuple):
    """Tokens as they leave the last block, before the final norm, and where they stand."""

    tokens: Tensor
    place: Place


Short = Callable[["ViT", Tensor, Grid, int], Encoded | None]  # model, pixels, grid, first; None: go the usual way


class ViT(nn.Module):
    """A vision transformer as its config describes it; `model(pixels)` gives logits, always."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        instance("config", config, ViTConfig)
        self.config = config
        self.stem = build_stem(config.stem, config.channels) if config.stem else None
        self.patches = PatchEmbed(config)
        self.tokens = Tokens(config)
        self.embedding_norm = build_norm(config) if config.embedding_norm else None
        self.encoder = Encoder(config)
        self.norm = build_norm(config) if config.final_norm != "none" else None
        self.pool = build_pool(config)
        self.head = build_head(config)
        self.pooled_only = False  # whether the last block stops at the tokens that the pool reads: what ships does
        self.short: Short | None = None  # in the place of patches, tokens and encoder, where a packed network has one
        initialise(self, config)

    def forward(self, pixels: Tensor, head_mask: Tensor | None = None) -> Tensor:
        """Logits (B, K). A head mask (heads,) or (depth, heads) scales heads: 1 keeps, 0 silences."""
        logits: Tensor = self.head(self.embed(pixels, head_mask))
        return logits

    def embed(self, pixels: Tensor, head_mask: Tensor | None = None) -> Tensor:
        """What the last layer receives: pooled, and past the representation layer where there is one.

        (B, D); (B, 2D) for pool "cls+mean", (B, 2, D) for "cls+distillation", (B, T, D) for "none".
        """
        tokens, place = self.encode(pixels, head_mask, first=self.config.read_first if self.pooled_only else 0)
        if self.config.final_norm == "pooled":
            return self.head.represent(self.normed(self.pool(tokens, place)))
        return self.head.represent(self.pool(self.normed(tokens), place))

    def encode(
        self, pixels: Tensor, head_mask: Tensor | None = None, tape: Tape | None = None, first: int = 0
    ) -> Encoded:
        """Tokens after the last block (B, T, D); a tape collects hidden states and attention on the way.

        With `first`, and without a tape, only so many tokens come out of the last block.
        """
        grid = self.grid_of(pixels)
        if self.short is not None and head_mask is None and tape is None:
            encoded = self.short(self, pixels, grid, first)
            if encoded is not None:
                return encoded
        x = pixels if self.stem is None else self.stem(pixels)  # (B, C', H/r, W/r)
        x = self.patches(x)  # (B, N, D)
        x, place = self.tokens(x, grid)  # (B, T, D)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        mask = None if head_mask is None else self._mask_of_blocks(head_mask)
        passed = self.encoder(x, place, self.tokens.additions(grid), self.tokens.rotary, mask, tape, first)
        return Encoded(passed.tokens, passed.place)

    def normed(self, x: Tensor) -> Tensor:
        """The final norm, where the network has one."""
        return x if self.norm is None else self.norm(x)

    def features(self, pixels: Tensor, head_mask: Tensor | None = None) -> Features:
        """Prefix tokens, patches and grid after the final norm; merged patches are given back to their places.

        While training with patch dropout there are fewer patches than the grid has.
        """
        tokens, place = self.encode(pixels, head_mask)
        tokens = self.normed(tokens)
        return Features(tokens[:, : place.prefix], unmerge(tokens[:, place.prefix :], place), place.grid)

    def with_head(self, classes: int, keep_representation: bool = False) -> ViT:
        """The same network with a fresh head for other classes: from pre-training to fine-tuning.

        The representation layer goes with the old head, unless it is to be kept and only the last layer reset.
        """
        kept = self.config.representation_width if keep_representation else 0
        model = ViT(replace(self.config, classes=classes, representation_width=kept))
        own = self.state_dict()
        ours = model.state_dict()
        dropped = ("head.classify.", "head.distil.", "head.representation.")
        for name in ours:
            if not name.startswith(dropped) or (keep_representation and name.startswith(dropped[2])):
                ours[name] = own[name]
        model.load_state_dict(ours)
        model.encoder.like(self.encoder)
        frozen = {name for name, each in self.named_parameters() if not each.requires_grad}
        for name, parameter in model.named_parameters():
            fresh = name.startswith(dropped) and not (keep_representation and name.startswith(dropped[2]))
            parameter.requires_grad_(fresh or name not in frozen)
        first = next(self.parameters())
        return model.to(first.device, first.dtype).train(self.training)

    def grid_of(self, pixels: Tensor) -> Grid:
        """Check the pixels at the door, and say how many patches they make."""
        config = self.config
        if not isinstance(pixels, Tensor):
            raise InputError(f"expected pixels, a float tensor (B, {config.channels}, H, W), got {pixels!r:.80}")
        if pixels.ndim != 4 or pixels.shape[1] != config.channels:
            hint = ""
            if pixels.ndim == 4 and pixels.shape[3] == config.channels:
                hint = "; for (B, H, W, C) use vitrail.network.channels_first(pixels)"
            elif pixels.ndim == 3 and pixels.shape[0] == config.channels:
                hint = "; for one image use pixels[None]"
            raise InputError(f"expected pixels (B, {config.channels}, H, W), got {tuple(pixels.shape)}{hint}")
        if not pixels.is_floating_point() and not (self.patches.takes_bytes and pixels.dtype == torch.uint8):
            raise InputError(
                f"expected float pixels, got {pixels.dtype}: images go through Preprocess, which scales and normalises"
            )
        weights = next(self.parameters()).dtype
        if pixels.is_floating_point() and pixels.dtype != weights and not torch.is_autocast_enabled(pixels.device.type):
            raise InputError(f"expected {weights} pixels, as the weights are, got {pixels.dtype}: pixels.to({weights})")
        size = (pixels.shape[2], pixels.shape[3])
        if config.fixed_size and size != config.image_size:
            (h, w), (eh, ew) = size, config.image_size
            raise InputError(
                f"expected images of {eh}x{ew}, got {h}x{w}: resize them, or set fixed_size=False to resample positions"
            )
        try:
            return config.grid_for(size)
        except ConfigError as error:
            raise InputError(str(error)) from None

    def _mask_of_blocks(self, head_mask: Tensor) -> list[Tensor]:
        """One vector of factors a block, for the heads it has left; masks name heads by their original numbers."""
        depth, heads = self.config.depth, self.config.heads
        if not isinstance(head_mask, Tensor) or tuple(head_mask.shape) not in ((heads,), (depth, heads)):
            got = tuple(head_mask.shape) if isinstance(head_mask, Tensor) else f"{head_mask!r:.80}"
            raise InputError(f"head_mask: expected a tensor ({heads},) or ({depth}, {heads}), got {got}")
        parameter = next(self.parameters())
        mask = head_mask.to(parameter.device, parameter.dtype).expand(depth, heads)
        return [mask[block, list(self.config.heads_of(block))] for block in range(depth)]


def with_merging(model: ViT, per_block: int, first: int = 0, by: str = "tokens", every: int = 1) -> ViT:
    """The same network, its weights shared and not copied, that merges so many tokens in blocks from `first` on.

    In all of them, or with `every` 2 in every second.

    Merging learns nothing, so any network can do it that does not need the whole grid at every block; the config
    refuses the others. A block merges no more than half of the patches that reach it, so at least one stays. Those
    are joined that are most alike `by` the "tokens" themselves and little heeded by the cls token; or by "keys" alone.
    """
    instance("model", model, ViT, error=InputError)
    config = model.config.unmerged  # of a network that never did
    if per_block or first:
        config = replace(config, merge_per_block=per_block, merge_from=first, merge_every=every, merge_by=by)
    other = on_meta(config)
    other.load_state_dict(model.state_dict(), assign=True)
    for name, parameter in model.named_parameters():
        other.get_parameter(name).requires_grad_(parameter.requires_grad)
    other.encoder.like(model.encoder)
    return other.train(model.training)


def on_meta(config: ViTConfig) -> ViT:
    """The network without its memory: shapes only, at once, however large."""
    with torch.device("meta"):
        return ViT(config)
