"""DINO as it was published: a bare state dict in a pickle, or a training file; and what its successors share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.network.config import Resample
from vitrail.weights.families.block_names import ATTENTION, ENDS, PLAIN_MLP, TABLE, only
from vitrail.weights.family import Description, Family, positions_of, shape_of, sizes_of
from vitrail.weights.name_tables import Row, Table
from vitrail.weights.reading.contents import WeightContents

OFFSET: Final = Resample(antialias=False, offset=0.1)  # scaled by (n + 0.1) / M, without antialias
SMOOTH: Final = Resample()  # by size, with antialias
MASK: Final = "mask_token"
LOCAL: Final = ("local_cls_norm.weight", "local_cls_norm.bias")  # of small crops while training, never at rest
HEAD: Final = r"head\.(mlp|last_layer)\..+"  # of self-training: three layers and a last one
PROJECTION: Final = {"projection": ("head.mlp.*", "head.last_layer.*", "dino_head.*", "ibot_head.*")}
START: Table = (*ENDS, *ATTENTION, Row("norm", "norm"))
ROWS: Table = (*START, *PLAIN_MLP, *TABLE)
MASK_TOKEN: Table = (Row(f"extras.{MASK}", MASK),)


def knows(contents: WeightContents) -> bool:
    """A bare state dict without a head of classes, in a pickle; timm would write the same names."""
    return contents.kind == "pickle" and only(contents, HEAD)


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    settings, heads_why = sizes_of(contents, ROWS, override)
    settings |= positions_of(contents, "pos_embed", (1,), settings["patch_size"], override, OFFSET)
    return described("DINO", settings | {"norm_eps": 1e-6, "initialisation": "timm"}, heads_why)


# ---- what the three share ----------------------------------------------------------------------------------------


def outline_masked(checkpoint: Checkpoint) -> Description:
    """With the mask token, which their own class asks for, and without a head, which it does not have."""
    if checkpoint.model.config.classes:
        raise CheckpointError(
            "the classes of DINOv2 and DINOv3 have no head: leave it out when loading, or choose timm"
        )
    return Description.of(checkpoint, extras={MASK: (1, checkpoint.model.config.width)})


def marks_of(contents: WeightContents, registers: str, scale: float) -> dict[str, Any]:
    """Registers under a name, and LayerScale, which starts from a value: settings that DINOv2 and DINOv3 share."""
    names = contents.tensors
    return {
        "registers": shape_of(contents, registers, axes=3)[1] if registers in names else 0,
        "layer_scale": scale if "blocks.0.ls1.gamma" in names else None,
        "initialisation": "dinov2",
    }


def extras_of(names: Collection[str], width: int) -> dict[str, tuple[int, ...]]:
    """Shapes of what only training needs, of these names."""
    shapes: dict[str, tuple[int, ...]] = {MASK: (1, width), **dict.fromkeys(LOCAL, (width,))}
    return {name: shape for name, shape in shapes.items() if name in names}


def described(name: str, settings: dict[str, Any], heads_why: str, **more: Any) -> Description:
    """The description from the settings that were found, and the family's own ways."""
    own = f"as {name}'s own code"
    reasons = {
        "heads": heads_why,
        "activation": own,
        "norm_eps": own,
        "resample": f"{own}{', with registers' if settings.get('registers') else ''}",
        "rotary": own,
        "pool": f"{name} gives the cls token",
    }
    return Description.evaluated(name.lower(), settings, reasons, **more)


FAMILY: Final = Family("dino", knows, describe, lambda _: ROWS, parts=PROJECTION)
