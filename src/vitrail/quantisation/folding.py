"""A network -> the same function with fewer steps: LayerScale goes into weights, two biases into one."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from vitrail.network.encoder import Block
from vitrail.network.surgery import rebuild
from vitrail.network.vit import ViT


def fold(model: ViT) -> ViT:
    """The folded network; what needs no change is shared with the one given."""
    config = model.config
    simpler = replace(config, layer_scale=None, qkv_bias="all" if config.qkv_bias == "no-key" else config.qkv_bias)
    tensors = model.state_dict()
    with torch.no_grad():
        for number, block in enumerate(model.encoder.blocks):
            tensors.update(_of_block(cast(Block, block), f"encoder.blocks.{number}"))
    return rebuild(model, simpler, tensors)


def _of_block(block: Block, name: str) -> dict[str, Tensor]:
    """The tensors that change."""
    changed: dict[str, Tensor] = {}
    for scale, linear, layer in (
        (block.scale1, block.attention.out, f"{name}.attention.out"),
        (block.scale2, block.mlp.down, f"{name}.mlp.down"),
    ):
        if scale is not None:
            changed[f"{layer}.weight"] = nn.Parameter(linear.weight * scale.gamma[:, None])
            changed[f"{layer}.bias"] = nn.Parameter(linear.bias * scale.gamma)
    query, value = block.attention.query_bias, block.attention.value_bias
    if query is not None and value is not None:
        changed[f"{name}.attention.qkv.bias"] = nn.Parameter(torch.cat((query, torch.zeros_like(query), value)))
    return changed
