"""DeiT and DeiT-III as they were published: timm's names under "model" in a pickle.

DeiT-III scales by gamma_1 and gamma_2, and its cls token has no position; distilled DeiT has a second token and head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vitrail.network.config import Resample
from vitrail.weights.families.block_names import ATTENTION, ENDS, PLAIN_MLP, TABLE, only, under_model
from vitrail.weights.family import Description, Family, positions_of, sizes_of
from vitrail.weights.name_tables import WITHOUT_BATCH, Row, Table
from vitrail.weights.reading.contents import WeightContents

MORE: Final = r"dist_token|head(_dist)?\.(weight|bias)|blocks\.\d+\.gamma_[12]"
ROWS: Table = (
    *ENDS,
    *TABLE,
    *ATTENTION,
    *PLAIN_MLP,
    Row("tokens.distillation", "dist_token", WITHOUT_BATCH),
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
    settings, heads_why = sizes_of(contents, ROWS, override)
    slots = (0, 2 if distilled else 1)
    settings |= positions_of(contents, "pos_embed", slots, settings["patch_size"], override, Resample(antialias=False))
    settings |= {
        "distillation_token": distilled,
        "layer_scale": 1e-6 if scaled else None,
        "norm_eps": 1e-6,
        "pool": "cls+distillation" if distilled else "cls",
        "initialisation": "timm",
    }
    own = f"as DeiT{'-III' if scaled else ''}'s own code"
    reasons = {
        "heads": heads_why,
        "activation": own,
        "norm_eps": own,
        "resample": "as DeiT's fine-tuning resizes positions",
    }
    return Description.evaluated("deit3" if scaled else "deit", settings, reasons)


FAMILY: Final = Family(
    "deit",
    knows,
    describe,
    lambda _: ROWS,
    wrapper="model",
    parts={"head": ("head.*", "head_dist.*")},
)
