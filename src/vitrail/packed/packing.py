"""A network and a plan -> the same network, its linear layers packed for this machine; its forward stays its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checks import join_limited
from vitrail.errors import InputError
from vitrail.images import Preprocess
from vitrail.network.encoder import Block, Mlp, SwiGLU
from vitrail.network.vit import ViT
from vitrail.packed.onednn_kernels import FUSED, pack_floats, pack_int8
from vitrail.packed.packed_attention import packed_kernel
from vitrail.packed.packed_layers import MIDDLE, PackedLinear, PackedMlp, PackedPatches
from vitrail.packed.packed_vit import PackedBlock, PackedViT, compile_forward
from vitrail.quantisation.folding import fold
from vitrail.quantisation.quant_params import Int8Weight, QuantParams
from vitrail.quantisation.quant_plan import PARTS, QuantPlan, quantisable

ENDS = ("norm", "pool", "head")  # always fp32: logits in bf16 would be steps apart, and two classes alike


class Dtypes(NamedTuple):
    """The dtypes of a plan: of layers that are not int8 and of attention, and of tokens between layers.

    Between layers in int8 tokens are fp32: norms and rounding take those soonest, and bf16 would cost exactness.
    """

    layers: torch.dtype
    tokens: torch.dtype

    @classmethod
    def of(cls, plan: QuantPlan) -> Dtypes:
        layers = torch.bfloat16 if plan.precision == "bf16" else torch.float32
        return cls(layers, torch.float32 if plan.int8 else layers)

    def of_tensor(self, name: str) -> torch.dtype:
        """Of a tensor that is not int8, by its name in the network."""
        if name.partition(".")[0] in ENDS:
            return torch.float32
        return self.layers if name.removesuffix(".weight").endswith(PARTS) else self.tokens


def pack(
    model: ViT,
    plan: QuantPlan,
    preprocess: Preprocess | None = None,
    weights: Mapping[str, Int8Weight] | None = None,
    program: bool = True,
) -> PackedViT:
    """The packed network; the one given stays as it is. With `preprocess` it takes 8-bit pixels too.

    Weights that are bytes already, of int8 layers, may come beside the network. Without `program` its modules are
    called from Python, which measurements compare with.
    """
    unknown = set(plan.int8).difference(quantisable(model))
    if unknown:
        raise InputError(f"int8: no such layers: {join_limited(sorted(unknown), ', ')}")
    dtypes = Dtypes.of(plan)
    with torch.no_grad():
        packed = PackedViT(fold(model), dtypes.tokens)
        rows = packed.config.prefix + int(np.prod(packed.config.grid))
        packing = _Packing(plan, dtypes, rows, weights or {})
        for index, block in enumerate(packed.encoder.blocks):
            packed.encoder.blocks[index] = packing.block(cast(Block, block), f"encoder.blocks.{index}")
        packed.patches = _pack_patches(packed, dtypes.layers, preprocess, rows)
    for name, part in packed.named_children():
        part.to(torch.float32 if name in ENDS else dtypes.tokens)
    packed.eval().requires_grad_(False)
    if program:
        compile_forward(packed)
    return packed


class _Packing(NamedTuple):
    """What all blocks are packed by."""

    plan: QuantPlan
    dtypes: Dtypes
    rows: int
    weights: Mapping[str, Int8Weight]

    def block(self, block: Block, name: str) -> PackedBlock:
        attention, mlp = block.attention, block.mlp
        activation = mlp.activation if isinstance(mlp, Mlp) else ""
        fused = activation if activation in FUSED else ""
        up = self.layer(f"{name}.mlp.up", mlp.up, self.dtypes.layers, fused)
        down = self.layer(f"{name}.mlp.down", mlp.down, self.dtypes.tokens)
        # Of other classes than those they replace, which is why they are set by name.
        setattr(attention, "qkv", self.layer(f"{name}.attention.qkv", attention.qkv, self.dtypes.layers))  # noqa: B010
        setattr(attention, "out", self.layer(f"{name}.attention.out", attention.out, self.dtypes.tokens))  # noqa: B010
        if not attention.axis:  # along lines the fused kernel has less to do
            attention.kernel = packed_kernel
        return PackedBlock(block, PackedMlp(up, down, activation, isinstance(mlp, SwiGLU)))

    def layer(self, name: str, linear: nn.Linear, gives: torch.dtype, activation: str = "") -> PackedLinear:
        """A layer in its precision; one in int8 `gives` tokens of a dtype."""
        if name not in self.plan.int8:
            return PackedLinear(pack_floats(linear.weight, linear.bias, self.rows, self.dtypes.layers, activation))
        params = QuantParams.of_range(*self.plan.int8[name])
        weight = self.weights[name] if name in self.weights else Int8Weight.of(linear.weight)
        return PackedLinear(pack_int8(weight, linear.bias, params, self.rows, gives, activation))


def _pack_patches(model: ViT, dtype: torch.dtype, preprocess: Preprocess | None, rows: int) -> PackedPatches:
    patches = model.patches
    linear = patches.projection
    projection = PackedLinear(pack_floats(linear.weight, linear.bias, rows, dtype))
    raw = None
    plain = model.stem is None and patches.norm_before is None and patches.norm_after is None
    if plain and preprocess is not None and preprocess.is_8bit:
        raw = PackedLinear(pack_floats(*_projection_of_bytes(linear, preprocess), rows, dtype))
    return PackedPatches(patches, projection, raw)


def _projection_of_bytes(linear: nn.Linear, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """The projection of 8-bit values, counted from the middle: (v / 255 - mean) / std goes into weight and bias."""
    weight = linear.weight.double().reshape(linear.out_features, preprocess.channels, -1)  # (D, C, P*P)
    mean, std = (torch.tensor(each, dtype=torch.float64)[None, :, None] for each in (preprocess.mean, preprocess.std))
    bias = linear.bias.double() if linear.bias is not None else torch.zeros(linear.out_features, dtype=torch.float64)
    shift = (weight * ((mean - MIDDLE / preprocess.range) / std)).sum(dim=(1, 2))
    weight = weight / (preprocess.range * std)
    weight = weight.flip(1) if preprocess.order == "BGR" else weight  # bytes come as RGB
    return weight.flatten(1).float(), (bias - shift).float()
