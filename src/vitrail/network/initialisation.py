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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import init

from vitrail.errors import ConfigError
from vitrail.network.attention import Attention
from vitrail.network.config import ViTConfig
from vitrail.network.encoder import LayerScale, Mlp, SwiGLU
from vitrail.network.heads import AttentionPool, Head
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


def torch_own(tensor: Tensor) -> None:
    """torch's start of convolutions: uniform within 1 / sqrt(in)."""
    init.kaiming_uniform_(tensor, a=math.sqrt(5))


class Style(NamedTuple):
    """One row of the table above."""

    dense: Filler
    mlp_bias: Filler
    patch: Filler
    cls: Filler
    positions: Filler
    last: Filler


zeros: Filler = init.zeros_
STYLES: dict[str, Style] = {
    "paper": Style(xavier, normal(1e-6), lecun, zeros, normal(0.02), zeros),
    "timm": Style(truncated(0.02), zeros, torch_own, normal(1e-6), truncated(0.02), truncated(0.02)),
    "hf": Style(truncated(0.02), zeros, truncated(0.02), truncated(0.02), truncated(0.02), truncated(0.02)),
    "mae": Style(xavier, zeros, xavier, normal(0.02), normal(0.02), truncated(2e-5)),
    "dinov2": Style(truncated(0.02), zeros, torch_own, normal(1e-6), truncated(0.02), normal(0.01)),
}


@torch.no_grad()
def initialise(model: nn.Module, config: ViTConfig) -> None:
    """Fill every parameter of a fresh network by the config's style; layers that no style knows are refused."""
    if next(model.parameters()).is_meta:
        return  # shapes only
    style = STYLES[config.initialisation]
    for module in model.modules():
        start = next((start for kinds, start in STARTS if isinstance(module, kinds)), None)
        if start is not None:
            start(module, style, config)
        elif module is not model and not isinstance(module, AS_BUILT):  # the model starts its own layers itself
            dense = [name for name, child in module.named_children() if isinstance(child, nn.Linear)]
            if dense or module._parameters:
                raise ConfigError(f"initialisation {config.initialisation!r} does not know how {type(module)} starts")


def fill(layer: nn.Linear, weight: Filler, bias: Filler = zeros) -> None:
    """A dense layer: its weight (out, in) and, where it has one, its bias (out,)."""
    weight(layer.weight)
    if layer.bias is not None:
        bias(layer.bias)


def _start_attention(attention: Attention, style: Style, config: ViTConfig) -> None:
    for part in attention.qkv.weight.chunk(3):  # q, k and v apart
        style.dense(part)
    fill(attention.out, style.dense)
    if attention.qkv.bias is not None:
        zeros(attention.qkv.bias)


def _start_mlp(mlp: Mlp | SwiGLU, style: Style, config: ViTConfig) -> None:
    for layer in (mlp.up, mlp.down):
        fill(layer, style.dense, style.mlp_bias)


def _start_tokens(tokens: Tokens, style: Style, config: ViTConfig) -> None:
    for token in (tokens.cls, tokens.distillation):
        if token is not None:
            style.cls(token)
    if tokens.registers is not None:
        init.normal_(tokens.registers, std=1e-6)


def _start_positions(positions: nn.Module, style: Style, config: ViTConfig) -> None:
    for table in positions.parameters():
        style.positions(table)


def _start_head(head: Head, style: Style, config: ViTConfig) -> None:
    if head.representation is not None:
        fill(head.representation, style.dense)
    for layer in (head.classify, head.distil):
        if layer is not None:
            fill(layer, style.last, lambda bias: init.constant_(bias, config.head_bias_init))


# Who starts how, the first that fits; and what keeps the start that torch, or its own constructor, gave it.
STARTS: tuple[tuple[Any, Callable[[Any, Style, ViTConfig], object]], ...] = (
    (PatchEmbed, lambda patches, style, config: fill(patches.projection, style.patch)),
    (Attention, _start_attention),
    (Mlp | SwiGLU, _start_mlp),
    (Tokens, _start_tokens),
    (PositionTable | PositionTable2d | RelativeKeys, _start_positions),
    (AttentionPool, lambda pool, style, config: xavier(pool.probe[0])),
    (Head, _start_head),
    (Bottleneck, lambda unit, style, config: zeros(unit.norm3.weight)),
)
AS_BUILT = (
    *(nn.Linear, nn.Conv2d, nn.Embedding, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm),
    *(LayerScale, nn.ParameterList),  # its start is the config's; learned rotary frequencies
)
