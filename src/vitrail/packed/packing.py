"""A network and a plan -> the same network, its linear layers packed for this machine; its forward stays its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checks import check_choice, check_number, join_limited
from vitrail.errors import ConfigError, InputError
from vitrail.images import Preprocess
from vitrail.network.encoder import Block, Mlp, SwiGLU
from vitrail.network.vit import ViT
from vitrail.packed.onednn_kernels import FUSED, Bytes, Scale
from vitrail.packed.packed_attention import packed_attention
from vitrail.packed.packed_layers import MIDDLE, ByteLinear, PackedLinear, PackedMlp, PackedPatches
from vitrail.packed.packed_vit import PackedBlock, PackedEncoder, PackedViT, compile_forward
from vitrail.quantisation.folding import fold

PRECISIONS = ("fp32", "bf16")
ENDS = ("norm", "pool", "head")  # always fp32: logits in bf16 would be steps apart, and two classes alike
PARTS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")  # of a block, in the order that tokens meet them
Module = TypeVar("Module", bound=nn.Module)
Range = tuple[float, float]  # low and high of what a layer receives


@dataclass(frozen=True)
class Plan:
    """Which precision each layer has: int8 where a range is named, and one other for all else.

    Where the network merges tokens, has layers in int8, or is less precise than `again`, unclear answers are given once
    more, by all tokens, without int8 and in that precision: those whose likeliest class is less than `clear` times as
    likely as the next.

    Between layers in int8 the tokens are fp32: norms and rounding take those soonest, and bf16 would cost exactness.
    """

    precision: str = "fp32"
    int8: Mapping[str, Range] = field(default_factory=dict)  # layer -> range of what it receives
    clear: float = 1.0  # none are
    again: str = ""  # the precision of unclear answers, as `precision` if none is named

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("again", self.again, ("", *PRECISIONS))
        if (self.precision, self.again) == ("fp32", "bf16"):
            raise ConfigError("again='bf16' is less precise than precision='fp32': leave it out")
        object.__setattr__(self, "clear", check_number("clear", self.clear, 1.0, 1e6))
        ranges = {}
        for name, (low, high) in self.int8.items():
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise ConfigError(f"int8: the range of {name} must rise from low to high, got {low} to {high}")
            ranges[str(name)] = (float(low), float(high))
        object.__setattr__(self, "int8", ranges)

    @property
    def kind(self) -> torch.dtype:
        """Of layers that are not int8, and of attention."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def exact(self) -> Plan:
        """The plan of the network that gives unclear answers again."""
        return Plan(self.again or self.precision)

    @property
    def doubled(self) -> bool:
        """Whether that network has weights of its own."""
        return bool(self.int8) or self.exact.precision != self.precision

    @property
    def tokens(self) -> torch.dtype:
        """Of tokens between layers, of their norms and positions."""
        return torch.float32 if self.int8 else self.kind

    def kind_of(self, name: str) -> torch.dtype:
        """Of a tensor that is not int8, by its name in the network."""
        if name.partition(".")[0] in ENDS:
            return torch.float32
        return self.kind if name.removesuffix(".weight").endswith(PARTS) else self.tokens


def packable(model: ViT) -> list[str]:
    """The layers that can be int8, in the order that tokens meet them."""
    return [f"encoder.blocks.{block}.{part}" for block in range(model.config.depth) for part in PARTS]


def pack(
    model: ViT, plan: Plan, preprocess: Preprocess | None = None, weights: Mapping[str, Bytes] | None = None
) -> PackedViT:
    """The packed network; the one given stays as it is. With `preprocess` it takes 8-bit pixels too.

    Weights that are bytes already, of int8 layers, may come beside the network.
    """
    unknown = set(plan.int8).difference(packable(model))
    if unknown:
        raise InputError(f"int8: no such layers: {join_limited(sorted(unknown), ', ')}")
    with torch.no_grad():
        packed = PackedViT(fold(model))
        rows = packed.config.prefix + int(np.prod(packed.config.grid))
        blocks = nn.ModuleList(
            _pack_block(cast(Block, block), f"encoder.blocks.{index}", plan, rows, weights or {})
            for index, block in enumerate(packed.encoder.blocks)
        )
        packed.encoder = PackedEncoder(blocks, plan.tokens)
        packed.patches = _pack_patches(packed, plan, preprocess, rows)
    for name, part in packed.named_children():
        part.to(torch.float32 if name in ENDS else plan.tokens)
    packed.eval().requires_grad_(False)
    compile_forward(packed)
    return packed


def unmerged(model: PackedViT) -> PackedViT:
    """The same network, packed or not, that merges no tokens; its layers, and who listens at them, are shared."""
    other, blocks = _twin(model), [_twin(cast(PackedBlock, each)) for each in model.encoder.blocks]
    for block in blocks:
        block.merged = 0
    other.encoder = PackedEncoder(nn.ModuleList(blocks), model.encoder.kind)
    other.config, other.compiled = model.config.unmerged, None
    if model.compiled is not None:
        compile_forward(other)
    return other


def _twin(module: Module) -> Module:
    """Another module on the same parameters and parts, to be given parts of its own."""
    other = copy(module)
    other.__dict__["_modules"] = dict(module._modules)
    return other


def _pack_block(block: Block, name: str, plan: Plan, rows: int, weights: Mapping[str, Bytes]) -> PackedBlock:
    attention, mlp = block.attention, block.mlp
    activation = mlp.activation if isinstance(mlp, Mlp) else ""
    fused = activation if activation in FUSED else ""

    def layer(part: str, linear: nn.Linear, activation: str = "") -> nn.Module:
        place = f"{name}.{part}"
        gives = plan.tokens if part in ("attention.out", "mlp.down") else plan.kind
        if place not in plan.int8:
            return PackedLinear(linear.weight, linear.bias, activation, rows, plan.kind)
        scale = Scale.of_range(*plan.int8[place])
        weight = weights[place] if place in weights else Bytes.of(linear.weight)
        return ByteLinear(weight, linear.bias, scale, activation, rows, gives)

    # Of other classes than those they replace, which is why they are set by name.
    setattr(attention, "qkv", layer("attention.qkv", attention.qkv))  # noqa: B010
    setattr(attention, "out", layer("attention.out", attention.out))  # noqa: B010
    up, down = layer("mlp.up", mlp.up, fused), layer("mlp.down", mlp.down)
    if not attention.axis:  # along lines the fused kernel has less to do
        attention.kernel = packed_attention
    return PackedBlock(block, PackedMlp(up, down, activation, isinstance(mlp, SwiGLU)))


def _pack_patches(model: ViT, plan: Plan, preprocess: Preprocess | None, rows: int) -> PackedPatches:
    patches = model.patches
    linear = patches.projection
    projection = PackedLinear(linear.weight, linear.bias, rows=rows, kind=plan.kind)
    raw = None
    plain = model.stem is None and patches.norm_before is None and patches.norm_after is None
    if plain and preprocess is not None and preprocess.is_8bit:
        raw = PackedLinear(*_of_bytes(linear, preprocess), rows=rows, kind=plan.kind)
    return PackedPatches(patches, projection, raw, plan.kind)


def _of_bytes(linear: nn.Linear, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """The projection of 8-bit values, counted from the middle: (v / 255 - mean) / std goes into weight and bias."""
    weight = linear.weight.double().reshape(linear.out_features, preprocess.channels, -1)  # (D, C, P*P)
    mean, std = (torch.tensor(each, dtype=torch.float64)[None, :, None] for each in (preprocess.mean, preprocess.std))
    bias = linear.bias.double() if linear.bias is not None else torch.zeros(linear.out_features, dtype=torch.float64)
    shift = (weight * ((mean - MIDDLE / preprocess.range) / std)).sum(dim=(1, 2))
    weight = weight / (preprocess.range * std)
    weight = weight.flip(1) if preprocess.order == "BGR" else weight  # bytes come as RGB
    return weight.flatten(1).float(), (bias - shift).float()


def layers_of(model: ViT) -> Iterator[tuple[str, nn.Linear]]:
    """The layers that can be int8 of a network that is not packed."""
    for name in packable(model):
        yield name, cast(nn.Linear, model.get_submodule(name))
