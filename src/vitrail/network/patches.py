"""pixels (B, C, H, W) -> patches (B, N, D): cut into squares, flatten, project; and the way back."""

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor, nn

from vitrail.checks import check_pair
from vitrail.errors import InputError
from vitrail.network.config import ViTConfig


def patchify(pixels: Tensor, patch_size: int | tuple[int, int], channels_last: bool = False) -> Tensor:
    """Cut into patches, row by row, lossless: (B, C, H, W) -> (B, N, C*P*P), or (B, N, P*P*C) channels last."""
    if pixels.ndim != 4:
        raise InputError(f"expected pixels (B, C, H, W), got {tuple(pixels.shape)}")
    b, c, height, width = pixels.shape
    p, q = check_pair("patch_size", patch_size)
    if height % p or width % q:
        raise InputError(f"pixels {height}x{width} do not divide into patches of {p}x{q}")
    cells = pixels.reshape(b, c, height // p, p, width // q, q)  # (B, C, h, P, w, P)
    order = (0, 2, 4, 3, 5, 1) if channels_last else (0, 2, 4, 1, 3, 5)  # (B, h, w, …)
    return cells.permute(order).reshape(b, (height // p) * (width // q), c * p * q)


def unpatchify(
    patches: Tensor, grid: tuple[int, int], patch_size: int | tuple[int, int], channels_last: bool = False
) -> Tensor:
    """The inverse of patchify: (B, N, C*P*P) -> (B, C, H, W)."""
    b, n, values = patches.shape
    (h, w), (p, q) = grid, check_pair("patch_size", patch_size)
    if n != h * w or values % (p * q):
        raise InputError(f"{n} patches of {values} values do not fill a grid of {h}x{w} with patches of {p}x{q}")
    c = values // (p * q)
    inner, order = ((p, q, c), (0, 5, 1, 3, 2, 4)) if channels_last else ((c, p, q), (0, 3, 1, 4, 2, 5))
    cells = patches.reshape(b, h, w, *inner).permute(order)  # (B, C, h, P, w, P)
    return cells.reshape(b, c, h * p, w * q)  # (B, C, H, W)


def channels_first(pixels: Tensor) -> Tensor:
    """The adapter for pixels that come as (B, H, W, C)."""
    if pixels.ndim != 4:
        raise InputError(f"expected pixels (B, H, W, C), got {tuple(pixels.shape)}")
    return pixels.permute(0, 3, 1, 2)


class PatchEmbed(nn.Module):
    """Project every patch: slice, flatten, linear. Equals a convolution whose stride is its size, and is faster."""

    starts: ClassVar = {"projection": "patch"}

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.channels = config.stem.channels if config.stem else config.channels
        self.patch_size = config.patch_size
        values = self.channels * config.patch_size[0] * config.patch_size[1]  # C*P*P
        self.norm_before = nn.LayerNorm(values, config.norm_eps) if config.patch_norms else None
        self.projection = nn.Linear(values, config.width, bias=config.patch_bias)
        self.norm_after = nn.LayerNorm(config.width, config.norm_eps) if config.patch_norms else None

    @property
    def kernel(self) -> Tensor:
        """The weight as the convolution it equals: (D, C, P, P)."""
        return self.projection.weight.reshape(-1, self.channels, *self.patch_size)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = patchify(pixels, self.patch_size)  # (B, N, C*P*P)
        patches = patches if self.norm_before is None else self.norm_before(patches)  # over C*P*P
        patches = self.projection(patches)  # (B, N, D)
        return patches if self.norm_after is None else cast(Tensor, self.norm_after(patches))
