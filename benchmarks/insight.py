"""What a look inside costs: attention maps of ViT-B/16 against a plain forward, and against transformers' eager maps.

    python benchmarks/insight.py            the table
    python benchmarks/insight.py --quick    fewer rounds

Ratios are medians over rounds in which all candidates take turns, same threads, random weights, batch 1. Memory is the
peak of a fresh process during one call, beyond what it held before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import network
import vitrail
from vitrail.network import ViT

LARGE = 512


def ours() -> ViT:
    torch.manual_seed(0)
    return vitrail.create("vit-b16").eval()


def theirs(kind: str, size: int) -> torch.nn.Module:
    transformers = network.oracles.transformers()
    config = transformers.ViTConfig(num_labels=1000, image_size=size)
    return transformers.ViTForImageClassification._from_config(config, attn_implementation=kind).eval()


def candidates(size: int, only: str = "") -> dict[str, Callable[[], object]]:
    """What is timed, by name; with `only`, nothing else is built."""
    pixels = torch.randn(1, 3, size, size)
    made: dict[str, Callable[[], object]] = {}
    if not only or not only.startswith("transformers"):
        model = ours()
        made = {
            "plain forward": partial(model, pixels),
            "all maps": partial(vitrail.trace, model, pixels, hidden=False),
            "maps of one block": partial(vitrail.trace, model, pixels, hidden=False, blocks=[-1]),
            "the cls token's row of every block": partial(vitrail.trace, model, pixels, hidden=False, rows=[0]),
        }
    if not only or only.startswith("transformers"):
        model_of = (
            {kind: theirs(kind, size) for kind in ("eager", "sdpa")} if not only else {"eager": theirs("eager", size)}
        )
        made["transformers, all maps"] = partial(model_of["eager"], pixels, output_attentions=True)
        if not only:
            made["transformers, plain forward"] = partial(model_of["sdpa"], pixels)
    return {only: made[only]} if only in made else made


def peak(size: int, name: str) -> float:
    """Megabytes that a process needs for one call beyond the network itself."""
    out = subprocess.run(
        [sys.executable, __file__, "--peak", name, "--size", str(size)], capture_output=True, text=True, check=True
    )
    return float(out.stdout)


def measure_peak(size: int, name: str) -> float:
    [call] = candidates(size, name).values()
    with torch.inference_mode():
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = status("VmRSS")
        kept = call()  # the maps are wanted, so they are held
    after = status("VmHWM")
    del kept
    return (after - before) / 1024


def status(name: str) -> int:
    """Kilobytes of this process, by Linux's own count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="6 rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--size", type=int, default=0, help="this size alone; usual: 224 and 512")
    parser.add_argument("--memory", action="store_true", help="peak memory alone")
    parser.add_argument("--peak", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.peak:
        print(measure_peak(chosen.size, chosen.peak))
        return
    if chosen.memory:
        for size in (224, LARGE):
            for name in candidates(size):
                if name != "transformers, plain forward":
                    print(f"{size} px: {name:<40} {peak(size, name):6.0f} MB", flush=True)
        return
    rows = []
    for size in (chosen.size,) if chosen.size else (224, LARGE):
        with torch.inference_mode():
            seconds = network.interleave(candidates(size), 6 if chosen.quick else chosen.rounds)
        memory = {name: peak(size, name) for name in seconds if name != "transformers, plain forward"}
        for name in seconds:
            note = f"{memory[name]:.0f} MB" if name in memory else ""
            rows.append(network.compare(f"{size} px: {name}", seconds[name], seconds["plain forward"], note))
    if chosen.json:
        print(json.dumps({"threads": chosen.threads, "rows": rows}))
        return
    table = Table(
        "time beside a plain forward", "ratio", "quartiles", "processor", "peak memory", box=None, pad_edge=False
    )
    for row in rows:
        low, high = row["quartiles"]  # type: ignore[misc]
        table.add_row(
            str(row["what"]),
            f"{row['ratio']:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{row['processor']:.3f}",
            str(row["note"]),
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
