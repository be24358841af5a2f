"""A network -> the same function, with what its layers receive made even: large channels small, small ones larger.

Bytes have one step for all channels of a token, so a large channel makes the steps coarse for all others. Each channel
is divided by a factor that the layer before it, a norm or the values of attention, and the own weight of the layer can
take up exactly (SmoothQuant, Xiao et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.network.encoder import Block
from vitrail.network.vit import ViT
from vitrail.quantisation.folding import fold
from vitrail.quantisation.range_calibration import watch_layers

SHARE = 0.5  # of the unevenness that goes from the tokens to the weights


def smooth(model: ViT, batches: Sequence[Tensor]) -> ViT:
    """The evened network; the one given stays as it is."""
    peaks = _peaks(model, batches)
    evened = fold(model)
    with torch.no_grad():
        for number, module in enumerate(evened.encoder.blocks):
            block, name = cast(Block, module), f"encoder.blocks.{number}"
            if isinstance(block.norm1, nn.LayerNorm):
                beside = [block.mlp.up] if block.norm2 is None else []  # on the same norm
                _after_norm(block.norm1, [block.attention.qkv, *beside], peaks[f"{name}.attention.qkv"])
            if isinstance(block.norm2, nn.LayerNorm):
                _after_norm(block.norm2, [block.mlp.up], peaks[f"{name}.mlp.up"])
            _after_values(block, peaks[f"{name}.attention.out"])
    return evened.eval()


def _peaks(model: ViT, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """The largest value of each channel that a layer receives: (in,)."""
    peaks: dict[str, Tensor] = {}

    def look(name: str, values: Tensor) -> None:
        peak = values.float().flatten(0, -2).abs().amax(dim=0)
        peaks[name] = torch.maximum(peaks[name], peak) if name in peaks else peak

    watch_layers(model, batches, look)
    return peaks


def _factors(peaks: Tensor, weights: list[Tensor]) -> Tensor:
    """What to divide each channel by: (in,), 1 on average."""
    weight = torch.stack([each.detach().float().abs().amax(dim=0) for each in weights]).amax(dim=0)
    factor = peaks.clamp(min=1e-5) ** SHARE / weight.clamp(min=1e-5) ** (1 - SHARE)
    return factor / factor.log().mean().exp()


def _after_norm(norm: nn.LayerNorm, layers: list[nn.Linear], peaks: Tensor) -> None:
    factor = _factors(peaks, [each.weight for each in layers]).to(norm.weight.dtype)
    norm.weight = nn.Parameter(norm.weight / factor)
    norm.bias = nn.Parameter(norm.bias / factor)
    for each in layers:
        each.weight = nn.Parameter(each.weight * factor)


def _after_values(block: Block, peaks: Tensor) -> None:
    """Attention mixes the values of tokens, channel by channel, so a factor passes through it."""
    attention = block.attention
    factor = _factors(peaks, [attention.out.weight]).to(attention.out.weight.dtype)
    inner = attention.out.in_features
    scale = torch.cat((factor.new_ones(2 * inner), 1 / factor))
    attention.qkv.weight = nn.Parameter(attention.qkv.weight * scale[:, None])
    if attention.qkv.bias is not None:
        attention.qkv.bias = nn.Parameter(attention.qkv.bias * scale)
    attention.out.weight = nn.Parameter(attention.out.weight * factor)
