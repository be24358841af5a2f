"""DeiT and DeiT-III as they were published: timm's names under "model" in a pickle.

DeiT-III scales by gamma_1 and gamma_2, and its cls token has no position; distilled DeiT has a second token and head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vitrail.network.config import Positions, Resample, ViTConfig
from vitrail.weights.families.block_names import ATTENTION, ENDS, PLAIN_MLP, WHOLE, only, sizes_of, under_model
from vitrail.weights.family import Description, Family, class_names, grid_of, shape_of
from vitrail.weights.name_tables import WITHOUT_BATCH, Row, Table
from vitrail.weights.preprocessing import evaluation
from vitrail.weights.reading.contents import WeightContents

MORE: Final = r"dist_token|head(_dist)?\.(weight|bias)|blocks\.\d+\.gamma_[12]"
ROWS: Table = (
    *ENDS,
    *ATTENTION,
    *PLAIN_MLP,
    Row("tokens.distillation", "dist_token", WITHOUT_BATCH),
    Row("tokens.tables.0.table", "pos_embed", WITHOUT_BATCH),
    Row("encoder.blocks.{i}.scale1.gamma", "blocks.{i}.gamma_1"),
    Row("encoder.blocks.{i}.scale2.gamma", "blocks.{i}.gamma_2"),
    Row("norm", "norm"),
    Row("head.distil", "head_dist"),
)


def knows(contents: WeightContents) -> bool:
    names = contents.tensors
    scaled = "blocks.0.gamma_1" in names  # bare, such names are timm's rope networks too
    return only(contents, MORE) and under_model(contents) and (scaled or "head.weight" in names)


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; LayerScale is the mark of DeiT-III."""
    names = contents.tensors
    distilled, scaled = "dist_token" in names, "blocks.0.gamma_1" in names
    settings, heads_why = sizes_of(contents, override)
    places = shape_of(contents, "pos_embed", axes=3)[1]
    size, slots = grid_of(places, (0, 2 if distilled else 1), settings["patch_size"], override)
    settings |= WHOLE | {
        "image_size": size,
        "mlp_width": shape_of(contents, "blocks.0.mlp.fc2.weight", axes=2)[1],
        "distillation_token": distilled,
        "positions": Positions(prefix=slots > 0, resample=Resample(antialias=False)),
        "layer_scale": 1e-6 if scaled else None,
        "norm_eps": 1e-6,
        "pool": "cls+distillation" if distilled else "cls",
    }
    known = evaluation("deit3" if scaled else "deit", size, settings["channels"])
    own = f"as DeiT{'-III' if scaled else ''}'s own code"
    reasons = {
        "heads": heads_why,
        "activation": own,
        "norm_eps": own,
        "resample": "as DeiT's fine-tuning resizes positions",
        "preprocess": known.why,
    }
    config = ViTConfig(**settings)
    return Description(config, known.preprocess, reasons, class_names(config.classes))


FAMILY: Final = Family(
    name="deit",
    knows=knows,
    describe=describe,
    table=lambda description: ROWS,
    wrapper="model",
    parts={"head": ("head.*", "head_dist.*")},
)
