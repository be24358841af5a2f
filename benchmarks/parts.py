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
from vitrail.network.encoder import Block
from vitrail.packed.onednn_kernels import has_bf16_units, quantise
from vitrail.packed.packed_attention import gather
from vitrail.packed.packed_layers import ByteLinear, PackedLinear, PackedMlp
from vitrail.packed.packed_runtime import Packed
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate

PARTS = ("norm", "rounding", "qkv", "attention", "out", "up, GELU", "down", "between")
TIMES = {"norm": 2, "rounding": 3}  # in a block: after each norm, and before `out`


def parts_of(runtime: Packed, batch: int) -> dict[str, Callable[[], object]]:
    """Every part of the second block, with what it receives."""
    model, plan = runtime.model, runtime.plan
    assert plan is not None
    config = model.config
    rows, tokens = batch * (1 + 196), torch.randn(batch * 197, config.width).to(plan.tokens)
    block = cast(Block, model.encoder.blocks[1])
    attention, mlp = block.attention, cast(PackedMlp, block.mlp)
    qkv = torch.randn(batch, 197, 3, config.heads, config.per_head).to(plan.kind).permute(2, 0, 3, 1, 4)

    def layer(part: object, width: int, onto: bool) -> Callable[[], object]:
        linear = cast(PackedLinear | ByteLinear, part)
        given = torch.randn(rows, width).to(plan.kind)
        if isinstance(linear, ByteLinear):
            given = quantise(given.float(), linear.scale)
        return (lambda: linear.rows(given, tokens)) if onto else (lambda: linear.rows(given))

    norm = cast(torch.nn.LayerNorm, block.norm1)
    found: dict[str, Callable[[], object]] = {
        "norm": lambda: torch.layer_norm(tokens, norm.normalized_shape, norm.weight, norm.bias, norm.eps),
        "qkv": layer(attention.qkv, config.width, False),
        "attention": lambda: gather(*qkv.unbind(0)),
        "out": layer(attention.out, config.width, True),
        "up, GELU": layer(mlp.up, config.width, False),
        "down": layer(mlp.down, config.mlp_width, True),
    }
    if plan.int8:
        found["rounding"] = lambda: quantise(tokens.float(), cast(ByteLinear, attention.qkv).scale)
    short = model.short
    assert short is not None, "torch has no interpreter here"
    pixels = torch.randn(batch, 3, 224, 224).to(plan.tokens)
    found["whole"] = lambda: short(model, pixels, (14, 14), 0)
    found["entrance"] = lambda: model.tokens(model.patches(pixels), (14, 14))
    return found


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
        checkpoint = vitrail.Checkpoint(vitrail.create(SIZES[size][0]).eval(), vitrail.Preprocess(size=224))
        ranges = calibrate(checkpoint.model, [torch.randn(4, 3, 224, 224)])
        plans = {"fp32": QuantPlan(), "int8": QuantPlan("bf16" if has_bf16_units() else "fp32", ranges)}
        if has_bf16_units():
            plans["bf16"] = QuantPlan("bf16")
        for name, plan in sorted(plans.items(), key=lambda each: each[0] == "int8"):
            with torch.inference_mode():
                took = interleave(parts_of(Packed(checkpoint, plan), given.batch), given.rounds)
            micro = {part: 1e6 * statistics.median(each.wall for each in seconds) for part, seconds in took.items()}
            blocks = (micro.pop("whole") - micro.pop("entrance")) / checkpoint.model.config.depth
            micro["between"] = blocks - sum(TIMES.get(part, 1) * each for part, each in micro.items())
            shown = [f"{micro[part]:.0f}" if part in micro else "" for part in PARTS]
            table.add_row(f"{size}/16 packed {name}", *shown)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
