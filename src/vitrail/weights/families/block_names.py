"""The names that timm, DeiT, DINO, DINOv2, DINOv3 and MAE share: blocks.0.attn.qkv and so on; what their shapes say."""

from __future__ import annotations

import re
from typing import Final

from vitrail.weights.name_tables import KERNEL, WITHOUT_BATCH, Row, Table
from vitrail.weights.reading.contents import WeightContents

ATTENTION: Table = (
    Row("encoder.blocks.{i}.norm1", "blocks.{i}.norm1"),
    Row("encoder.blocks.{i}.norm2", "blocks.{i}.norm2"),
    Row("encoder.blocks.{i}.attention.qkv", "blocks.{i}.attn.qkv"),
    Row("encoder.blocks.{i}.attention.out", "blocks.{i}.attn.proj"),
)
PLAIN_MLP: Table = (
    Row("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.fc1"),
    Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.fc2"),
)
SCALES: Table = (
    Row("encoder.blocks.{i}.scale1.gamma", "blocks.{i}.ls1.gamma"),
    Row("encoder.blocks.{i}.scale2.gamma", "blocks.{i}.ls2.gamma"),
)
ENDS: Table = (
    Row("patches.projection.weight", "patch_embed.proj.weight", KERNEL),
    Row("patches.projection.bias", "patch_embed.proj.bias"),
    Row("tokens.cls", "cls_token", WITHOUT_BATCH),
    Row("head.classify", "head"),
)
TABLE: Table = (Row("tokens.tables.0.table", "pos_embed", WITHOUT_BATCH),)
PLAIN: Final = (  # the names of a vision transformer without a head, and no other
    r"(cls_token|pos_embed|(patch_embed\.proj|norm)\.(weight|bias)"
    r"|blocks\.\d+\.(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.(weight|bias))"
)


def only(contents: WeightContents, more: str = "") -> bool:
    """Whether every name is a plain one, or fits `more`; and the first ones are there."""
    pattern = re.compile(f"{PLAIN}|{more}" if more else PLAIN)
    there = all(name in contents.tensors for name in ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"))
    return there and all(pattern.fullmatch(name) for name in contents.tensors)


def under_model(contents: WeightContents) -> bool:
    """Whether the weights stood under "model" in a pickle, as DeiT and MAE write them."""
    return contents.kind == "pickle" and "model" in contents.wrapper.split(", ")
