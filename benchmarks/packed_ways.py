"""What the TorchScript program of the packed runtime brings beyond packed modules called from Python.

    python benchmarks/packed_ways.py                              Ti, S and B, batch 1 and 16, fp32, bf16 and int8
    python benchmarks/packed_ways.py --sizes B --batches 1 --rounds 9 --json ways.json
    python benchmarks/packed_ways.py --quick                      a tiny network, one round: only whether it runs

"modules" has its linear layers packed for oneDNN, called from Python; "program" runs them as one TorchScript program,
which is what ships. A ratio is the time of "modules" divided by that of "program", so above 1 is faster: the median
over rounds and its quartiles, both in turn in one process, in random order, warmed up. Answers are compared first. int8
is calibrated on random pixels: it says speed, not accuracy. bf16 is left out where the processor does not multiply it.
Absolute times are not printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import vitrail
from network import SIZES, interleave
from vitrail.network import ViT, ViTConfig
from vitrail.packed.packing import pack
from vitrail.quantisation.cpu_features import has_bf16_units
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate

THREADS = 2
WAYS = {"modules": False, "program": True}
TINY = ViTConfig(image_size=64, patch_size=16, width=64, depth=2, heads=2, mlp_width=128, classes=10)


def plans(model: ViT, pixels: torch.Tensor) -> dict[str, QuantPlan]:
    rest = "bf16" if has_bf16_units() else "fp32"
    half = {"bf16": QuantPlan("bf16")} if has_bf16_units() else {}
    return {"fp32": QuantPlan(), **half, "int8": QuantPlan(rest, calibrate(model, [pixels[:4]]))}


def compared(calls: dict[str, Callable[[], torch.Tensor]], precision: str) -> None:
    """Refuse to race what does not answer alike."""
    if not torch.equal(calls["modules"](), calls["program"]()):
        raise SystemExit(f"{precision}: the program does not answer as the modules do")


def race(size: str, model: ViT, batch: int, rounds: int, seed: int, least: float) -> list[dict[str, Any]]:
    """A row for each precision and way."""
    side = model.config.image_size[0]
    pixels = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))
    rows = []
    for precision, plan in plans(model, pixels).items():
        calls: dict[str, Callable[[], torch.Tensor]] = {}
        for name, program in WAYS.items():
            packed = pack(model, plan, program=program)
            if program and packed.compiled is None:
                raise SystemExit(f"there is no program to race: {packed.note}")
            calls[name] = partial(packed, pixels.to(next(packed.parameters()).dtype))
        with torch.inference_mode():
            compared(calls, precision)
            seconds = interleave(calls, rounds, least, seed)
        for name, took in seconds.items():
            ratios = [a.wall / b.wall for a, b in zip(seconds["modules"], took, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
            rows.append(
                {"size": size, "batch": batch, "precision": precision, "way": name, "ratio": round(middle, 3)}
                | {"quartiles": [round(low, 3), round(high, 3)], "rounds": len(ratios)}
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="Ti,S,B")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0, help="of weights, pixels and the order of candidates")
    parser.add_argument("--quick", action="store_true", help="a tiny network, one round")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = []
    for size in ["tiny"] if given.quick else given.sizes.split(","):
        torch.manual_seed(given.seed)
        model = (ViT(TINY) if given.quick else vitrail.create(SIZES[size][0])).eval()
        torch.nn.init.normal_(model.head.classify.weight, std=0.02)  # which starts as zeros: all answers would be alike
        for batch in map(int, given.batches.split(",")):
            rounds, least = (1, 0.0) if given.quick else (given.rounds, 0.2)
            rows += race(size, model, batch, rounds, given.seed, least)
    table = Table("", "batch", "precision", *WAYS, box=None)
    for first in range(0, len(rows), len(WAYS)):
        row, same = rows[first], rows[first : first + len(WAYS)]
        cells = (f"{each['ratio']:.2f} ({each['quartiles'][0]:.2f}-{each['quartiles'][1]:.2f})" for each in same)
        table.add_row(str(row["size"]), str(row["batch"]), str(row["precision"]), *cells)
    Console(width=120).print(table)
    print(f"times as fast as packed modules alone, median and quartiles; {THREADS} threads, seed {given.seed}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
