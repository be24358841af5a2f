"""timm's NaFlexVit: timm's blocks behind linear patches, weighed pixel by pixel, and a table kept as a grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.weights.families import timm, timm_config
from vitrail.weights.families.timm_config import refuse
from vitrail.weights.family import Description, Family, shape_of, square_patch
from vitrail.weights.name_tables import CHANNELS_LAST, Row, Table, renamed, reshaped
from vitrail.weights.reading.contents import WeightContents

GRID: Final = reshaped(
    "grid laid out row by row", lambda t, c: t.squeeze(0).flatten(0, 1), lambda t, c: t.reshape(1, *c.grid, -1)
)
EMBEDS: Table = (
    Row("patches.projection.weight", "embeds.proj.weight", CHANNELS_LAST),
    Row("patches.projection.bias", "embeds.proj.bias"),
    Row("tokens.tables.0.table", "embeds.pos_embed", GRID),
)
TOKENS: Final = ("cls_token", "reg_token")


def knows(contents: WeightContents) -> bool:
    return "embeds.proj.weight" in contents.tensors and "blocks.0.attn.qkv.weight" in contents.tensors


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """As timm's plain networks, once patches and table are given their usual shapes."""
    width, values = shape_of(contents, "embeds.proj.weight", axes=2)
    square = square_patch(contents.source, values, override)
    patch = square["patch_size"][0]
    tensors = {name.removeprefix("embeds."): value for name, value in contents.tensors.items()}
    weight = tensors.pop("proj.weight")
    tensors["patch_embed.proj.weight"] = weight._replace(shape=(width, square["channels"], patch, patch))
    if "proj.bias" in tensors:
        tensors["patch_embed.proj.bias"] = tensors.pop("proj.bias")
    if "norm_input.weight" in tensors or "pos_embed" not in tensors:
        raise CheckpointError(f"{contents.source}: a NaFlexVit without a learned grid of positions is not known here")
    _, rows, columns, _ = shape_of(contents, "embeds.pos_embed", axes=4)
    tensors["pos_embed"] = tensors["pos_embed"]._replace(shape=(1, rows * columns, width))
    size = {"image_size": (rows * patch, columns * patch)}
    described = timm.describe(replace(contents, tensors=tensors), {**override, **size})
    reasons = {**described.reasons, "resample": "NaFlexVit's own, for other sizes"}
    config = described.config
    if not contents.sidecars and config.pool == "map" and not config.prefix and "activation" not in override:
        config = replace(config, activation="gelu_tanh")
        reasons["activation"] = "as timm's SigLIP of any size"
    return replace(described, config=config, reasons=reasons)


def table(description: Description) -> Table:
    """timm's rows under NaFlexVit's names."""
    rows = [row for row in timm.table(description) if not str(row.theirs).startswith(("patch_embed.", "pos_embed"))]
    return (*EMBEDS, *renamed(rows, lambda name: f"embeds.{name}" if name in TOKENS else name))


def outline(checkpoint: Checkpoint) -> Description:
    """How timm's NaFlexVit would carry a checkpoint: its grid has no place before the patches."""
    refuse("timm-naflex", checkpoint.model.config)
    if checkpoint.model.config.slots:
        raise CheckpointError("timm-naflex cannot carry positions of prefix tokens: its table is a grid of patches")
    return Description.of(checkpoint, layout="vit")


def sidecars(description: Description) -> dict[str, Any]:
    """timm's config.json for its NaFlexVit."""
    config = description.config
    plain = timm_config.sidecars(description)["config.json"]
    arguments = plain["model_args"]
    for name in ("img_size", "no_embed_class"):
        arguments.pop(name, None)
    arguments |= {"pos_embed_grid_size": list(config.grid), "patch_size": config.patch_size[0]}
    arguments["final_norm"] = config.final_norm == "tokens"
    return {"config.json": plain | {"architecture": "naflexvit_base_patch16_gap"}}


FAMILY: Final = Family(
    "timm-naflex",
    knows,
    describe,
    table,
    outline,
    sidecars,
    container="folder",
    parts={"head": ("head.*",), "norm": ("norm.*", "fc_norm.*")},
)
