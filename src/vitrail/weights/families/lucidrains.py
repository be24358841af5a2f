"""lucidrains' names (vit-pytorch): ViT in all its spellings, and SimpleViT.

The library has changed its names several times, one by one: where the norms stand, whether patches have norms of their
own, whether tokens and positions have a batch axis. Each is read from the names; what is written is the newest
spelling for networks with norms on their patches, and the oldest for those without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_int, check_pair
from vitrail.errors import CheckpointError
from vitrail.network.config import Positions
from vitrail.network.positions import fixed_table
from vitrail.weights.family import Description, Family, block_sizes_of, grid_of, refuse_any, rows_of, shape_of
from vitrail.weights.name_tables import CHANNELS_LAST, ROW, WITHOUT_BATCH, Codec, Derived, Row, Table, then, weights_of
from vitrail.weights.reading.contents import WeightContents

# The words of a layout: what sets a spelling apart from the newest one.
FN: Final = "fn"  # norms stand beside what they feed: layers.0.0.norm, layers.0.0.fn.to_qkv
HEAD_NORM: Final = "head-norm"  # the last norm is the head's first layer
BATCH: Final = "batch"  # cls token and positions have a batch axis
NO_OUT: Final = "no-out"  # one head as wide as the tokens: nothing after attention
NO_CLS: Final = "no-cls"  # the mean of the patches; a cls token of no rows is kept
SIMPLE: Final = "simple"  # SimpleViT: fixed positions, no cls token, no bias after attention
OLDEST: Final = f"{FN} {HEAD_NORM} {BATCH}"

MOCO: Final = "sincos-2d-moco"
VECTOR: Final = replace(then(then(ROW, CHANNELS_LAST), WITHOUT_BATCH), name=CHANNELS_LAST.name)
IDENTITY: Final = Codec("no layer: the identity", lambda t, c: [torch.eye(c.width)], lambda t, c: [])
ZEROS: Final = Codec("no bias: zeros", lambda t, c: [torch.zeros(c.width)], lambda t, c: [])
NO_TOKEN: Final = Derived("cls_token", lambda c: torch.empty(0, c.width), "no rows: there is no cls token")
OUT: Final = "encoder.blocks.{i}.attention.out"
SINCOS: Final = Codec("fixed positions", lambda t, c: [fixed_table(MOCO, c.grid, 0, c.width)], lambda t, c: [])


def knows(contents: WeightContents) -> bool:
    names = contents.tensors
    attention = ("transformer.layers.0.0.to_qkv.weight", "transformer.layers.0.0.fn.to_qkv.weight")
    return "to_patch_embedding.1.weight" in names and any(name in names for name in attention)


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; what they leave open takes vit-pytorch's own defaults."""
    layout = _layout(contents)
    words, rows = layout.split(), _rows(layout)
    (head,) = weights_of(rows, "head.classify")
    normed = len(shape_of(contents, "to_patch_embedding.1.weight")) == 1
    _, values = shape_of(contents, f"to_patch_embedding.{2 if normed else 1}.weight", axes=2)
    one_head = {"heads": 1} if NO_OUT in words else {}
    settings, heads_why = block_sizes_of(contents, rows, {**override, **one_head}, published={})
    if one_head:
        heads_why = "no layer after attention: one head as wide as the tokens"
    elif "heads" not in override:
        heads_why = "no tensor says it: heads of 64 values, vit-pytorch's default"
    pool = _pool(contents, layout, override)
    settings |= _patch(values, override)
    settings |= _positions(contents, words, settings["patch_size"], override)
    settings |= {
        "classes": rows_of(contents, head),
        "patch_norms": normed,
        "cls_token": pool == "cls",
        "qkv_bias": "none",
        "norm_eps": 1e-5,
        "pool": pool,
    }
    assumed = "assumed: square patches of an image; vit-pytorch's classes for video and sound have the same names"
    reasons = {
        "patch_size": assumed if "patch_size" not in override else "given",
        "channels": assumed if "channels" not in override else "given",
        "heads": heads_why,
        "activation": "vit-pytorch's default; no tensor says it",
        "norm_eps": "vit-pytorch's own, torch's default",
        "resample": "fixed positions are made anew" if layout == SIMPLE else "vit-pytorch has none: ours",
        "pool": "vit-pytorch's default; no tensor says it" if pool == "cls" else "there is no cls token",
    }
    return Description.evaluated("lucidrains", settings, reasons, layout=layout)


def table(description: Description) -> Table:
    """The rows for a config in one spelling."""
    layer = 2 if description.config.patch_norms else 1
    return (
        Row("patches.norm_before.weight", "to_patch_embedding.1.weight", VECTOR),
        Row("patches.norm_before.bias", "to_patch_embedding.1.bias", VECTOR),
        Row("patches.projection.weight", f"to_patch_embedding.{layer}.weight", CHANNELS_LAST),
        Row("patches.projection.bias", f"to_patch_embedding.{layer}.bias"),
        Row("patches.norm_after", "to_patch_embedding.3"),
        *_rows(description.layout),
    )


def _rows(layout: str) -> Table:
    """The rows of a spelling, for all but the patches."""
    words, block = layout.split(), "transformer.layers.{i}."
    simple, one_head, batch = SIMPLE in words, NO_OUT in words, WITHOUT_BATCH if BATCH in words else None
    norm, head = ("mlp_head.0", "mlp_head.1") if HEAD_NORM in words else ("transformer.norm", "mlp_head")
    attention, norm2, mlp, first = f"{block}0.", f"{block}1.net.0", f"{block}1.net.", 1
    if FN in words:
        attention, norm2, mlp, first = f"{block}0.fn.", f"{block}1.norm", f"{block}1.fn.net.", 0
    last = 3 if simple or FN in words else 4  # SimpleViT has one dropout fewer
    out = f"{attention}to_out" if simple else f"{attention}to_out.0"
    return (
        Row("tokens.tables.0.table", (), SINCOS) if simple else Row("tokens.tables.0.table", "pos_embedding", batch),
        NO_TOKEN if NO_CLS in words else Row("tokens.cls", "cls_token", batch),
        Row("encoder.blocks.{i}.norm1", f"{block}0.norm"),
        Row("encoder.blocks.{i}.norm2", norm2),
        Row("encoder.blocks.{i}.attention.qkv.weight", f"{attention}to_qkv.weight"),
        Row(f"{OUT}.weight", (), IDENTITY) if one_head else Row(f"{OUT}.weight", f"{out}.weight"),
        Row(f"{OUT}.bias", (), ZEROS) if one_head or simple else Row(f"{OUT}.bias", f"{out}.bias"),
        Row("encoder.blocks.{i}.mlp.up", f"{mlp}{first}"),
        Row("encoder.blocks.{i}.mlp.down", f"{mlp}{last}"),
        Row("norm", norm),
        Row("head.classify", "linear_head" if simple else head),
    )


def outline(checkpoint: Checkpoint) -> Description:
    """How vit-pytorch would carry a checkpoint: its newest ViT, or the one from before patches had norms."""
    config = checkpoint.model.config
    bare = not config.cls_token and not config.patch_norms  # no ViT of vit-pytorch is so
    reasons = {
        "a cls token without a position": config.cls_token and not config.slots,
        "a network without a cls token and without norms on its patches": bare,
    }
    refuse_any("lucidrains", reasons)
    words = [] if config.patch_norms else OLDEST.split()
    if not config.cls_token:
        words.append(NO_CLS)
    if config.heads == 1 and config.per_head == config.width:
        _refuse_out(checkpoint)
        words.append(NO_OUT)
    return Description.of(checkpoint, layout=" ".join(words))


# ---- small parts -------------------------------------------------------------------------------------------------


def _layout(contents: WeightContents) -> str:
    """Which spelling the names are."""
    names = contents.tensors
    if "linear_head.weight" in names or "linear_head.1.weight" in names:
        if "linear_head.1.weight" in names or "transformer.layers.0.0.fn.to_qkv.weight" in names:
            raise CheckpointError(f"{contents.source}: an old SimpleViT of vit-pytorch, whose names are not read here")
        return SIMPLE
    fn = "transformer.layers.0.0.fn.to_qkv.weight" in names
    out = "transformer.layers.0.0.fn.to_out.0.weight" if fn else "transformer.layers.0.0.to_out.0.weight"
    token = shape_of(contents, "cls_token")
    words = {
        FN: fn,
        HEAD_NORM: "mlp_head.0.weight" in names,
        BATCH: len(token) == 3,
        NO_CLS: token[:1] == (0,),
        NO_OUT: out not in names,
    }
    return " ".join(word for word, there in words.items() if there)


def _refuse_out(checkpoint: Checkpoint) -> None:
    """With one head as wide as the tokens vit-pytorch has no layer after attention: only the identity can go."""
    for name, value in checkpoint.model.state_dict().items():
        if name.endswith(".attention.out.weight") and not torch.equal(value, torch.eye(len(value)).to(value)):
            raise CheckpointError(f"lucidrains cannot carry {name}: with one head as wide as the tokens it has none")
        if name.endswith(".attention.out.bias") and bool(value.any()):
            raise CheckpointError(f"lucidrains cannot carry {name}: with one head as wide as the tokens it has none")


def _patch(values: int, override: Mapping[str, Any]) -> dict[str, Any]:
    """Patch size and channels from how many values a patch has: square, with 3 channels or 1, or as given."""
    if "patch_size" in override:
        patch = check_pair("patch_size", override["patch_size"])
        return {"patch_size": patch, "channels": max(values // (patch[0] * patch[1]), 1)}
    for channels in (check_int("channels", override["channels"]),) if "channels" in override else (3, 1):
        side = math.isqrt(values // channels)
        if side and side * side * channels == values:
            return {"patch_size": (side, side), "channels": channels}
    raise CheckpointError(
        f"a patch has {values} values, which make no square with 3 channels or 1: give "
        "override={'patch_size': (P, Q)}"
    )


def _positions(
    contents: WeightContents, words: list[str], patch: tuple[int, int], override: Mapping[str, Any]
) -> dict[str, Any]:
    """Positions and native size, from the table; SimpleViT keeps none and must be told."""
    if SIMPLE not in words:
        places = shape_of(contents, "pos_embedding", axes=3 if BATCH in words else 2)[-2]
        size, _ = grid_of(places, (0 if NO_CLS in words else 1,), patch, override)
        return {"image_size": size, "positions": Positions()}
    if "image_size" not in override:
        raise CheckpointError(
            f"{contents.source}: SimpleViT keeps no positions in its files, so no tensor says the size of its "
            "images: give override={'image_size': (H, W)}"
        )
    return {"image_size": check_pair("image_size", override["image_size"]), "positions": Positions(MOCO)}


def _pool(contents: WeightContents, layout: str, override: Mapping[str, Any]) -> str:
    """The cls token where there is one; the mean that takes it in as well is no pool known here."""
    if layout == SIMPLE or NO_CLS in layout.split():
        return "mean"
    if override.get("pool") == "mean":
        raise CheckpointError(
            f"{contents.source}: with a cls token, vit-pytorch's mean takes it in beside the patches, which no pool "
            "here does: load it with its cls token"
        )
    return "cls"


FAMILY: Final = Family(
    "lucidrains",
    knows,
    describe,
    table,
    outline,
    parts={"head": ("mlp_head.weight", "mlp_head.bias", "mlp_head.1.*", "linear_head.*")},
)
