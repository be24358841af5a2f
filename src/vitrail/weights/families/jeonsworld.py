"""ViT-pytorch by jeonsworld: the state dicts of its training, in .bin files, with q, k and v apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network.config import ViTConfig
from vitrail.weights.families.google import RESAMPLE, refuse_oblong
from vitrail.weights.family import Description, Family, class_names, positions_of, sizes_of
from vitrail.weights.name_tables import KERNEL, QKV, WITHOUT_BATCH, Row, Table
from vitrail.weights.reading.contents import WeightContents

INPUT: Final = "transformer.embeddings."
BLOCK: Final = "transformer.encoder.layer.{i}."

TABLE: Table = (
    Row("patches.projection.weight", f"{INPUT}patch_embeddings.weight", KERNEL),
    Row("patches.projection.bias", f"{INPUT}patch_embeddings.bias"),
    Row("tokens.cls", f"{INPUT}cls_token", WITHOUT_BATCH),
    Row("tokens.tables.0.table", f"{INPUT}position_embeddings", WITHOUT_BATCH),
    Row("encoder.blocks.{i}.norm1", f"{BLOCK}attention_norm"),
    Row("encoder.blocks.{i}.norm2", f"{BLOCK}ffn_norm"),
    Row("encoder.blocks.{i}.mlp.up", f"{BLOCK}ffn.fc1"),
    Row("encoder.blocks.{i}.mlp.down", f"{BLOCK}ffn.fc2"),
    Row("encoder.blocks.{i}.attention.qkv", (f"{BLOCK}attn.query", f"{BLOCK}attn.key", f"{BLOCK}attn.value"), QKV),
    Row("encoder.blocks.{i}.attention.out", f"{BLOCK}attn.out"),
    Row("norm", "transformer.encoder.encoder_norm"),
    Row("head.classify", "head"),
)


def knows(contents: WeightContents) -> bool:
    names = contents.tensors
    return f"{INPUT}position_embeddings" in names and "transformer.encoder.encoder_norm.weight" in names


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; only the plain networks."""
    if any(name.startswith(f"{INPUT}hybrid_model.") for name in contents.tensors):
        raise CheckpointError(
            f"{contents.source}: a hybrid of ViT-pytorch, whose ResNet pads evenly, pools without padding and norms "
            "each channel of a shortcut by itself, where Google's pads as SAME and norms in 32 groups: the same "
            "weights give other numbers in each; load Google's own npz of it"
        )
    settings, heads_why = sizes_of(contents, TABLE, override)
    patch = settings["patch_size"]
    settings |= positions_of(contents, f"{INPUT}position_embeddings", (1,), patch, override, RESAMPLE)
    settings |= {"head_width": 0, "norm_eps": 1e-6}  # its heads share the width
    config = ViTConfig(**settings)
    reasons = {
        "heads": heads_why,
        "activation": "ViT-pytorch computes the exact form, also with Google's weights",
        "norm_eps": "ViT-pytorch's own",
        "resample": "ViT-pytorch zooms linearly, ends on ends, when it loads an npz",
        "preprocess": "known: ViT-pytorch's own evaluation code",
    }
    preprocess = Preprocess(config.image_size, "squash", 1.0, "bilinear", mean=0.5, std=0.5, channels=config.channels)
    return Description(config, preprocess, reasons, class_names(config.classes))


def outline(checkpoint: Checkpoint) -> Description:
    """How ViT-pytorch would carry a checkpoint: always a cls token with a position, heads that share the width."""
    config = checkpoint.model.config
    if not config.cls_token or not config.slots:
        raise CheckpointError("jeonsworld: ViT-pytorch has a cls token with a position, and this network has none")
    if config.heads * config.per_head != config.width:
        raise CheckpointError(
            f"jeonsworld: ViT-pytorch's heads share the width, and here {config.heads} of {config.per_head} do not "
            f"make {config.width}"
        )
    refuse_oblong("jeonsworld", config)
    return Description.of(checkpoint)


FAMILY: Final = Family("jeonsworld", knows, describe, lambda _: TABLE, outline, parts={"head": ("head.*",)})
