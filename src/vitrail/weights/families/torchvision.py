"""torchvision's names: its VisionTransformer as a bare state dict, conv_proj and encoder.layers.encoder_layer_0.

A file says nothing of heads and preprocessing; activation, norm eps and pool are fixed in torchvision's own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.network.config import Resample
from vitrail.weights.family import Description, Family, positions_of, refuse_any, rows_of, sizes_of
from vitrail.weights.name_tables import KERNEL, WITHOUT_BATCH, Row, Table
from vitrail.weights.reading.contents import WeightContents

RESAMPLE: Final = Resample(antialias=False, align_corners=True)  # of its interpolate_embeddings
BLOCK: Final = "encoder.layers.encoder_layer_{i}."
FIRST: Final = "encoder.layers.encoder_layer_0."
REASONS: Final = {
    "activation": "torchvision's only one",
    "norm_eps": "torchvision's own",
    "pool": "torchvision's only one",
    "resample": "torchvision's interpolate_embeddings",
}

BODY: Table = (
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
ROWS: Final = {  # by layout: with the MLP's names of today, or of 2021
    layout: (*BODY, Row("encoder.blocks.{i}.mlp.up", BLOCK + up), Row("encoder.blocks.{i}.mlp.down", BLOCK + down))
    for layout, up, down in (("", "mlp.0", "mlp.3"), ("linear", "mlp.linear_1", "mlp.linear_2"))
}


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
    layout = "linear" if FIRST + "mlp.linear_1.weight" in tensors else ""
    settings, heads_why = sizes_of(contents, ROWS[layout], override)
    settings |= positions_of(contents, "encoder.pos_embedding", (1,), settings["patch_size"], override, RESAMPLE)
    settings |= {"head_width": 0, "norm_eps": 1e-6}  # its heads share the width
    settings["representation_width"] = rows_of(contents, "heads.pre_logits.weight")
    description = Description.evaluated("torchvision", settings, REASONS | {"heads": heads_why}, layout=layout)
    return _at_224(description) if description.config.image_size == (224, 224) else description


def _at_224(description: Description) -> Description:
    """As the published network of this size is scored; at 224 pixels each has a transform of its own."""
    config, preprocess, reasons = description.config, description.preprocess, dict(description.reasons)
    if (config.width, *config.patch_size) == (1024, 16, 16):
        preprocess = replace(preprocess, crop=224 / 242)
    if (config.width, *config.patch_size) == (1280, 14, 14):
        preprocess = replace(preprocess, crop=1.0, interpolation="bicubic")
        reasons["preprocess"] = "known: torchvision's SWAG linear weights, its only ones of this network at 224"
    return replace(description, preprocess=preprocess, reasons=reasons)


def outline(checkpoint: Checkpoint) -> Description:
    """How torchvision would carry a checkpoint; what its class cannot be built for is refused."""
    config = checkpoint.model.config
    reasons = {
        f"image_size {config.image_size}, where its network is built for squares": len({*config.image_size}) > 1,
        f"patch_size {config.patch_size}, where its network is built for squares": len({*config.patch_size}) > 1,
        f"{config.channels} channels, where its network takes 3": config.channels != 3,
        "a network without a cls token that has a position": not config.slots,
    }
    refuse_any("torchvision", reasons)
    return Description.of(checkpoint)


FAMILY: Final = Family(
    "torchvision", knows, describe, lambda found: ROWS[found.layout], outline, parts={"head": ("heads.*",)}
)
