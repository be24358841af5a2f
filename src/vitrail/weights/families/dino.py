"""DINO, DINOv2 and DINOv3 as they were published: bare state dicts in a pickle, or training files with their heads.

The layout of DINOv2 says how many blocks a training file has in a chunk; what is written is the bare state dict.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Resample, Rotary, ViTConfig
from vitrail.weights.families.facebook import ATTENTION, PLAIN_MLP, WHOLE, chunked, only, unchunked
from vitrail.weights.families.plain import ENDS, SCALES, mlp_of, sizes_of
from vitrail.weights.family import Description, Family, class_names, grid_of, shape_of
from vitrail.weights.name_tables import GATED, WITHOUT_BATCH, Codec, Derived, Row, Table, Tensors
from vitrail.weights.preprocessing import evaluation
from vitrail.weights.reading.contents import Contents

OFFSET: Final = Resample(antialias=False, offset=0.1)  # scaled by (n + 0.1) / M, without antialias
SMOOTH: Final = Resample()  # by size, with antialias
HEADS: Final = {384: 6, 768: 12, 1024: 16, 1152: 18, 1280: 20, 1536: 24, 4096: 32}  # of DINOv3: 64 each, 128 in the 7B
THETA: Final = 100.0
MASK: Final = "mask_token"
LOCAL: Final = ("local_cls_norm.weight", "local_cls_norm.bias")  # of small crops while training, never at rest
HEAD: Final = r"head\.(mlp|last_layer)\..+"  # of self-training: three layers and a last one
PROJECTION: Final = {"projection": ("head.mlp.*", "head.last_layer.*", "dino_head.*", "ibot_head.*")}
START: Table = (*ENDS, *ATTENTION, Row("norm", "norm"))
TABLE: Table = (Row("tokens.tables.0.table", "pos_embed", WITHOUT_BATCH),)
MASK_TOKEN: Table = (Row(f"extras.{MASK}", MASK),)


# ---- DINO --------------------------------------------------------------------------------------------------------


def knows_dino(contents: Contents) -> bool:
    """A bare state dict without a head of classes, in a pickle; timm would write the same names."""
    return contents.kind == "pickle" and only(contents, HEAD)


def describe_dino(contents: Contents, override: Mapping[str, Any]) -> Description:
    settings, heads_why = sizes_of(contents, override)
    settings |= _table(contents, settings, override, OFFSET)
    settings |= WHOLE | {"mlp_width": shape_of(contents, "blocks.0.mlp.fc2.weight", axes=2)[1], "norm_eps": 1e-6}
    return _described("DINO", settings, heads_why)


def table_dino(description: Description) -> Table:
    return (*START, *PLAIN_MLP, *TABLE)


# ---- DINOv2 ------------------------------------------------------------------------------------------------------


def knows_dinov2(contents: Contents) -> bool:
    """A mask token as one row, a table of positions, and none of MAE's decoder."""
    names = unchunked(contents)[0].tensors
    there = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_embed", MASK)
    return all(name in names for name in there) and len(names[MASK].shape) == 2


def describe_dinov2(contents: Contents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; registers are the mark of the later networks, which resample positions another way."""
    plain, chunk = unchunked(contents)
    settings, heads_why = sizes_of(plain, override)
    settings |= _registers(plain, "register_tokens")
    settings |= _table(plain, settings, override, SMOOTH if settings["registers"] else OFFSET)
    up, down = ("w12", "w3") if "blocks.0.mlp.w12.weight" in plain.tensors else ("fc1", "fc2")
    settings |= mlp_of(plain, f"blocks.0.mlp.{up}.weight", f"blocks.0.mlp.{down}.weight")
    settings |= WHOLE | {"layer_scale": _scale(plain, 1.0), "norm_eps": 1e-6, "initialisation": "dinov2"}
    return replace(
        _described("DINOv2", settings, heads_why),
        layout=str(chunk or ""),
        extras=_extras(plain.tensors, settings["width"]),
    )


def table_dinov2(description: Description) -> Table:
    """The rows for plain or gated MLPs; the gate stands first in theirs and in ours."""
    config = description.config
    mlp: Table = PLAIN_MLP
    if config.mlp == "swiglu":
        mlp = (
            Row("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.w12"),
            Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.w3"),
        )
    registers = Row("tokens.registers", "register_tokens", WITHOUT_BATCH)
    rows = (*START, *mlp, *SCALES, *TABLE, registers, *MASK_TOKEN)
    return chunked(rows, int(description.layout or 0), config.depth)


# ---- DINOv3 ------------------------------------------------------------------------------------------------------


def knows_dinov3(contents: Contents) -> bool:
    names = contents.tensors
    there = all(name in names for name in ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"))
    return there and ("storage_tokens" in names or "rope_embed.periods" in names)


def describe_dinov3(contents: Contents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; a mask beside the bias of qkv means that keys have none."""
    if any(name.startswith("cls_norm.") for name in contents.tensors):
        raise CheckpointError(
            f"{contents.source}: cls_norm, a norm of its own for cls and registers, which this network does not have"
        )
    settings, heads_why = sizes_of(contents, override, HEADS)
    settings |= _registers(contents, "storage_tokens")
    bias = settings["qkv_bias"]  # the 7B has none
    settings |= WHOLE | {
        "image_size": tuple(
            256 if 256 % side == 0 else 16 * side for side in settings["patch_size"]
        ),  # as its pre-training
        "qkv_bias": "no-key" if "blocks.0.attn.qkv.bias_mask" in contents.tensors else bias,
        "positions": Positions("none"),
        "rotary": Rotary("dinov3", theta=THETA),
        "layer_scale": _scale(contents, 1e-5),
        "norm_eps": 1e-5,
        "initialisation": "dinov2",
    }
    if "blocks.0.mlp.w1.weight" in contents.tensors:
        width = shape_of(contents, "blocks.0.mlp.w1.weight", axes=2)[0]
        settings |= {"mlp_width": width, "mlp": "swiglu", "activation": "silu"}
    else:
        settings["mlp_width"] = shape_of(contents, "blocks.0.mlp.fc2.weight", axes=2)[1]
    return replace(_described("DINOv3", settings, heads_why), extras=_extras(contents.tensors, settings["width"]))


def table_dinov3(description: Description) -> Table:
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


# ---- what the three share ----------------------------------------------------------------------------------------


def outline_dino(checkpoint: Checkpoint) -> Description:
    return Description(checkpoint.model.config, checkpoint.preprocess, classes=checkpoint.classes)


def outline_masked(checkpoint: Checkpoint) -> Description:
    """With the mask token, which their own class asks for, and without a head, which it does not have."""
    if checkpoint.model.config.classes:
        raise CheckpointError(
            "the classes of DINOv2 and DINOv3 have no head: leave it out when loading, or choose timm"
        )
    return replace(outline_dino(checkpoint), extras={MASK: (1, checkpoint.model.config.width)})


def _table(
    contents: Contents, settings: Mapping[str, Any], override: Mapping[str, Any], policy: Resample
) -> dict[str, Any]:
    """Positions with a slot for the cls token, and the image size that they were made for."""
    places = shape_of(contents, "pos_embed", axes=3)[1]
    size, _ = grid_of(places, (1,), settings["patch_size"], override)
    return {"image_size": size, "positions": Positions(resample=policy)}


def _registers(contents: Contents, name: str) -> dict[str, Any]:
    return {"registers": shape_of(contents, name, axes=3)[1] if name in contents.tensors else 0}


def _scale(contents: Contents, start: float) -> float | None:
    return start if "blocks.0.ls1.gamma" in contents.tensors else None


def _extras(names: Collection[str], width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of what only training needs, of these names."""
    shapes: dict[str, tuple[int, ...]] = {MASK: (1, width), **dict.fromkeys(LOCAL, (width,))}
    return {name: shape for name, shape in shapes.items() if name in names}


def _described(name: str, settings: dict[str, Any], heads_why: str) -> Description:
    """The description from the settings that were found, and the family's own ways."""
    config = ViTConfig(**settings)
    known = evaluation(name.lower(), config.image_size, config.channels)
    own = f"as {name}'s own code"
    reasons = {
        "heads": heads_why,
        "activation": own,
        "norm_eps": own,
        "resample": f"{own}{', with registers' if config.registers else ''}",
        "rotary": own,
        "pool": f"{name} gives the cls token",
        "preprocess": known.why,
    }
    return Description(config, known.preprocess, reasons, class_names(config.classes))


DINO: Final = Family(
    name="dino",
    knows=knows_dino,
    describe=describe_dino,
    table=table_dino,
    outline=outline_dino,
    container="pickle",
    parts=PROJECTION,
)
DINOV2: Final = Family(
    name="dinov2",
    knows=knows_dinov2,
    describe=describe_dinov2,
    table=table_dinov2,
    outline=outline_masked,
    container="pickle",
    parts=PROJECTION,
)
DINOV3: Final = Family(
    name="dinov3",
    knows=knows_dinov3,
    describe=describe_dinov3,
    table=table_dinov3,
    outline=outline_masked,
    container="pickle",
    parts=PROJECTION,
)
