"""How a fresh network starts: named styles, one table.

| style  | dense layers       | MLP biases    | patch kernel   | cls token     | positions     | last layer |
|--------|--------------------|---------------|----------------|---------------|---------------|------------|
| paper  | Xavier uniform     | normal 1e-6   | LeCun normal   | zeros         | normal 0.02   | zeros      |
| timm   | truncated 0.02     | zeros         | torch's own    | normal 1e-6   | truncated .02 | as dense   |
| hf     | truncated 0.02     | zeros         | truncated 0.02 | truncated .02 | truncated .02 | as dense   |
| mae    | Xavier uniform     | zeros         | Xavier uniform | normal 0.02   | normal 0.02   | truncated 2e-5 |
| dinov2 | truncated 0.02     | zeros         | torch's own    | normal 1e-6   | truncated .02 | normal 0.01 |

In every style: other biases are zeros (the last layer's is `head_bias_init`), norms are ones and zeros, LayerScale
is `layer_scale`, registers are normal 1e-6 (DINOv2), the distillation token starts as the cls token does, relative keys
as positions do, the MAP probe is Xavier uniform, the decoder of masked pre-training starts its own two layers as dense
ones and its mask token as a cls token, stems keep torch's own but the last norm of a bottleneck is zeros
(Google). "paper" is what Google's released code does; truncated is at -2 and 2, as in
timm and HF; Xavier counts q, k and v apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import init

from vitrail.network.attention import Attention
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import Mlp, SwiGLU
from vitrail.network.heads import AttentionPool, DistillationHead, Head
from vitrail.network.patches import PatchEmbed
from vitrail.network.positions import PositionTable, PositionTable2d, RelativeKeys
from vitrail.network.stem import Bottleneck
from vitrail.network.tokens import Tokens

Filler = Callable[[Tensor], object]


def normal(deviation: float) -> Filler:
    return lambda tensor: init.normal_(tensor, std=deviation)


def truncated(deviation: float) -> Filler:
    return lambda tensor: init.trunc_normal_(tensor, std=deviation)  # cut at -2 and 2, as in timm and HF


def xavier(tensor: Tensor) -> None:
    """Uniform with variance 2 / (in + out); a kernel counts as the matrix it flattens to."""
    init.xavier_uniform_(tensor.flatten(1))


def lecun(tensor: Tensor) -> None:
    """Truncated normal with variance 1 / in, as Flax starts convolutions and dense layers."""
    deviation = 1 / math.sqrt(tensor[0].numel()) / 0.87962566103423978  # what the cut takes away
    init.trunc_normal_(tensor, std=deviation, a=-2 * deviation, b=2 * deviation)


def zeros(tensor: Tensor) -> None:
    init.zeros_(tensor)


def torch_own(tensor: Tensor) -> None:
    """torch's start of convolutions: uniform within 1 / sqrt(in)."""
    init.kaiming_uniform_(tensor, a=math.sqrt(5))


@dataclass(frozen=True)
class Style:
    """One row of the table above."""

    dense: Filler
    mlp_bias: Filler
    patch: Filler
    cls: Filler
    positions: Filler
    last: Filler


STYLES: dict[str, Style] = {
    "paper": Style(xavier, normal(1e-6), lecun, zeros, normal(0.02), zeros),
    "timm": Style(truncated(0.02), zeros, torch_own, normal(1e-6), truncated(0.02), truncated(0.02)),
    "hf": Style(truncated(0.02), zeros, truncated(0.02), truncated(0.02), truncated(0.02), truncated(0.02)),
    "mae": Style(xavier, zeros, xavier, normal(0.02), normal(0.02), truncated(2e-5)),
    "dinov2": Style(truncated(0.02), zeros, torch_own, normal(1e-6), truncated(0.02), normal(0.01)),
}


@torch.no_grad()
def initialise(model: nn.Module, config: ViTConfig) -> None:
    """Fill every parameter of a fresh network by the config's style."""
    if next(model.parameters()).is_meta:
        return  # shapes only
    style = STYLES[config.initialisation]
    for module in model.modules():
        _start(module, style, config)


def _start(module: nn.Module, style: Style, config: ViTConfig) -> None:
    if isinstance(module, PatchEmbed):
        style.patch(module.projection.weight)
        if module.projection.bias is not None:
            zeros(module.projection.bias)
    elif isinstance(module, Attention):
        for part in module.qkv.weight.chunk(3):
            style.dense(part)
        start_dense(module.out, style)
        if module.qkv.bias is not None:
            zeros(module.qkv.bias)
    elif isinstance(module, Mlp | SwiGLU):
        for layer in (module.up, module.down):
            style.dense(layer.weight)
            style.mlp_bias(layer.bias)
    elif isinstance(module, Tokens):
        for token in (module.cls, module.distillation):
            if token is not None:
                style.cls(token)
        if module.registers is not None:
            init.normal_(module.registers, std=1e-6)
    elif isinstance(module, PositionTable | PositionTable2d | RelativeKeys):
        for table in module.parameters():
            style.positions(table)
    elif isinstance(module, AttentionPool):
        init.xavier_uniform_(module.probe[0])
    elif isinstance(module, Head | DistillationHead):
        _start_head(module, style, config)
    elif isinstance(module, Bottleneck):
        zeros(module.norm3.weight)


def _start_head(head: Head | DistillationHead, style: Style, config: ViTConfig) -> None:
    if isinstance(head, Head):
        layers = [head.classify]
        if head.representation is not None:
            start_dense(head.representation, style)
    else:
        layers = [head.classify, head.distil]
    for layer in layers:
        if layer is not None:
            style.last(layer.weight)
            if layer.bias is not None:
                init.constant_(layer.bias, config.head_bias_init)


def start_dense(layer: nn.Linear, style: Style) -> None:
    """A dense layer outside the MLPs, by a style."""
    style.dense(layer.weight)
    zeros(layer.bias)
