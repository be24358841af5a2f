"""DINOv3 as it was published: rotary positions, registers, and keys whose bias is masked out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Rotary, ViTConfig
from vitrail.weights.families.block_names import PLAIN_MLP, SCALES, WHOLE, sizes_of
from vitrail.weights.families.dino import (
    MASK_TOKEN,
    PROJECTION,
    START,
    described,
    extras_of,
    outline_masked,
    registers_of,
    scale_of,
)
from vitrail.weights.family import Description, Family, shape_of
from vitrail.weights.name_tables import GATED, WITHOUT_BATCH, Codec, Derived, Row, Table, Tensors
from vitrail.weights.reading.contents import WeightContents

HEADS: Final = {384: 6, 768: 12, 1024: 16, 1152: 18, 1280: 20, 1536: 24, 4096: 32}  # of DINOv3: 64 each, 128 in the 7B
THETA: Final = 100.0


def knows(contents: WeightContents) -> bool:
    names = contents.tensors
    there = all(name in names for name in ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"))
    return there and ("storage_tokens" in names or "rope_embed.periods" in names)


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; a mask beside the bias of qkv means that keys have none."""
    if any(name.startswith("cls_norm.") for name in contents.tensors):
        raise CheckpointError(
            f"{contents.source}: cls_norm, a norm of its own for cls and registers, which this network does not have"
        )
    settings, heads_why = sizes_of(contents, override, HEADS)
    settings |= registers_of(contents, "storage_tokens")
    bias = settings["qkv_bias"]  # the 7B has none
    settings |= WHOLE | {
        "image_size": tuple(
            256 if 256 % side == 0 else 16 * side for side in settings["patch_size"]
        ),  # as its pre-training
        "qkv_bias": "no-key" if "blocks.0.attn.qkv.bias_mask" in contents.tensors else bias,
        "positions": Positions("none"),
        "rotary": Rotary("dinov3", theta=THETA),
        "layer_scale": scale_of(contents, 1e-5),
        "norm_eps": 1e-5,
        "initialisation": "dinov2",
    }
    if "blocks.0.mlp.w1.weight" in contents.tensors:
        width = shape_of(contents, "blocks.0.mlp.w1.weight", axes=2)[0]
        settings |= {"mlp_width": width, "mlp": "swiglu", "activation": "silu"}
    else:
        settings["mlp_width"] = shape_of(contents, "blocks.0.mlp.fc2.weight", axes=2)[1]
    return replace(described("DINOv3", settings, heads_why), extras=extras_of(contents.tensors, settings["width"]))


def table(description: Description) -> Table:
    """The rows for plain or gated MLPs and for masked biases; periods and masks follow from the config."""
    config = description.config
    rows: list[Row | Derived] = [*START, *SCALES, *MASK_TOKEN, Row("extras.local_cls_norm", "local_cls_norm")]
    rows.append(Row("tokens.registers", "storage_tokens", WITHOUT_BATCH))
    if config.mlp == "swiglu":
        rows.append(Row("encoder.blocks.{i}.mlp.up", ("blocks.{i}.mlp.w1", "blocks.{i}.mlp.w2"), GATED))
        rows.append(Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.w3"))
    else:
        rows += PLAIN_MLP
    if config.qkv_bias == "no-key":
        attention = "encoder.blocks.{i}.attention."
        rows.append(Row((f"{attention}query_bias", f"{attention}value_bias"), "blocks.{i}.attn.qkv.bias", MASKED))
        rows.append(Derived("blocks.{i}.attn.qkv.bias_mask", bias_mask, "1 for queries and values, 0 for keys"))
    why = "the periods of its rotary positions, computed anew in fp32"
    rows.append(Derived("rope_embed.periods", periods, why, close=0.02))  # bfloat16 in some files
    return rows


def bias_mask(config: ViTConfig) -> Tensor:
    """What the fused bias of queries, keys and values is multiplied with: (3D,)."""
    inner = config.heads * config.per_head
    return torch.cat((torch.ones(inner), torch.zeros(inner), torch.ones(inner)))


def periods(config: ViTConfig) -> Tensor:
    """Wave lengths of the rotary positions along one axis, d/4 of them, from 1 towards theta."""
    count, theta = config.per_head // 4, config.rotary.theta if config.rotary else THETA
    return theta ** (torch.arange(count, dtype=torch.float32) / count)


def _without_keys(tensors: Tensors, config: ViTConfig) -> Tensors:
    query, _, value = tensors[0].chunk(3)
    return [query, value]


def _with_keys(tensors: Tensors, config: ViTConfig) -> Tensors:
    query, value = tensors
    return [torch.cat((query, torch.zeros_like(query), value))]


MASKED: Final = Codec(
    "thirds of queries and values; that of keys is masked out, whatever it holds", _without_keys, _with_keys
)


FAMILY: Final = Family(
    name="dinov3",
    knows=knows,
    describe=describe,
    table=table,
    outline=outline_masked,
    parts=PROJECTION,
)
