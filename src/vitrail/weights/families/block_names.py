"""The names that timm, DeiT, DINO, DINOv2, DINOv3 and MAE share: blocks.0.attn.qkv and so on; what their shapes say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vitrail.network.config import ResNetStem
from vitrail.weights.family import depth_of, heads_for, rows_of, shape_of
from vitrail.weights.name_tables import KERNEL, WITHOUT_BATCH, Row, Table
from vitrail.weights.reading.contents import WeightContents

BLOCKS: Table = (
    Row("encoder.blocks.{i}.norm1", "blocks.{i}.norm1"),
    Row("encoder.blocks.{i}.norm2", "blocks.{i}.norm2"),
    Row("encoder.blocks.{i}.attention.qkv", "blocks.{i}.attn.qkv"),
    Row("encoder.blocks.{i}.attention.query_norm", "blocks.{i}.attn.q_norm"),
    Row("encoder.blocks.{i}.attention.key_norm", "blocks.{i}.attn.k_norm"),
    Row("encoder.blocks.{i}.attention.out", "blocks.{i}.attn.proj"),
    Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.fc2"),
)
MLP: Table = (Row("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.fc1"),)
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
PLAIN: Final = (  # the names of a vision transformer without a head, and no other
    r"(cls_token|pos_embed|(patch_embed\.proj|norm)\.(weight|bias)"
    r"|blocks\.\d+\.(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.(weight|bias))"
)
ATTENTION: Table = tuple(  # of timm's blocks what these networks have, and nothing of the MLP
    row for row in BLOCKS if isinstance(row, Row) and not str(row.theirs).endswith(("q_norm", "k_norm", "mlp.fc2"))
)
WHOLE: Final = {"cls_token": True, "patch_bias": True, "qkv_bias": "all", "head_bias": True}  # every one of them has
PLAIN_MLP: Table = (
    Row("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.fc1"),
    Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.fc2"),
)


class ShapeSettings(NamedTuple):
    """What the shapes of these names say, as settings of ViTConfig, and why there are so many heads."""

    settings: dict[str, Any]
    heads_why: str


def sizes_of(
    contents: WeightContents, override: Mapping[str, Any], published: Mapping[int, int] | None = None
) -> ShapeSettings:
    """Width, depth, heads, MLP and patches from blocks.{i} and patch_embed.proj; the rest is the family's own."""
    tensors = contents.tensors
    width, channels, *patch = shape_of(contents, "patch_embed.proj.weight", axes=4)
    depth = depth_of(contents, "blocks.{i}.norm1.weight")
    inner = shape_of(contents, "blocks.0.attn.qkv.weight", axes=2)[0] // 3
    if "blocks.0.attn.q_norm.weight" in tensors:
        head_width = shape_of(contents, "blocks.0.attn.q_norm.weight", axes=1)[0]
        heads, why = max(inner // max(head_width, 1), 1), "the norms of the queries say so"
    else:
        heads, why = heads_for(inner, override) if published is None else heads_for(inner, override, published)
    settings: dict[str, Any] = {
        "patch_size": tuple(patch),
        "channels": channels,
        "width": width,
        "depth": depth,
        "heads": heads,
        "head_width": inner // heads if inner != width else 0,
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "cls_token": "cls_token" in tensors,
        "qkv_bias": "all" if "blocks.0.attn.qkv.bias" in tensors else "none",
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "classes": rows_of(contents, "head.weight"),
        "head_bias": "head.bias" in tensors or "head.weight" not in tensors,
        "initialisation": "timm",
    }
    return ShapeSettings(settings, why)


def mlp_of(contents: WeightContents, up: str, down: str) -> dict[str, Any]:
    """Plain or gated, from the two layers of the first block's MLP: a gated one is twice as wide going up."""
    wide, narrow = shape_of(contents, up, axes=2)[0], shape_of(contents, down, axes=2)[1]
    if wide == 2 * narrow:
        return {"mlp_width": narrow, "mlp": "swiglu", "activation": "silu"}
    return {"mlp_width": narrow}


def only(contents: WeightContents, more: str = "") -> bool:
    """Whether every name is a plain one, or fits `more`; and the first ones are there."""
    pattern = re.compile(f"{PLAIN}|{more}" if more else PLAIN)
    there = all(name in contents.tensors for name in ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"))
    return there and all(pattern.fullmatch(name) for name in contents.tensors)


def under_model(contents: WeightContents) -> bool:
    """Whether the weights stood under "model" in a pickle, as DeiT and MAE write them."""
    return contents.kind == "pickle" and "model" in contents.wrapper.split(", ")


def resnet_rows(before: str, stem: ResNetStem) -> Table:
    """The ResNetV2 of the hybrids in timm's names, which stand behind `before`."""
    root = root_of(stem.layers, before)
    rows = [Row("stem.root", f"{root}conv"), Row("stem.root_norm", f"{root}norm")]
    for stage, count in enumerate(stem.layers):
        for unit in range(count):
            ours, theirs = f"stem.stages.{stage}.{unit}.", f"{before}stages.{stage}.blocks.{unit}."
            rows += [Row(ours + each, theirs + each) for each in ("conv1", "norm1", "conv2", "norm2", "conv3", "norm3")]
            rows += [Row(ours + "shortcut", theirs + "downsample.conv")]
            rows += [Row(ours + "shortcut_norm", theirs + "downsample.norm")]
    return tuple(rows)


def root_of(layers: tuple[int, ...], before: str) -> str:
    """Where the first convolution stands: a ResNetV2 without stages is nothing but its root."""
    return f"{before}stem." if layers else before


def resnet_layers(contents: WeightContents, before: str) -> tuple[int, ...]:
    """How many units each stage of a ResNetV2 has."""
    layers: list[int] = []
    while f"{before}stages.{len(layers)}.blocks.0.conv1.weight" in contents.tensors:
        layers.append(depth_of(contents, f"{before}stages.{len(layers)}.blocks.{{i}}.conv1.weight"))
    return tuple(layers)
