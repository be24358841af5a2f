"""kept tokens (B, 1 + kept, D) -> values of every patch (B, N, P*P*C): the decoder of masked pre-training."""

from __future__ import annotations

from typing import Any, ClassVar, Final, cast

import torch
from torch import Tensor, nn

from vitrail.checks import check_int, check_pair, check_type
from vitrail.errors import ConfigError, InputError
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import Encoder, build_norm
from vitrail.network.initialisation import initialise
from vitrail.network.positions import Grid, PositionTable
from vitrail.network.tokens import TokenLayout

TABLES: Final = ("learned", "sincos-1d", "sincos-2d", "sincos-2d-moco")  # positions of one vector a place
AS_USUAL: Final = (  # settings of parts that a decoder has not, or has in the usual form only
    *("stem", "patch_norms", "cls_token", "distillation_token", "registers", "rotary", "embedding_norm", "final_norm"),
    *("representation_width", "head_bias", "head_bias_init", "dropout", "patch_dropout"),
    *("merge_per_block", "merge_from", "merge_every", "merge_by"),
)


class MaskedDecoder(nn.Module):
    """MAE's decoder: its config describes its own stack, with a patch's values as `classes`; `entering` is D."""

    starts: ClassVar = {"entry": "dense", "predict": "dense", "mask_token": "cls"}

    def __init__(self, config: ViTConfig, entering: int) -> None:
        super().__init__()
        check_type("config", config, ViTConfig)
        _check_config(config)
        self.config, self.entering = config, check_int("entering", entering)
        self.entry = nn.Linear(self.entering, config.width)  # D -> D'
        self.mask_token = nn.Parameter(torch.zeros(1, config.width))  # in the place of every masked patch
        self.positions = PositionTable(config)
        self.encoder = Encoder(config)
        self.norm = build_norm(config)
        self.predict = nn.Linear(config.width, config.classes)  # D' -> P*P*C
        initialise(self, config)

    def forward(self, tokens: Tensor, restore: Tensor, grid: Grid | None = None) -> Tensor:
        """Every patch from the kept ones: (B, 1 + kept, D), cls first -> (B, N, P*P*C), by row, column, channel.

        `restore` (B, N) says where each patch stands once the kept ones are laid first and the masked ones after
        them. On another grid than the native one, which `grid` then names, positions are resampled.
        """
        grid = self.config.grid if grid is None else check_pair("grid", grid)
        self._check(tokens, restore, grid)
        x = self.entry(tokens)  # (B, 1 + kept, D')
        x = torch.cat((x[:, :1], self._fill(x[:, 1:], restore)), dim=1)  # (B, 1 + N, D')
        x = x + self.positions(grid)  # (1 + N, D')
        x = self.norm(self.encoder(x, TokenLayout(grid, prefix=1)).tokens)
        return cast(Tensor, self.predict(x[:, 1:]))  # (B, N, P*P*C)

    def _fill(self, kept: Tensor, restore: Tensor) -> Tensor:
        """Kept patches back in their places, the mask token in all others: (B, kept, D') -> (B, N, D')."""
        b, n = restore.shape
        masked = self.mask_token.to(kept.dtype).expand(b, n - kept.shape[1], -1)  # (B, N - kept, D')
        return torch.cat((kept, masked), dim=1).gather(1, restore[..., None].expand(-1, -1, kept.shape[2]))

    def _check(self, tokens: Tensor, restore: Tensor, grid: Grid) -> None:
        """Refuse at the door what cannot be put back in its place."""
        n = grid[0] * grid[1]
        if not isinstance(tokens, Tensor) or tokens.ndim != 3 or tokens.shape[2] != self.entering:
            expected = f"cls and kept patches, (B, 1 + kept, {self.entering})"
            raise InputError(f"tokens: expected {expected}, got {_describe(tokens)}")
        if not 1 <= tokens.shape[1] <= 1 + n:
            expected = f"the cls token and at most {n} patches, a grid of {grid[0]}x{grid[1]}"
            raise InputError(f"tokens: expected {expected}, got {tokens.shape[1]} tokens")
        if not isinstance(restore, Tensor) or restore.dtype != torch.int64 or restore.shape != (len(tokens), n):
            hint = "; for another grid than the native one, name it: grid=(h, w)" if grid == self.config.grid else ""
            expected = f"int64 ({len(tokens)}, {n}), a place for every patch"
            raise InputError(f"restore: expected {expected}, got {_describe(restore)}{hint}")
        if not restore.is_meta and not torch.compiler.is_compiling():
            places = torch.arange(n, device=restore.device)  # (N,)
            if not torch.equal(restore.sort(dim=1).values, places.expand_as(restore)):
                raise InputError(f"restore: expected each number from 0 to {n - 1} once in every row")


def _describe(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.80}"


def _check_config(config: ViTConfig) -> None:
    """Refuse what a decoder cannot be."""
    values = config.patch_size[0] * config.patch_size[1] * config.channels
    if config.classes != values:
        raise ConfigError(
            f"decoder: expected classes={values}, the values of a patch of {config.patch_size[0]}x"
            f"{config.patch_size[1]} in {config.channels} channels, got {config.classes}"
        )
    kind, at, prefix = config.positions.kind, config.positions.at, config.positions.prefix
    if kind not in TABLES or at != "stem" or not prefix:
        raise ConfigError(
            f"decoder: expected positions of kind {', '.join(TABLES)}, added at the stem, with a slot for the cls "
            f"token, got kind={kind!r}, at={at!r}, prefix={prefix}"
        )
    for name, expected in [("pool", "none"), *((name, getattr(ViTConfig, name)) for name in AS_USUAL)]:
        if getattr(config, name) != expected:
            raise ConfigError(f"decoder: expected {name}={expected!r}, got {getattr(config, name)!r}")
