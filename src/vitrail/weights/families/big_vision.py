"""big_vision's npz files: ViT, SigLIP, LiT and NaFlex towers, from its first layout to the stacked one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_pair
from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Resample
from vitrail.network.positions import fixed_table
from vitrail.weights.families import google
from vitrail.weights.families.google import FlaxSpelling
from vitrail.weights.family import Description, Family, positions_of, shape_of, usual_size
from vitrail.weights.name_tables import CHANNELS_LAST, TRANSPOSED, Codec, Row, Table, renamed, reshaped, then
from vitrail.weights.reading.contents import WeightContents

NAFLEX: Final = Resample("bilinear", antialias=True)  # of every image to its own grid
FIXED: Final = "sincos-2d-moco"
CANONICAL: Final = FlaxSpelling("params/", linen=True, positions="pos_embedding", pool="MAPHead_0/")
USUAL: Final = (224, 14)  # pixels of the images where no table says it, or patches where those do not divide

MADE: Final = Codec(  # fixed positions are in no file
    "made from the config",
    lambda t, c: [fixed_table(c.positions.kind, c.grid, c.slots, c.width)],
    lambda t, c: [],
)
GRID: Final = reshaped("grid laid out row by row", lambda t, c: t.flatten(0, 1), lambda t, c: t.reshape(*c.grid, -1))
FLAT: Final = then(TRANSPOSED, CHANNELS_LAST)


def knows(contents: WeightContents) -> bool:
    spelling = google.spelling_of(contents)
    return spelling is not None and spelling.positions != google.INPUT


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; no table of positions means the fixed ones, of which only the size is unsaid."""
    spelling = google.spelling_of(contents)
    if spelling is None:
        raise CheckpointError(f"{contents.source}: expected big_vision's tensors embedding/kernel and encoder blocks")
    settings = google.sizes_of(contents, spelling, override)
    if f"{spelling.before}{spelling.pool}probe" in contents.tensors:
        settings["pool"] = "map"
        if settings["cls_token"]:
            raise CheckpointError(f"{contents.source}: both a cls token and a MAP head: big_vision has no such network")
    settings |= _positions(contents, spelling, settings, override)
    zoom = "big_vision zooms linearly, ends on ends"
    resample = "NaFlex resizes the grid of positions to every image's own" if spelling.flat else zoom
    tower = spelling.before.endswith("img/")  # its head gives embeddings, not classes
    prepared_as = "siglip" if tower or settings["pool"] == "map" else "big_vision"
    more = {"classes": ()} if tower else {}
    reasons = google.REASONS | {"resample": resample}
    return Description.evaluated(prepared_as, settings, reasons, layout=spelling.layout(), **more)


def table(description: Description) -> Table:
    """The rows for a config in one spelling."""
    config, spelling = description.config, FlaxSpelling.of(description)
    rows = [*google.ends(spelling), *google.blocks(spelling, config.depth), *_map_head(spelling.pool)]
    if config.positions.kind == FIXED and not spelling.positions:
        rows.append(Row("tokens.tables.0.table", (), MADE))
    flat = {"patches.projection.weight": FLAT, "tokens.tables.0.table": GRID} if spelling.flat else {}
    rows = [row._replace(codec=flat.get(str(row.ours), row.codec)) for row in rows]
    return renamed(rows, lambda name: spelling.before + name)


def outline(checkpoint: Checkpoint) -> Description:
    """How big_vision would carry a checkpoint: blocks apart; fixed positions left out where their size is the usual."""
    config = checkpoint.model.config
    fixed = config.positions.kind == FIXED and config.image_size == usual_size(config.patch_size, *USUAL)
    spelling = CANONICAL._replace(
        positions="" if fixed else "pos_embedding",
        flat=config.positions.resample == NAFLEX and not config.slots and not fixed,
    )
    if not spelling.flat:
        google.refuse_oblong("big_vision", config)
    return Description.of(checkpoint, layout=spelling.layout())


# ---- small parts -------------------------------------------------------------------------------------------------


def _map_head(theirs: str) -> Sequence[Row]:
    return (
        Row("pool.probe", f"{theirs}probe"),
        *google.attention("pool.attention", f"{theirs}MultiHeadDotProductAttention_0"),
        *google.norm("pool.norm", f"{theirs}LayerNorm_0"),
        *google.mlp("pool.mlp", f"{theirs}MlpBlock_0"),
    )


def _positions(
    contents: WeightContents, spelling: FlaxSpelling, settings: Mapping[str, Any], override: Mapping[str, Any]
) -> dict[str, Any]:
    """Where tokens stand: a table, a grid of NaFlex, or fixed; only the oldest tables have a place for cls."""
    patch, name = settings["patch_size"], spelling.before + spelling.positions
    if not spelling.positions:
        size = check_pair("image_size", override.get("image_size", usual_size(patch, *USUAL)))
        return {"image_size": size, "positions": Positions(FIXED, prefix=False, resample=google.RESAMPLE)}
    if spelling.flat:
        rows, columns, _ = shape_of(contents, name, axes=3)
        size = rows * patch[0], columns * patch[1]
        return {"image_size": size, "positions": Positions(prefix=False, resample=NAFLEX)}
    slots = (0, 1) if settings["cls_token"] else (0,)
    return positions_of(contents, name, slots, patch, override, google.RESAMPLE)


FAMILY: Final = Family("big_vision", knows, describe, table, outline, container="npz", parts=google.PARTS)
