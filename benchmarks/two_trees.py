"""This tree beside another checkout of the project: what became slower, what faster.

    git worktree add ../before COMMIT
    python benchmarks/two_trees.py ../before                     everything, 7 rounds
    python benchmarks/two_trees.py ../before --only packed --rounds 25 --json rows.json
    python benchmarks/two_trees.py . --quick                     a tiny network against itself: only whether it runs

A process for each tree, warmed up, two threads each, asked in turn and never at once, in random order. A ratio is the
other tree's time divided by ours, so above 1 is faster now: median and quartiles over the rounds. Both have the same
weights, pixels and ranges, by the same seed. Absolute times are not printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]

# Names of a call come in, a line each; seconds go out. Earlier commits keep the packed runtime in another room.
WORKER = """
import json, sys, tempfile, time
from pathlib import Path
import torch
import vitrail

try:
    from vitrail.packed import Packed
    from vitrail.quantisation.quant_plan import QuantPlan
    from vitrail.quantisation.range_calibration import calibrate
except ImportError:
    from vitrail.shipping import Packed, Plan as QuantPlan
    from vitrail.shipping.calibration import calibrate

torch.set_num_threads(2)
quick = sys.argv[1] == "quick"
made = {}


def network(size):
    torch.manual_seed(0)
    small = {"image_size": 32, "width": 64, "depth": 2, "heads": 2, "mlp_width": 128} if quick else {}
    return vitrail.create(f"vit-{size}16", **small)


def pixels(model, batch):
    height, width = model.config.image_size
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def packed(size, precision, batch):
    model = network(size).eval()
    images = pixels(model, batch)
    plan = QuantPlan("bf16", calibrate(model, [images[:4]])) if precision == "int8" else QuantPlan(precision)
    runtime = Packed(vitrail.Checkpoint(model, vitrail.Preprocess(size=model.config.image_size)), plan)
    return lambda: runtime.run(images.numpy())


def eager(size, batch):
    model = network(size).eval()
    images = pixels(model, batch)
    return torch.inference_mode()(lambda: model(images))


def trace(size, batch):
    model = network(size).eval()
    images = pixels(model, batch)
    return torch.inference_mode()(lambda: vitrail.trace(model, images))


def step(size, batch):
    model = network(size).train()
    images = pixels(model, batch)
    optimiser = torch.optim.AdamW(model.parameters())

    def one():
        optimiser.zero_grad()
        model(images).logsumexp(-1).sum().backward()
        optimiser.step()

    return one


def training(size, epochs):
    def run():
        with tempfile.TemporaryDirectory() as folder:
            run = vitrail.train("vitrail:fashion", epochs=0.02 if quick else epochs, out=folder, report=False, seed=0)
            rows = (Path(run.folder) / "times.jsonl").read_text().splitlines()
            return sum(json.loads(row)["compute_seconds"] for row in rows)

    return run


for line in sys.stdin:
    kind, *words = line.split()
    if line not in made:
        made[line] = globals()[kind](*(float(word) if word.replace(".", "").isdigit() and "." in word
                                       else int(word) if word.isdigit() else word for word in words))
        if kind != "training":
            made[line]()
    start = time.perf_counter()
    own = made[line]()
    took = time.perf_counter() - start
    count = 1
    while kind != "training" and took < 0.3 and not quick:
        made[line]()
        took, count = time.perf_counter() - start, count + 1
    print(own if kind == "training" else took / count, flush=True)
"""

CALLS = (
    *("eager s 16", "eager ti 1", "step ti 8", "trace s 8", "training 28px 1.0"),
    *(f"packed {size} {kind} {n}" for size in ("b", "s", "ti") for n in (16, 1) for kind in ("fp32", "bf16", "int8")),
)


class Tree:
    """A process that computes with one tree's code."""

    def __init__(self, root: Path, quick: bool) -> None:
        environment = os.environ | {"PYTHONPATH": str(root / "src")}
        command = [sys.executable, "-c", WORKER, "quick" if quick else "full"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def seconds(self, call: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(call, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline() or "nan")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def race(call: str, trees: dict[str, Tree], rounds: int, dice: random.Random) -> dict[str, Any]:
    """A row: how many times as fast this tree is."""
    took: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(rounds + 1):
        for name in dice.sample(list(trees), len(trees)):
            seconds = trees[name].seconds(call)
            if number:  # the first round warms up
                took[name].append(seconds)
    ratios = [other / ours for other, ours in zip(took["other"], took["ours"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
    return {"call": call, "ratio": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)], "rounds": rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the root of another checkout")
    parser.add_argument("--only", default="", help="calls that begin so")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--quick", action="store_true", help="a tiny network, one round")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    trees = {"ours": Tree(ROOT, given.quick), "other": Tree(given.other.resolve(), given.quick)}
    dice = random.Random(given.seed)
    rows = []
    table = Table("", "times as fast as the other tree", "quartiles", box=None)
    for call in (each for each in CALLS if each.startswith(given.only)):
        row = race(call, trees, 1 if given.quick else given.rounds, dice)
        rows.append(row)
        table.add_row(call, f"{row['ratio']:.2f}", f"{row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f}")
        print(json.dumps(row), file=sys.stderr, flush=True)
    for tree in trees.values():
        tree.close()
    Console(width=120).print(table)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
