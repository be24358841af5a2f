"""DINOv2 as it was published: bare state dicts, or training files that cut the blocks into chunks.

`blocks.1.12.norm1` is block 12, which stands in the second chunk. The layout says how many blocks a chunk has; what is
written is the bare state dict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vitrail.weights.families import dino
from vitrail.weights.families.block_names import PLAIN_MLP, SCALES, TABLE
from vitrail.weights.family import SWIGLU, Description, Family, positions_of, sizes_of
from vitrail.weights.name_tables import WITHOUT_BATCH, Row, Table, numbered, renamed
from vitrail.weights.reading.contents import WeightContents

CHUNKED: Final = re.compile(r"^blocks\.(\d{1,4})\.(\d{1,4})\.(?=.)")
BLOCK: Final = re.compile(r"^blocks\.(\d+)\.")
GATED_MLP: Table = (  # the gate stands first in theirs and in ours
    Row("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.w12"),
    Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.w3"),
)
REGISTERS: Final = Row("tokens.registers", "register_tokens", WITHOUT_BATCH)


def knows(contents: WeightContents) -> bool:
    """A mask token as one row, a table of positions, and none of MAE's decoder."""
    names = unchunked(contents)[0].tensors
    there = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_embed", dino.MASK)
    return all(name in names for name in there) and len(names[dino.MASK].shape) == 2


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; registers are the mark of the later networks, which resample positions another way."""
    plain, chunk = unchunked(contents)
    gated = "blocks.0.mlp.w12.weight" in plain.tensors
    settings, heads_why = sizes_of(plain, (*dino.START, *(GATED_MLP if gated else PLAIN_MLP)), override)
    settings |= dino.marks_of(plain, "register_tokens", scale=1.0)
    resample = dino.SMOOTH if settings["registers"] else dino.OFFSET
    settings |= positions_of(plain, "pos_embed", (1,), settings["patch_size"], override, resample)
    settings |= {"norm_eps": 1e-6, **(SWIGLU if gated else {})}
    extras = dino.extras_of(plain.tensors, settings["width"])
    return dino.described("DINOv2", settings, heads_why, layout=str(chunk or ""), extras=extras)


def table(description: Description) -> Table:
    """The rows for plain or gated MLPs, whose blocks may stand in chunks of as many as the layout says."""
    config, chunk = description.config, int(description.layout or 0)
    mlp = GATED_MLP if config.mlp == "swiglu" else PLAIN_MLP
    rows = (*dino.START, *mlp, *SCALES, *TABLE, REGISTERS, *dino.MASK_TOKEN)
    if not chunk:
        return rows
    return renamed(
        numbered(rows, config.depth),
        lambda name: BLOCK.sub(lambda block: f"blocks.{int(block[1]) // chunk}.{block[1]}.", name),
    )


def unchunked(contents: WeightContents) -> tuple[WeightContents, int]:
    """The contents with blocks numbered as usual, and how many stood in each chunk; 0: there are no chunks."""
    matches = [match for name in contents.tensors if (match := CHUNKED.match(name))]
    chunk = len({match[2] for match in matches if int(match[1]) == 0})
    if not chunk:
        return contents, 0
    tensors = {CHUNKED.sub(r"blocks.\2.", name): value for name, value in contents.tensors.items()}
    return replace(contents, tensors=tensors), chunk


FAMILY: Final = Family("dinov2", knows, describe, table, dino.outline_masked, parts=dino.PROJECTION)
