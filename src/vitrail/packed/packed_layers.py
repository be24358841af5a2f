"""Layers packed for this machine, each in the place of one of the network's: tokens in, tokens out, as before."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.network.encoder import activate
from vitrail.network.patches import PatchEmbed, patchify
from vitrail.packed.onednn_kernels import FUSED, Product, giving_bytes, multiply, multiply_add


class PackedLinear(nn.Module):
    """Tokens (B, T, in) -> (B, T, out), as rows, with an activation, or as the sum with a residual.

    In int8 it takes floats, or bytes of its scale; it gives floats, or bytes that the next layer takes.
    """

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.product = product

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        refuse_gradients(x)
        rows = x.reshape(-1, x.shape[-1])
        if residual is None:
            rows = multiply(rows, self.product)
        else:
            # side by side: to rows apart oneDNN adds by a path far slower
            rows = multiply_add(rows, self.product, residual.reshape(-1, residual.shape[-1]).contiguous())
        return rows.view(*x.shape[:-1], rows.shape[-1])


def refuse_gradients(x: Tensor) -> None:
    """Packed kernels have no way back, and would give wrong gradients in silence."""
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError("packed networks have no gradients: use the checkpoint that this one was packed from")


class PackedMlp(nn.Module):
    """Up with its activation, or gated, and down; bytes in between where both are int8."""

    def __init__(self, up: PackedLinear, down: PackedLinear, activation: str, gated: bool) -> None:
        super().__init__()
        self.up, self.down, self.gated = up, down, gated
        self.activation = "" if activation in FUSED else activation  # what is left to do by itself
        first, second = up.product, down.product
        if first.int8 and second.int8 and not self.activation and not gated:
            up.product = giving_bytes(first, second.scale, second.zero_point)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = self.up(x)
        if self.gated:
            gate, value = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        elif self.activation:
            x = activate(x, self.activation, in_place=True)
        return cast(Tensor, self.down(x, residual))


# Bytes are counted from the middle: from 0, their mean times what bf16 rounds off the weights would shift every patch.
MIDDLE = 128


class PackedPatches(nn.Module):
    """Patches of pixels, or of the 8-bit values they were made from, normalised by the layer itself."""

    def __init__(self, patches: PatchEmbed, projection: PackedLinear, raw: PackedLinear | None) -> None:
        super().__init__()
        self.patch_size = patches.patch_size
        self.norm_before, self.norm_after = patches.norm_before, patches.norm_after
        self.projection, self.raw = projection, raw

    @property
    def takes_bytes(self) -> bool:
        return self.raw is not None

    def forward(self, pixels: Tensor) -> Tensor:
        patches = patchify(pixels, self.patch_size)  # (B, N, C*P*P)
        if self.raw is not None and pixels.dtype == torch.uint8:
            return cast(Tensor, self.raw(patches.to(self.raw.product.dtype).sub_(MIDDLE)))
        patches = patches if self.norm_before is None else self.norm_before(patches)
        patches = self.projection(patches)  # (B, N, D)
        return patches if self.norm_after is None else cast(Tensor, self.norm_after(patches))
