"""DINOv3 as it was published: rotary positions, registers, and keys whose bias is masked out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Rotary, ViTConfig
from vitrail.weights.families import dino
from vitrail.weights.families.block_names import PLAIN_MLP, SCALES
from vitrail.weights.family import SWIGLU, Description, Family, sizes_of, usual_size
from vitrail.weights.name_tables import GATED, WITHOUT_BATCH, Codec, Derived, Row, Table, Tensors
from vitrail.weights.reading.contents import WeightContents

HEADS: Final = {384: 6, 768: 12, 1024: 16, 1152: 18, 1280: 20, 1536: 24, 4096: 32}  # of DINOv3: 64 each, 128 in the 7B
THETA: Final = 100.0
GATED_MLP: Table = (
    Row("encoder.blocks.{i}.mlp.up", ("blocks.{i}.mlp.w1", "blocks.{i}.mlp.w2"), GATED),
    Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.w3"),
)


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
    names = contents.tensors
    gated = "blocks.0.mlp.w1.weight" in names
    settings, heads_why = sizes_of(contents, (*dino.START, *(GATED_MLP if gated else PLAIN_MLP)), override, HEADS)
    bias = "all" if "blocks.0.attn.qkv.bias" in names else "none"  # the 7B has none
    settings |= dino.marks_of(contents, "storage_tokens", scale=1e-5) | {
        "image_size": usual_size(settings["patch_size"], 256, 16),  # as its pre-training
        "qkv_bias": "no-key" if "blocks.0.attn.qkv.bias_mask" in names else bias,
        "positions": Positions("none"),
        "rotary": Rotary("dinov3", theta=THETA),
        "norm_eps": 1e-5,
        **(SWIGLU if gated else {}),
    }
    return dino.described("DINOv3", settings, heads_why, extras=dino.extras_of(names, settings["width"]))


def table(description: Description) -> Table:
    """The rows for plain or gated MLPs and for masked biases; periods and masks follow from the config."""
    config = description.config
    rows: list[Row | Derived] = [*dino.START, *SCALES, *dino.MASK_TOKEN]
    rows.append(Row("extras.local_cls_norm", "local_cls_norm"))
    rows.append(Row("tokens.registers", "storage_tokens", WITHOUT_BATCH))
    rows += GATED_MLP if config.mlp == "swiglu" else PLAIN_MLP
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


FAMILY: Final = Family("dinov3", knows, describe, table, dino.outline_masked, parts=dino.PROJECTION)
