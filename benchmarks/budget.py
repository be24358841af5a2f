"""Merging tokens of your own network under a budget: what it loses, and how much faster it is than with all tokens.

    python benchmarks/budget.py RUN --max-drop 1           a run folder: its own validation and test images

Packed in bf16, or in fp32 without units for that, and in int8 with as many layers as the budget allows. The search of
`vitrail optimize` chooses on validation images, on fake quantisation for int8; test images only report. "speed" is the
time of the network with all tokens, not in int8, over that of the others, batches of 16 of the user's own images, in
turn: the median over rounds, and quartiles.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import vitrail
from network import interleave
from vitrail.errors import InputError
from vitrail.evaluation import data_for
from vitrail.packed import Packed
from vitrail.quantisation.accuracy_budget import Judge, split_for_calibration
from vitrail.quantisation.cpu_features import has_bf16_units
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.quantiser import RANKED_ON, plan_all_int8, search_plan
from vitrail.quantisation.range_calibration import calibration_pixels
from vitrail.shipping.optimizer import Merging, merged_most

BATCH, IMAGES = 16, 48


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", default="")
    parser.add_argument("--max-drop", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(2)
    checkpoint = vitrail.load(given.run)
    split = split_for_calibration(data_for(given.run, given.data, checkpoint.classes), checkpoint, 0)
    choosing, reporting = (Judge.by(checkpoint, each) for each in (split.choosing, split.reporting))
    precision = "bf16" if has_bf16_units() else "fp32"
    batches = calibration_pixels(checkpoint, split.calibration, 32)
    runtimes: dict[str, Packed] = {}
    for merging in (Merging(), *merged_most(checkpoint, choosing, given.max_drop)):
        name, merged = str(merging) or "all tokens", merging.of(checkpoint)
        runtimes[f"{name}, {precision}"] = Packed(merged, QuantPlan(precision))
        evened, plan = plan_all_int8(merged, batches)
        with suppress(InputError):  # no int8 within the budget
            plan = search_plan(evened, plan, choosing, given.max_drop, batches[0][:RANKED_ON]).plan
            runtimes[f"{name}, int8"] = Packed(evened, plan)
    count = min(IMAGES, len(split.choosing))
    pixels = np.stack([checkpoint.preprocess(split.choosing.images[row]) for row in range(count)])

    def call(runtime: Packed) -> Callable[[], Any]:
        return lambda: [runtime.run(pixels[row : row + BATCH]) for row in range(0, count, BATCH)]

    took = interleave({name: call(runtime) for name, runtime in runtimes.items()}, given.rounds)
    table = Table("", "lost, validation", "lost, test", "speed", "quartiles", box=None)
    for name, runtime in runtimes.items():
        ratios = [a.wall / b.wall for a, b in zip(took[next(iter(runtimes))], took[name], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        lost = [f"{judge(runtime).drop.value:+.2f}" for judge in (choosing, reporting)]
        table.add_row(name, *lost, f"{middle:.2f}", f"{low:.2f} to {high:.2f}")
    Console(width=110).print(table)
    print(split.words)


if __name__ == "__main__":
    main()
