"""big_vision's npz files: ViT, SigLIP, LiT and NaFlex towers, from its first layout to the stacked one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_int, check_pair
from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Resample, ViTConfig
from vitrail.network.positions import fixed_table
from vitrail.weights.families.google import (
    INPUT,
    PARTS,
    REASONS,
    RESAMPLE,
    FlaxSpelling,
    attention,
    blocks,
    ends,
    mlp,
    norm,
    refuse_oblong,
    sizes_of,
    spelling_of,
)
from vitrail.weights.family import Description, Family, class_names, grid_of, shape_of, square_side
from vitrail.weights.name_tables import CHANNELS_LAST, TRANSPOSED, Codec, Row, Table, reshaped, then
from vitrail.weights.preprocessing import evaluation
from vitrail.weights.reading.contents import WeightContents

NAFLEX: Final = Resample("bilinear", antialias=True)  # of every image to its own grid
FIXED: Final = "sincos-2d-moco"
CANONICAL: Final = FlaxSpelling("params/", linen=True, positions="pos_embedding", pool="MAPHead_0/")
USUAL: Final = 224  # the side of the images where no table says it

MADE: Final = Codec(  # fixed positions are in no file
    "made from the config",
    lambda t, c: [fixed_table(c.positions.kind, c.grid, c.slots, c.width)],
    lambda t, c: [],
)
GRID: Final = reshaped("grid laid out row by row", lambda t, c: t.flatten(0, 1), lambda t, c: t.reshape(*c.grid, -1))
FLAT: Final = then(TRANSPOSED, CHANNELS_LAST)


def knows(contents: WeightContents) -> bool:
    spelling = spelling_of(contents)
    return spelling is not None and spelling.positions != INPUT


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; no table of positions means the fixed ones, of which only the size is unsaid."""
    spelling = spelling_of(contents)
    if spelling is None:
        raise CheckpointError(f"{contents.source}: expected big_vision's tensors embedding/kernel and encoder blocks")
    settings, reasons = sizes_of(contents, spelling), dict(REASONS)
    if spelling.flat:
        settings |= _flat_patches(contents, spelling, override)
    if f"{spelling.before}{spelling.pool}probe" in contents.tensors:
        settings["pool"] = "map"
        if settings["cls_token"]:
            raise CheckpointError(f"{contents.source}: both a cls token and a MAP head: big_vision has no such network")
    settings |= _positions(contents, spelling, settings, override)
    config = ViTConfig(**settings)
    tower = spelling.before.endswith("img/")  # its head gives embeddings, not classes
    known = evaluation("siglip" if tower or config.pool == "map" else "big_vision", config.image_size, config.channels)
    reasons |= {"resample": "big_vision zooms linearly, ends on ends", "preprocess": known.why}
    if spelling.flat:
        reasons["resample"] = "NaFlex resizes the grid of positions to every image's own"
    return Description(
        config, known.preprocess, reasons, () if tower else class_names(config.classes), layout=spelling.layout()
    )


def table(description: Description) -> Table:
    """The rows for a config in one spelling."""
    config, spelling = description.config, FlaxSpelling.of(description)
    rows = [*ends(spelling), *blocks(spelling, config.depth), *_map_head(spelling.before + spelling.pool)]
    if config.positions.kind == FIXED and not spelling.positions:
        rows.append(Row("tokens.tables.0.table", (), MADE))
    if not spelling.flat:
        return rows
    flat = {"patches.projection.weight": FLAT, "tokens.tables.0.table": GRID}
    return [row._replace(codec=flat.get(str(row.ours), row.codec)) for row in rows]


def outline(checkpoint: Checkpoint) -> Description:
    """How big_vision would carry a checkpoint: blocks apart; fixed positions left out where their size is the usual."""
    config = checkpoint.model.config
    fixed = config.positions.kind == FIXED and config.image_size == _usual_size(config.patch_size)
    spelling = CANONICAL._replace(
        positions="" if fixed else "pos_embedding",
        flat=config.positions.resample == NAFLEX and not config.slots and not fixed,
    )
    if not spelling.flat:
        refuse_oblong("big_vision", config)
    return Description.of(checkpoint, layout=spelling.layout())


# ---- small parts -------------------------------------------------------------------------------------------------


def _map_head(theirs: str) -> Sequence[Row]:
    return (
        Row("pool.probe", f"{theirs}probe"),
        *attention("pool.attention", f"{theirs}MultiHeadDotProductAttention_0"),
        *norm("pool.norm", f"{theirs}LayerNorm_0"),
        *mlp("pool.mlp", f"{theirs}MlpBlock_0"),
    )


def _flat_patches(contents: WeightContents, spelling: FlaxSpelling, override: Mapping[str, Any]) -> dict[str, Any]:
    """The sides of patches that come as one row of values; three colours, unless another number is given."""
    values = shape_of(contents, f"{spelling.before}embedding/kernel", axes=2)[0]
    channels = check_int("channels", override.get("channels", 3))
    side = square_side(contents.source, values, channels)
    return {"patch_size": (side, side), "channels": channels}


def _positions(
    contents: WeightContents, spelling: FlaxSpelling, settings: Mapping[str, Any], override: Mapping[str, Any]
) -> dict[str, Any]:
    """Where tokens stand: a table, a grid of NaFlex, or fixed; only the oldest tables have a place for cls."""
    patch, name = settings["patch_size"], spelling.before + spelling.positions
    if not spelling.positions:
        size = check_pair("image_size", override["image_size"]) if "image_size" in override else _usual_size(patch)
        return {"image_size": size, "positions": Positions(FIXED, prefix=False, resample=RESAMPLE)}
    if spelling.flat:
        rows, columns, _ = shape_of(contents, name, axes=3)
        size = rows * patch[0], columns * patch[1]
        return {"image_size": size, "positions": Positions(prefix=False, resample=NAFLEX)}
    slots = (0, 1) if settings["cls_token"] else (0,)
    size, count = grid_of(shape_of(contents, name, axes=3)[1], slots, patch, override)
    return {"image_size": size, "positions": Positions(prefix=count > 0, resample=RESAMPLE)}


def _usual_size(patch: tuple[int, int]) -> tuple[int, int]:
    """The size of images where no table says it: 224 pixels, or 14 patches where those do not divide."""
    return USUAL if USUAL % patch[0] == 0 else 14 * patch[0], USUAL if USUAL % patch[1] == 0 else 14 * patch[1]


FAMILY: Final = Family(
    name="big_vision",
    knows=knows,
    describe=describe,
    table=table,
    outline=outline,
    container="npz",
    parts=PARTS,
)
