"""What the files of DeiT, MAE, DINO, DINOv2 and DINOv3 share: timm's names, as their own code writes them.

DINOv2's training cuts the blocks into chunks: `blocks.1.12.norm1` is block 12, which stands in the second chunk.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from vitrail.weights.families.plain import BLOCKS
from vitrail.weights.name_tables import Names, Row, Table
from vitrail.weights.reading.contents import Contents

CHUNKED: Final = re.compile(r"blocks\.(\d{1,4})\.(\d{1,4})\.(.+)")
PLAIN: Final = (  # the names of a vision transformer without a head, and no other
    r"(cls_token|pos_embed|(patch_embed\.proj|norm)\.(weight|bias)"
    r"|blocks\.\d+\.(norm1|norm2|attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2)\.(weight|bias))"
)
ATTENTION: Table = tuple(  # of timm's blocks what these networks have, and nothing of the MLP
    row for row in BLOCKS if isinstance(row, Row) and not str(row.theirs).endswith(("q_norm", "k_norm", "mlp.fc2"))
)
WHOLE: Final = {"cls_token": True, "patch_bias": True, "qkv_bias": "all", "head_bias": True}  # every one of them has
PLAIN_MLP: Table = (
    Row("encoder.blocks.{i}.mlp.up", "blocks.{i}.mlp.fc1"),
    Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.fc2"),
)


def only(contents: Contents, more: str = "") -> bool:
    """Whether every name is a plain one, or fits `more`; and the first ones are there."""
    pattern = re.compile(f"{PLAIN}|{more}" if more else PLAIN)
    there = all(name in contents.tensors for name in ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"))
    return there and all(pattern.fullmatch(name) for name in contents.tensors)


def under_model(contents: Contents) -> bool:
    """Whether the weights stood under "model" in a pickle, as DeiT and MAE write them."""
    return contents.kind == "pickle" and "model" in contents.wrapper.split(", ")


# ---- chunks of blocks --------------------------------------------------------------------------------------------


def unchunked(contents: Contents) -> tuple[Contents, int]:
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
