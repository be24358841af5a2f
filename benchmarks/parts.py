"""Where the time of a packed network goes: the parts of one block, in µs, each timed by itself.

    python benchmarks/parts.py                    Ti/16 and B/16, one image of 224 px
    python benchmarks/parts.py --sizes Ti --batch 16

"rounding" is what makes bytes of floats; "between" is what one block of a whole pass takes beyond its parts. Absolute
times differ from machine to machine: they show where the time goes, and no more.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import cast

import torch
from rich.console import Console
from rich.table import Table

import vitrail
from network import SIZES, interleave
from vitrail.packed.onednn_kernels import in_bytes, multiply, multiply_add
from vitrail.packed.packed_attention import packed_kernel
from vitrail.packed.packed_layers import PackedLinear
from vitrail.packed.packed_vit import PackedBlock, PackedViT
from vitrail.packed.packing import Dtypes, pack
from vitrail.quantisation.cpu_features import has_bf16_units
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate

PARTS = ("norm", "rounding", "qkv", "attention", "out", "up, GELU", "down", "between")
TIMES = {"norm": 2, "rounding": 3}  # in a block: after each norm, and before `out`


def parts_of(model: PackedViT, plan: QuantPlan, batch: int) -> dict[str, Callable[[], object]]:
    """Every part of the second block, with what it receives."""
    config, dtypes = model.config, Dtypes.of(plan)
    rows, tokens = batch * (1 + 196), torch.randn(batch * 197, config.width).to(dtypes.tokens)
    block = cast(PackedBlock, model.encoder.blocks[1])
    attention, mlp = block.attention, block.mlp
    qkv = torch.randn(batch, 197, 3, config.heads, config.per_head).to(dtypes.layers).permute(2, 0, 3, 1, 4)

    def layer(part: object, width: int, residual: bool) -> Callable[[], object]:
        product, given = cast(PackedLinear, part).product, torch.randn(rows, width).to(dtypes.layers)
        given = in_bytes(given, product) if product.int8 else given
        return (lambda: multiply_add(given, product, tokens)) if residual else (lambda: multiply(given, product))

    norm = cast(torch.nn.LayerNorm, block.norm1)
    parts: dict[str, Callable[[], object]] = {
        "norm": lambda: torch.layer_norm(tokens, norm.normalized_shape, norm.weight, norm.bias, norm.eps),
        "qkv": layer(attention.qkv, config.width, False),
        "attention": lambda: packed_kernel(*qkv.unbind(0)),
        "out": layer(block.out, config.width, True),
        "up, GELU": layer(mlp.up, config.width, False),
        "down": layer(mlp.down, config.mlp_width, True),
    }
    if plan.int8:
        qkv_layer = cast(PackedLinear, attention.qkv).product
        parts["rounding"] = lambda: in_bytes(tokens, qkv_layer)
    compiled = model.compiled
    assert compiled is not None, "torch has no interpreter here"
    pixels = torch.randn(batch, 3, 224, 224).to(dtypes.tokens)
    parts["all"] = lambda: compiled(model, pixels, (14, 14), 0)
    parts["embedding"] = lambda: model.tokens(model.patches(pixels), (14, 14))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="Ti,B")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(2)
    table = Table("", *PARTS, box=None)
    for size in given.sizes.split(","):
        torch.manual_seed(0)
        model = vitrail.create(SIZES[size][0]).eval()
        ranges = calibrate(model, [torch.randn(4, 3, 224, 224)])
        plans = {"fp32": QuantPlan(), "int8": QuantPlan("bf16" if has_bf16_units() else "fp32", ranges)}
        if has_bf16_units():
            plans["bf16"] = QuantPlan("bf16")
        for name, plan in sorted(plans.items(), key=lambda each: each[0] == "int8"):
            with torch.inference_mode():
                took = interleave(parts_of(pack(model, plan), plan, given.batch), given.rounds)
            micro = {part: 1e6 * statistics.median(each.wall for each in seconds) for part, seconds in took.items()}
            blocks = (micro.pop("all") - micro.pop("embedding")) / model.config.depth
            micro["between"] = blocks - sum(TIMES.get(part, 1) * each for part, each in micro.items())
            shown = [f"{micro[part]:.0f}" if part in micro else "" for part in PARTS]
            table.add_row(f"{size}/16 packed {name}", *shown)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
