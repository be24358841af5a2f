"""Merging tokens of your own network under a budget: what it loses, and how much faster it is than with all tokens.

    python benchmarks/budget.py RUN --max-drop 1           a run folder: its own validation and test pictures

Packed in bf16, or in fp32 without units for that. The search of `vitrail optimize` chooses on validation pictures,
with and without giving unclear answers again by all tokens; test pictures only report. "speed" is the time of
the network with all tokens over that of the one that merges, batches of 16 of the user's own pictures, in turn: the
median over rounds, and quartiles.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import vitrail
from network import interleave
from vitrail.evaluation import data_for
from vitrail.shipping import Packed, Plan
from vitrail.shipping.judging import Judge, deal
from vitrail.shipping.kernels import has_bf16_units
from vitrail.shipping.optimising import Merging, doubting, merged_most

BATCH, PICTURES = 16, 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="")
    parser.add_argument("--max-drop", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(2)
    checkpoint = vitrail.load(given.run)
    dealt = deal(data_for(given.run, given.data, checkpoint.classes), checkpoint, 0)
    choosing, reporting = (Judge.by(checkpoint, each) for each in (dealt.choosing, dealt.reporting))
    found = [Merging(), *merged_most(checkpoint, choosing, given.max_drop)]
    found += doubting(checkpoint, choosing, given.max_drop)
    precision = "bf16" if has_bf16_units() else "fp32"
    runtimes = {each: Packed(each.of(checkpoint), Plan(precision, clear=each.clear)) for each in dict.fromkeys(found)}
    count = min(PICTURES, len(dealt.choosing))
    pixels = np.stack([checkpoint.preprocess(dealt.choosing.images[row]) for row in range(count)])

    def call(runtime: Packed) -> Callable[[], Any]:
        return lambda: [runtime.run(pixels[row : row + BATCH]) for row in range(0, count, BATCH)]

    took = interleave({str(each): call(runtime) for each, runtime in runtimes.items()}, given.rounds)
    table = Table("", "lost, validation", "lost, test", "speed", "quartiles", box=None)
    for each, runtime in runtimes.items():
        ratios = [a.wall / b.wall for a, b in zip(took[str(Merging())], took[str(each)], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        lost = [f"{judge(runtime).drop.value:+.2f}" for judge in (choosing, reporting)]
        name = str(each) if each.count else f"all tokens, {precision}"
        table.add_row(name, *lost, f"{middle:.2f}", f"{low:.2f} to {high:.2f}")
    Console(width=110).print(table)
    print(dealt.words)


if __name__ == "__main__":
    main()
