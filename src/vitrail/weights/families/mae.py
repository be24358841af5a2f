"""MAE as it was published: the encoder alone, encoder and decoder of pre-training, or fine-tuned behind a mean pool.

All stand under "model" in a pickle. Pre-training has fixed sine-cosine positions, kept as the file has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vitrail.network.config import Positions, Resample, ViTConfig
from vitrail.weights.families.block_names import ATTENTION, ENDS, PLAIN_MLP, TABLE, only, under_model
from vitrail.weights.family import Description, Family, depth_of, heads_for, positions_of, shape_of, sizes_of
from vitrail.weights.name_tables import WITHOUT_BATCH, Row, Table, renamed
from vitrail.weights.reading.contents import WeightContents

RESAMPLE: Final = Resample(antialias=False)
MORE: Final = r"fc_norm\.(weight|bias)|head\.(weight|bias)|head\.[01]\.\w+"  # head.0, head.1: of a linear probe
DECODER_HEADS: Final = {512: 16}  # every published decoder
ENCODER: Table = (*ENDS, *ATTENTION, *PLAIN_MLP, *TABLE)
DECODER: Table = (
    Row("decoder.entry", "decoder_embed"),
    Row("decoder.mask_token", "mask_token", WITHOUT_BATCH),
    Row("decoder.positions.table", "decoder_pos_embed", WITHOUT_BATCH),
    *renamed((*ATTENTION, *PLAIN_MLP), "decoder_{}".format, "decoder.{}".format),
    Row("decoder.norm", "decoder_norm"),
    Row("decoder.predict", "decoder_pred"),
)


def knows(contents: WeightContents) -> bool:
    names = contents.tensors
    if "decoder_embed.weight" in names and "decoder_pos_embed" in names:
        return "blocks.0.attn.qkv.weight" in names
    tuned = "fc_norm.weight" in names
    return under_model(contents) and only(contents, MORE) and (tuned or "head.weight" not in names)


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes, of the decoder too where there is one; a norm behind the pool is the mark of fine-tuning."""
    tuned = "fc_norm.weight" in contents.tensors
    settings, heads_why = sizes_of(contents, ENCODER, override)
    kind = "learned" if tuned else "sincos-2d"
    settings |= positions_of(contents, "pos_embed", (1,), settings["patch_size"], override, RESAMPLE, kind)
    settings |= {
        "norm_eps": 1e-6,
        "pool": "mean" if tuned else "cls",
        "final_norm": "pooled" if tuned else "tokens",
        "initialisation": "mae",
    }
    reasons = {
        "heads": heads_why,
        "activation": "as MAE's own code",
        "norm_eps": "as MAE's own code",
        "resample": "as MAE's fine-tuning resizes positions",
        "pool": "a norm behind the pool is MAE's fine-tuning" if tuned else "MAE's encoder without a head",
    }
    description = Description.evaluated("mae", settings, reasons)
    if "decoder_embed.weight" not in contents.tensors:
        return description
    return replace(description, decoder=_decoder(contents, description.config))


def table(description: Description) -> Table:
    """The rows of the encoder, of the norm where it stands, and of the decoder where there is one."""
    norm = Row("norm", "fc_norm" if description.config.final_norm == "pooled" else "norm")
    return (*ENCODER, norm, *(DECODER if description.decoder is not None else ()))


def _decoder(contents: WeightContents, encoder: ViTConfig) -> ViTConfig:
    """The decoder's own stack; its heads are not the encoder's, so no override speaks of them."""
    width = shape_of(contents, "decoder_embed.weight", axes=2)[0]
    heads, _ = heads_for(width, {}, DECODER_HEADS)
    return replace(
        encoder,
        width=width,
        depth=depth_of(contents, "decoder_blocks.{i}.norm1.weight"),
        heads=heads,
        head_width=0,
        mlp_width=shape_of(contents, "decoder_blocks.0.mlp.fc2.weight", axes=2)[1],
        classes=encoder.patch_size[0] * encoder.patch_size[1] * encoder.channels,
        positions=Positions("sincos-2d", resample=RESAMPLE),
        final_norm="tokens",
        pool="none",
    )


FAMILY: Final = Family(
    "mae",
    knows,
    describe,
    table,
    wrapper="model",
    parts={"decoder": ("decoder_*", "mask_token"), "head": ("head.*",)},
)
