"""DINO as it was published: a bare state dict in a pickle, or a training file; and what its successors share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Resample, ViTConfig
from vitrail.weights.families.block_names import ATTENTION, ENDS, PLAIN_MLP, WHOLE, only, sizes_of
from vitrail.weights.family import Description, Family, class_names, grid_of, shape_of
from vitrail.weights.name_tables import WITHOUT_BATCH, Row, Table
from vitrail.weights.preprocessing import evaluation
from vitrail.weights.reading.contents import WeightContents

OFFSET: Final = Resample(antialias=False, offset=0.1)  # scaled by (n + 0.1) / M, without antialias
SMOOTH: Final = Resample()  # by size, with antialias
MASK: Final = "mask_token"
LOCAL: Final = ("local_cls_norm.weight", "local_cls_norm.bias")  # of small crops while training, never at rest
HEAD: Final = r"head\.(mlp|last_layer)\..+"  # of self-training: three layers and a last one
PROJECTION: Final = {"projection": ("head.mlp.*", "head.last_layer.*", "dino_head.*", "ibot_head.*")}
START: Table = (*ENDS, *ATTENTION, Row("norm", "norm"))
TABLE: Table = (Row("tokens.tables.0.table", "pos_embed", WITHOUT_BATCH),)
MASK_TOKEN: Table = (Row(f"extras.{MASK}", MASK),)


def knows(contents: WeightContents) -> bool:
    """A bare state dict without a head of classes, in a pickle; timm would write the same names."""
    return contents.kind == "pickle" and only(contents, HEAD)


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    settings, heads_why = sizes_of(contents, override)
    settings |= positions_of(contents, settings, override, OFFSET)
    settings |= WHOLE | {"mlp_width": shape_of(contents, "blocks.0.mlp.fc2.weight", axes=2)[1], "norm_eps": 1e-6}
    return described("DINO", settings, heads_why)


def table(description: Description) -> Table:
    return (*START, *PLAIN_MLP, *TABLE)


# ---- what the three share ----------------------------------------------------------------------------------------


def outline_masked(checkpoint: Checkpoint) -> Description:
    """With the mask token, which their own class asks for, and without a head, which it does not have."""
    if checkpoint.model.config.classes:
        raise CheckpointError(
            "the classes of DINOv2 and DINOv3 have no head: leave it out when loading, or choose timm"
        )
    return Description.of(checkpoint, extras={MASK: (1, checkpoint.model.config.width)})


def positions_of(
    contents: WeightContents, settings: Mapping[str, Any], override: Mapping[str, Any], policy: Resample
) -> dict[str, Any]:
    """Positions with a slot for the cls token, and the image size that they were made for."""
    places = shape_of(contents, "pos_embed", axes=3)[1]
    size, _ = grid_of(places, (1,), settings["patch_size"], override)
    return {"image_size": size, "positions": Positions(resample=policy)}


def registers_of(contents: WeightContents, name: str) -> dict[str, Any]:
    return {"registers": shape_of(contents, name, axes=3)[1] if name in contents.tensors else 0}


def scale_of(contents: WeightContents, start: float) -> float | None:
    return start if "blocks.0.ls1.gamma" in contents.tensors else None


def extras_of(names: Collection[str], width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of what only training needs, of these names."""
    shapes: dict[str, tuple[int, ...]] = {MASK: (1, width), **dict.fromkeys(LOCAL, (width,))}
    return {name: shape for name, shape in shapes.items() if name in names}


def described(name: str, settings: dict[str, Any], heads_why: str) -> Description:
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


FAMILY: Final = Family(
    name="dino",
    knows=knows,
    describe=describe,
    table=table,
    parts=PROJECTION,
)
