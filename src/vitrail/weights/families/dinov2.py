"""DINOv2 as it was published: bare state dicts, or training files that cut the blocks into chunks.

`blocks.1.12.norm1` is block 12, which stands in the second chunk. The layout says how many blocks a chunk has; what is
written is the bare state dict.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vitrail.weights.families.block_names import PLAIN_MLP, SCALES, WHOLE, mlp_of, sizes_of
from vitrail.weights.families.dino import (
    MASK,
    MASK_TOKEN,
    OFFSET,
    PROJECTION,
    SMOOTH,
    START,
    TABLE,
    described,
    extras_of,
    outline_masked,
    positions_of,
    registers_of,
    scale_of,
)
from vitrail.weights.family import Description, Family
from vitrail.weights.name_tables import WITHOUT_BATCH, Names, Row, Table
from vitrail.weights.reading.contents import WeightContents

CHUNKED: Final = re.compile(r"blocks\.(\d{1,4})\.(\d{1,4})\.(.+)")


def knows(contents: WeightContents) -> bool:
    """A mask token as one row, a table of positions, and none of MAE's decoder."""
    names = unchunked(contents)[0].tensors
    there = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "pos_embed", MASK)
    return all(name in names for name in there) and len(names[MASK].shape) == 2


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; registers are the mark of the later networks, which resample positions another way."""
    plain, chunk = unchunked(contents)
    settings, heads_why = sizes_of(plain, override)
    settings |= registers_of(plain, "register_tokens")
    settings |= positions_of(plain, settings, override, SMOOTH if settings["registers"] else OFFSET)
    up, down = ("w12", "w3") if "blocks.0.mlp.w12.weight" in plain.tensors else ("fc1", "fc2")
    settings |= mlp_of(plain, f"blocks.0.mlp.{up}.weight", f"blocks.0.mlp.{down}.weight")
    settings |= WHOLE | {"layer_scale": scale_of(plain, 1.0), "norm_eps": 1e-6, "initialisation": "dinov2"}
    return replace(
        described("DINOv2", settings, heads_why),
        layout=str(chunk or ""),
        extras=extras_of(plain.tensors, settings["width"]),
    )


def table(description: Description) -> Table:
    """The rows for plain or gated MLPs; the gate stands first in theirs and in ours."""
    config = description.config
    mlp: Table = PLAIN_MLP
    if config.mlp == "swiglu":
        mlp = (
            Row("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.w12"),
            Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.w3"),
        )
    registers = Row("tokens.registers", "register_tokens", WITHOUT_BATCH)
    rows = (*START, *mlp, *SCALES, *TABLE, registers, *MASK_TOKEN)
    return chunked(rows, int(description.layout or 0), config.depth)


# ---- chunks of blocks --------------------------------------------------------------------------------------------


def unchunked(contents: WeightContents) -> tuple[WeightContents, int]:
    """The contents with blocks numbered as usual, and how many stood in each chunk; 0: there are no chunks."""
    found = {name: match for name in contents.tensors if (match := CHUNKED.fullmatch(name))}
    size = len({match[2] for match in found.values() if int(match[1]) == 0})

    def plain(name: str) -> str:
        match = found.get(name) if size else None
        return f"blocks.{match[2]}.{match[3]}" if match else name

    return replace(contents, tensors={plain(name): value for name, value in contents.tensors.items()}), size


def chunked(table: Table, size: int, depth: int) -> Table:
    """A table whose theirs stand in chunks of so many blocks: one row for each block."""
    if not size:
        return table
    return tuple(each for row in table if isinstance(row, Row) for each in _chunked(row, size, depth))


def _chunked(row: Row, size: int, depth: int) -> list[Row]:
    if not any("{i}" in name for name in _tuple(row.theirs)):
        return [row]
    return [
        Row(
            tuple(name.replace("{i}", str(block)) for name in _tuple(row.ours)),
            tuple(name.replace("{i}", f"{block // size}.{block}") for name in _tuple(row.theirs)),
            row.codec,
        )
        for block in range(depth)
    ]


def _tuple(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


FAMILY: Final = Family(
    name="dinov2",
    knows=knows,
    describe=describe,
    table=table,
    outline=outline_masked,
    parts=PROJECTION,
)
