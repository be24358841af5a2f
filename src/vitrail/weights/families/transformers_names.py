"""The names of transformers' tensors, in the spellings of versions 4 and 5 -> which a file has, and its table.

Version 5 renames tensors in memory and back on saving, so files of both kinds are about; two of its classes miss a
name on the way back (`vit_mae`'s decoder, `vit_msn` with a head). All of these are read; version 4's are written,
which both versions load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch

from vitrail.errors import CheckpointError
from vitrail.network.config import ViTConfig
from vitrail.weights.families.transformers_configs import MODEL_TYPES
from vitrail.weights.family import Description
from vitrail.weights.name_tables import (
    CHANNELS_LAST,
    GATED,
    KERNEL,
    QKV,
    REGISTER_SLOTS,
    ROW,
    WITHOUT_BATCH,
    Codec,
    Derived,
    Row,
    Table,
)
from vitrail.weights.reading.contents import WeightContents


class BlockNames(NamedTuple):
    """The names in a block, and what may stand before its number."""

    stems: tuple[str, ...]
    norms: tuple[str, str]
    qkv: tuple[str, str, str]
    out: str
    up: str
    down: str
    gated: tuple[str, ...] = ()  # in place of up: gate and value, as one layer or apart
    gated_down: str = ""


_AROUND: Final = ("layernorm_before", "layernorm_after")
_NORMS: Final = ("norm1", "norm2")
_OLD: Final = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
_NEW: Final = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
_CLIP: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUT: Final = ("attention.output.dense", "attention.o_proj", "self_attn.out_proj")  # of each of these three
_MLP: Final = ("mlp.fc1", "mlp.fc2")
_PROJ: Final = ("mlp.up_proj", "mlp.down_proj")
_JOINED: Final = (("mlp.weights_in",), "mlp.weights_out")
_APART: Final = (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj")
SPELLINGS: Final = {
    "vit-4": BlockNames(("encoder.layer.",), _AROUND, _OLD, _OUT[0], "intermediate.dense", "output.dense"),
    "vit-5": BlockNames(("layers.",), _AROUND, _NEW, _OUT[1], *_MLP),
    "dinov2-4": BlockNames(("encoder.layer.",), _NORMS, _OLD, _OUT[0], *_MLP, *_JOINED),
    "dinov2-5": BlockNames(("encoder.layer.",), _NORMS, _NEW, _OUT[1], *_MLP, *_APART),
    "dinov3": BlockNames(("layer.", "model.layer."), _NORMS, _NEW, _OUT[1], *_PROJ, *_APART),
    "clip": BlockNames(("encoder.layers.",), ("layer_norm1", "layer_norm2"), _CLIP, _OUT[2], *_MLP),
}


class OuterNames(NamedTuple):
    """The names outside the blocks that differ between model types."""

    patches: str
    places: str  # the table of positions
    norm: str


STYLES: Final = {
    "vit": OuterNames("embeddings.patch_embeddings.projection", "embeddings.position_embeddings", "layernorm"),
    "dinov3": OuterNames("embeddings.patch_embeddings", "", "norm"),
    "clip": OuterNames("embeddings.patch_embedding", "embeddings.position_embedding.weight", "post_layernorm"),
}
DECODERS: Final = ("decoder.decoder_layers.", "decoder.decoder_encoder.layer.")
MASK: Final = "embeddings.mask_token"
IDS: Final = "embeddings.position_ids"
DISTILLED: Final = "embeddings.distillation_token"
REGISTERS: Final = "embeddings.register_tokens"


class TransformersLayout(NamedTuple):
    """How a file spells a network: as text, the layout of its description."""

    kind: str  # its model type
    spelling: str
    tower: str  # before the names of the network
    blocks: str  # before the number of a block
    decoder: str = ""  # before the number of a block of the decoder
    ids: str = ""  # "ids" where the numbers of the positions are kept as a tensor

    @classmethod
    def of(cls, description: Description) -> TransformersLayout:
        return cls(*description.layout.split("|"))

    def __str__(self) -> str:
        return "|".join(self)


# ---- which spelling a file has -----------------------------------------------------------------------------------


def knows(contents: WeightContents) -> bool:
    return any(name.endswith(f"{style.patches}.weight") for style in STYLES.values() for name in contents.tensors)


def find_layout(contents: WeightContents, named: str) -> TransformersLayout:
    """The spelling that the names are of; the model type is the one named, or what the names tell."""
    names = contents.tensors
    style, tower = _find_tower(contents)
    name = named or _guess_model_type(names, style, tower)
    kind = MODEL_TYPES[name]
    if kind.style != style:
        raise CheckpointError(
            f"{contents.source}: config.json says {name}, and {tower}{STYLES[style].patches} is not of its names"
        )
    for spelling in kind.spellings:
        firsts = [f"0.{each}.weight" for each in (SPELLINGS[spelling].qkv[0], SPELLINGS[spelling].norms[0])]
        starts = [before + stem for before in (tower, "") for stem in SPELLINGS[spelling].stems]
        blocks = next((start for start in starts if all(start + first in names for first in firsts)), None)
        if blocks is not None:
            decoder = next((start for start in DECODERS if name == "vit_mae" and start + firsts[0] in names), "")
            return TransformersLayout(name, spelling, tower, blocks, decoder, "ids" if tower + IDS in names else "")
    raise CheckpointError(f"{contents.source}: patches in the names of transformers' {name}, and no blocks in them")


def _find_tower(contents: WeightContents) -> tuple[str, str]:
    """The style of the names, and what stands before them."""
    towers = [
        (name, each.removesuffix(f"{style.patches}.weight"))
        for name, style in STYLES.items()
        for each in contents.tensors
        if each.endswith(f"{style.patches}.weight")
    ]
    if len(towers) != 1:
        where = ", ".join(tower or "the file itself" for _, tower in towers[:8]) or "nowhere"
        raise CheckpointError(f"{contents.source}: expected the patches of one network, got them in: {where}")
    return towers[0]


def _guess_model_type(names: Mapping[str, Any], style: str, tower: str) -> str:
    """The model type that names alone tell; plain networks of several types look alike, and count as vit."""
    if style == "dinov3":
        return "dinov3_vit"
    if style == "clip":
        if f"{tower}embeddings.class_embedding" in names:
            return "clip_vision_model"
        flat = len(names[f"{tower}{STYLES[style].patches}.weight"].shape) == 2
        return "siglip2_vision_model" if flat else "siglip_vision_model"
    if f"{tower}encoder.layer.0.layer_scale1.lambda1" in names:
        return "dinov2_with_registers" if tower + REGISTERS in names else "dinov2"
    if tower + DISTILLED in names:
        return "deit"
    if "decoder.decoder_embed.weight" in names:
        return "vit_mae"
    if f"{tower}embeddings.cls_token" not in names:
        return "ijepa"
    return "vit_msn" if tower and "encoder.layer.0.layernorm_before.weight" in names else "vit"


# ---- the table, both ways ----------------------------------------------------------------------------------------


def table(description: Description) -> Table:
    """The rows of a layout."""
    layout, config = TransformersLayout.of(description), description.config
    kind, tower = MODEL_TYPES[layout.kind], layout.tower
    style = STYLES[kind.style]
    rows: list[Row | Derived] = [
        Row(
            "patches.projection.weight",
            f"{tower}{style.patches}.weight",
            CHANNELS_LAST if layout.kind == "siglip2_vision_model" else KERNEL,
        ),
        Row("patches.projection.bias", f"{tower}{style.patches}.bias"),
        Row("norm", tower + style.norm),
        *block_rows("encoder.", layout.blocks, layout, config.mlp == "swiglu"),
        *(_clip_ends(layout, config) if kind.style == "clip" else _vit_ends(layout, config)),
    ]
    if description.extras:
        rows.append(Row("extras.mask_token", tower + MASK, None if layout.kind.startswith("dinov2") else WITHOUT_BATCH))
    if description.decoder is not None:
        rows += [
            Row("decoder.entry", "decoder.decoder_embed"),
            Row("decoder.mask_token", "decoder.mask_token", WITHOUT_BATCH),
            Row("decoder.positions.table", "decoder.decoder_pos_embed", WITHOUT_BATCH),
            *block_rows("decoder.encoder.", layout.decoder, layout, gated=False),
            Row("decoder.norm", "decoder.decoder_norm"),
            Row("decoder.predict", "decoder.decoder_pred"),
        ]
    return rows


def block_rows(start: str, blocks: str, layout: TransformersLayout, gated: bool) -> list[Row]:
    """The rows of a stack of blocks, whose names start so in ours and in theirs."""
    ours, theirs, spelling = f"{start}blocks.{{i}}.", f"{blocks}{{i}}.", SPELLINGS[layout.spelling]
    up, down = (spelling.gated, spelling.gated_down) if gated else ((spelling.up,), spelling.down)
    rows = [
        Row(f"{ours}norm1", theirs + spelling.norms[0]),
        Row(f"{ours}norm2", theirs + spelling.norms[1]),
        Row(f"{ours}attention.qkv", tuple(theirs + each for each in spelling.qkv), QKV),
        Row(f"{ours}attention.out", theirs + spelling.out),
        Row(f"{ours}mlp.up", tuple(theirs + each for each in up), GATED if len(up) > 1 else None),
        Row(f"{ours}mlp.down", theirs + down),
        Row(f"{ours}scale1.gamma", f"{theirs}layer_scale1.lambda1"),
        Row(f"{ours}scale2.gamma", f"{theirs}layer_scale2.lambda1"),
    ]
    if layout.kind == "dinov3_vit":  # the one whose keys may go without a bias
        rows.append(Row(f"{ours}attention.query_bias", f"{theirs}{spelling.qkv[0]}.bias"))
        rows.append(Row(f"{ours}attention.value_bias", f"{theirs}{spelling.qkv[2]}.bias"))
    return rows


def _vit_ends(layout: TransformersLayout, config: ViTConfig) -> list[Row | Derived]:
    tower, places = layout.tower, layout.tower + STYLES["vit"].places
    both = config.pool == "cls+distillation"
    cls, registers = f"{tower}embeddings.cls_token", tower + REGISTERS
    rows: list[Row | Derived] = [
        Row("head.representation", f"{tower}pooler.dense"),
        Row("head.classify", "cls_classifier" if both else "classifier"),
        Row("head.distil", "distillation_classifier"),
    ]
    if layout.kind in ("dinov3_vit", "dinov2_with_registers") and not config.registers:
        rows.append(Row("tokens.cls", (cls, registers), NO_REGISTERS))
    else:
        rows.append(Row("tokens.cls", cls, WITHOUT_BATCH))
    if layout.kind == "deit" and not both:
        rows.append(Row(("tokens.registers", "tokens.tables.0.table"), (tower + DISTILLED, places), AS_REGISTER))
        return rows
    if layout.kind.startswith("dino"):
        rows.append(Row("tokens.registers", registers, WITHOUT_BATCH))
    rows.append(Row("tokens.distillation", tower + DISTILLED, WITHOUT_BATCH))
    rows.append(Row("tokens.tables.0.table", places, WITHOUT_BATCH))
    return rows


def _clip_ends(layout: TransformersLayout, config: ViTConfig) -> list[Row | Derived]:
    tower = layout.tower
    projected = layout.kind == "clip_vision_model" and config.pool == "cls"
    rows: list[Row | Derived] = [
        Row("tokens.cls", f"{tower}embeddings.class_embedding", ROW),
        Row("tokens.tables.0.table", tower + STYLES["clip"].places),
        Row("embedding_norm", f"{tower}pre_layrnorm"),
        Row("pool.probe", f"{tower}head.probe"),
        Row("pool.attention.qkv.weight", f"{tower}head.attention.in_proj_weight"),
        Row("pool.attention.qkv.bias", f"{tower}head.attention.in_proj_bias"),
        Row("pool.attention.out", f"{tower}head.attention.out_proj"),
        Row("pool.norm", f"{tower}head.layernorm"),
        Row("pool.mlp.up", f"{tower}head.mlp.fc1"),
        Row("pool.mlp.down", f"{tower}head.mlp.fc2"),
        Row("head.classify", "visual_projection" if projected else "classifier"),
    ]
    if layout.ids:
        rows.append(Derived(tower + IDS, lambda c: torch.arange(c.tokens)[None], "the numbers of the positions"))
    return rows


NO_REGISTERS: Final = Codec(
    "followed by no registers",
    lambda t, c: [torch.cat(tuple(t), dim=1)[0]],
    lambda t, c: [t[0][None], t[0].new_zeros(1, 0, c.width)],
)
# a distillation token that no head asks is a register
AS_REGISTER: Final = replace(REGISTER_SLOTS, name="distillation token with its place as a register")
