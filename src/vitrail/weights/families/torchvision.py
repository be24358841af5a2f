"""torchvision's names: its VisionTransformer as a bare state dict, conv_proj and encoder.layers.encoder_layer_0.

A file says nothing of heads and preprocessing; activation, norm eps and pool are fixed in torchvision's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network.config import Positions, Resample, ViTConfig
from vitrail.weights.family import Description, Family, class_names, depth_of, grid_of, heads_for, rows_of, shape_of
from vitrail.weights.name_tables import KERNEL, WITHOUT_BATCH, Row, Table
from vitrail.weights.preprocessing import evaluation
from vitrail.weights.reading.contents import WeightContents

RESAMPLE: Final = Resample(antialias=False, align_corners=True)  # of its interpolate_embeddings
BLOCK: Final = "encoder.layers.encoder_layer_{i}."
FIRST: Final = "encoder.layers.encoder_layer_0."
MLP: Final = {"": ("mlp.0", "mlp.3"), "linear": ("mlp.linear_1", "mlp.linear_2")}  # files of 2021 have the second
REASONS: Final = {
    "activation": "torchvision's only one",
    "norm_eps": "torchvision's own",
    "pool": "torchvision's only one",
    "resample": "torchvision's interpolate_embeddings",
}

ROWS: Table = (
    Row("patches.projection.weight", "conv_proj.weight", KERNEL),
    Row("patches.projection.bias", "conv_proj.bias"),
    Row("tokens.cls", "class_token", WITHOUT_BATCH),
    Row("tokens.tables.0.table", "encoder.pos_embedding", WITHOUT_BATCH),
    Row("encoder.blocks.{i}.norm1", BLOCK + "ln_1"),
    Row("encoder.blocks.{i}.norm2", BLOCK + "ln_2"),
    Row("encoder.blocks.{i}.attention.qkv.weight", BLOCK + "self_attention.in_proj_weight"),
    Row("encoder.blocks.{i}.attention.qkv.bias", BLOCK + "self_attention.in_proj_bias"),
    Row("encoder.blocks.{i}.attention.out", BLOCK + "self_attention.out_proj"),
    Row("norm", "encoder.ln"),
    Row("head.representation", "heads.pre_logits"),
    Row("head.classify", "heads.head"),
)


def knows(contents: WeightContents) -> bool:
    names = contents.tensors
    return FIRST + "ln_1.weight" in names and any(name.startswith("conv_proj.") for name in names)


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes alone: there is nothing else."""
    tensors = contents.tensors
    if "conv_proj.weight" not in tensors:
        raise CheckpointError(
            f"{contents.source}: torchvision's network with convolutions before the patches, which is not read here"
        )
    width, channels, height, across = shape_of(contents, "conv_proj.weight", axes=4)
    places = shape_of(contents, "encoder.pos_embedding", axes=3)[1]
    size, _ = grid_of(places, (1,), (height, across), override)
    layout = "linear" if FIRST + "mlp.linear_1.weight" in tensors else ""
    heads, why = heads_for(width, override)
    config = ViTConfig(
        image_size=size,
        patch_size=(height, across),
        channels=channels,
        width=width,
        depth=depth_of(contents, BLOCK + "ln_1.weight"),
        heads=heads,
        mlp_width=shape_of(contents, f"{FIRST}{MLP[layout][0]}.weight", axes=2)[0],
        classes=rows_of(contents, "heads.head.weight"),
        representation_width=rows_of(contents, "heads.pre_logits.weight"),
        positions=Positions(resample=RESAMPLE),
        norm_eps=1e-6,
    )
    preprocess, known = _pixels(config)
    reasons = REASONS | {"heads": why, "preprocess": known}
    return Description(config, preprocess, reasons, class_names(config.classes), layout=layout)


def table(description: Description) -> Table:
    """The rows, with the MLP's names of today or of 2021."""
    up, down = MLP[description.layout]
    return (*ROWS, Row("encoder.blocks.{i}.mlp.up", BLOCK + up), Row("encoder.blocks.{i}.mlp.down", BLOCK + down))


def outline(checkpoint: Checkpoint) -> Description:
    """How torchvision would carry a checkpoint; what its class cannot be built for is refused."""
    config = checkpoint.model.config
    for name, sides in (("image_size", config.image_size), ("patch_size", config.patch_size)):
        if sides[0] != sides[1]:
            raise CheckpointError(f"torchvision cannot carry {name} {sides}: its network is built for squares alone")
    if config.channels != 3:
        raise CheckpointError(f"torchvision cannot carry {config.channels} channels: its network takes 3")
    if not config.slots:
        raise CheckpointError("torchvision cannot carry a network without a cls token that has a position")
    return Description.of(checkpoint)


def _pixels(config: ViTConfig) -> tuple[Preprocess, str]:
    """As the published network of this size is scored; at 224 pixels each has a transform of its own."""
    preprocess, why = evaluation("torchvision", config.image_size, config.channels)
    named = (config.width, *config.patch_size) if config.image_size == (224, 224) else ()
    if named == (1024, 16, 16):
        return replace(preprocess, crop=224 / 242), why
    if named == (1280, 14, 14):
        only = "known: torchvision's SWAG linear weights, its only ones of this network at 224"
        return replace(preprocess, crop=1.0, interpolation="bicubic"), only
    return preprocess, why


FAMILY: Final = Family(
    name="torchvision",
    knows=knows,
    describe=describe,
    table=table,
    outline=outline,
    parts={"head": ("heads.*",)},
)
