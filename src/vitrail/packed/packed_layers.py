"""Layers packed for this machine, each in the place of one of the network's: tokens in, tokens out, as before."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.network.encoder import activate
from vitrail.network.patches import PatchEmbed, patchify
from vitrail.packed import onednn_kernels as kernels
from vitrail.packed.onednn_kernels import FUSED, PackedInt8
from vitrail.quantisation.quant_params import Int8Weight, QuantParams, to_uint8

ROWS = 197  # of ViT at 224: the layout that suits them suits more rows too


class _RowLinear(nn.Module):
    """Tokens (B, T, in) -> (B, T, out), as rows; with a residual, the sum with it."""

    in_features: int
    out_features: int

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        refuse_gradients(x)
        rows = self.of_rows(x.reshape(-1, self.in_features), None if residual is None else side_by_side(residual))
        return rows.view(*x.shape[:-1], self.out_features)

    def of_rows(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Rows (rows, in) -> (rows, out)."""
        raise NotImplementedError


class PackedLinear(_RowLinear):
    """A linear layer, fp32 or bf16, with its activation, or with the sum with a residual."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: str = "",
        rows: int = ROWS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.activation, self.dtype = activation, dtype
        self.packed = kernels.pack_weight(weight.to(dtype), rows)
        self.bias = None if bias is None else bias.detach().to(dtype)

    def of_rows(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """In its own dtype; added to a residual of another, in that one."""
        x = x.to(self.dtype)
        if residual is None:
            return kernels.linear(x, self.packed, self.bias, self.activation)
        if residual.dtype != self.dtype:
            return residual + kernels.linear(x, self.packed, self.bias, self.activation)
        return kernels.linear_residual(x, self.packed, self.bias, residual)


class Int8Linear(_RowLinear):
    """A linear layer in int8: unsigned activations of one scale, a weight with a scale for each output.

    It takes floats, or bytes of its scale; it gives floats, or bytes where `out` says what they are worth.
    """

    def __init__(
        self,
        weight: Int8Weight,
        bias: Tensor | None,
        params: QuantParams,
        activation: str = "",
        rows: int = ROWS,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.values.shape
        self.activation, self.dtype = activation, dtype
        self.out: QuantParams | None = None
        self.packed = PackedInt8.of(weight, params, None if bias is None else bias.detach().float(), rows)

    def of_rows(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        params = self.packed.params
        x = x if x.dtype == torch.uint8 else to_uint8(x.float(), params.scale, params.zero_point)
        if residual is None:
            return kernels.int8_linear(x, self.packed, self.activation, self.out, self.dtype)
        return kernels.int8_linear_residual(x, self.packed, residual, self.dtype)


def side_by_side(tokens: Tensor) -> Tensor:
    """Rows of tokens, one after another in memory: to rows apart oneDNN adds by a path far slower."""
    return tokens.reshape(-1, tokens.shape[-1]).contiguous()


def refuse_gradients(x: Tensor) -> None:
    """Packed kernels have no way back, and would give wrong gradients in silence."""
    if x.requires_grad and torch.is_grad_enabled():
        raise InputError("packed networks have no gradients: use the checkpoint that this one was packed from")


class PackedMlp(nn.Module):
    """Up with its activation, or gated, and down; bytes in between where both are int8."""

    def __init__(self, up: nn.Module, down: nn.Module, activation: str, gated: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.gated = up, down, gated
        self.activation = "" if activation in FUSED else activation  # what is left to do by itself
        if isinstance(up, Int8Linear) and isinstance(down, Int8Linear) and not self.activation and not gated:
            up.out = down.packed.params

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

    def __init__(self, patches: PatchEmbed, projection: nn.Module, raw: nn.Module | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.patch_size = patches.patch_size
        self.norm_before, self.norm_after = patches.norm_before, patches.norm_after
        self.projection, self.raw, self.dtype = projection, raw, dtype

    @property
    def takes_bytes(self) -> bool:
        return self.raw is not None

    def forward(self, pixels: Tensor) -> Tensor:
        patches = patchify(pixels, self.patch_size)  # (B, N, C*P*P)
        if self.raw is not None and pixels.dtype == torch.uint8:
            return cast(Tensor, self.raw(patches.to(self.dtype).sub_(MIDDLE)))
        patches = patches if self.norm_before is None else self.norm_before(patches)
        patches = self.projection(patches)  # (B, N, D)
        return patches if self.norm_after is None else cast(Tensor, self.norm_after(patches))
