"""Speed of the network beside others, as ratios: candidates interleaved in one run, same threads.

    python benchmarks/network.py            the table
    python benchmarks/network.py --quick    fewer rounds
    python benchmarks/network.py --json

A ratio is the other's time divided by ours, so above 1 means ours is faster; it is the median over rounds. "processor"
is the same of processor time, which says more on a busy machine. transformers runs with random weights of its own.
Absolute times differ from machine to machine and are not printed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "network")]

import renames  # noqa: E402

import oracles  # noqa: E402
import vitrail  # noqa: E402

SIZES = {
    "Ti": ("vit-ti16", "vit_tiny_patch16_224"),
    "S": ("vit-s16", "vit_small_patch16_224"),
    "B": ("vit-b16", "vit_base_patch16_224"),
}


class Seconds(NamedTuple):
    """Of one call: on the clock, and of processor time, which a busy neighbour disturbs less."""

    wall: float
    cpu: float


def interleave(
    candidates: dict[str, Callable[[], object]], rounds: int, least: float = 0.2, seed: int = 0
) -> dict[str, list[Seconds]]:
    """Seconds a call, a list for each candidate, one entry a round.

    In a round every candidate comes once, in random order: one call that is not timed, so that none pays for the
    memory its neighbour left behind, then calls for at least `least` seconds. Quick calls get twice the rounds.
    """
    repeats = {}
    for name, call in candidates.items():
        call()
        started = time.perf_counter()
        call()
        repeats[name] = max(1, round(least / (time.perf_counter() - started)))
    seconds: dict[str, list[Seconds]] = {name: [] for name in candidates}
    dice = random.Random(seed)
    for _ in range(rounds * 2 if min(repeats.values()) > 1 else rounds):
        for name in dice.sample(list(candidates), len(candidates)):
            candidates[name]()
            wall, cpu, count = time.perf_counter(), time.process_time(), repeats[name]
            for _ in range(count):
                candidates[name]()
            seconds[name].append(Seconds((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count))
    return seconds


def compare(what: str, of: list[Seconds], to: list[Seconds], note: str = "") -> dict[str, object]:
    """A row of the table: median and quartiles of the per-round ratio, and the ratio of processor times."""
    low, middle, high = statistics.quantiles([a.wall / b.wall for a, b in zip(of, to, strict=True)], n=4)
    cpu = statistics.median(each.cpu for each in of) / statistics.median(each.cpu for each in to)
    return {
        "what": what,
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "processor": round(cpu, 3),
        "note": note,
    }


def beside_others(rounds: int) -> list[dict[str, object]]:
    """Eager forward of Ti, S and B at batch 1 and 16 beside timm and transformers, same weights."""
    timm, transformers = oracles.timm(), oracles.transformers()
    rows: list[dict[str, object]] = []
    for size, (ours_name, timm_name) in SIZES.items():
        ours = vitrail.create(ours_name).eval()
        theirs = timm.create_model(timm_name, pretrained=False).eval()
        renames.to_ours(renames.TIMM, ours, theirs.state_dict())
        config = ours.config
        hf = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=config.width,
                num_hidden_layers=config.depth,
                num_attention_heads=config.heads,
                intermediate_size=config.mlp_width,
                num_labels=config.classes,
            )
        ).eval()
        for batch in (1, 16):
            pixels = torch.randn(batch, 3, 224, 224)
            with torch.inference_mode():
                same = float((ours(pixels) - theirs(pixels)).abs().max())
                networks = {"ours": ours, "timm": theirs, "hf": hf}
                seconds = interleave({name: partial(each, pixels) for name, each in networks.items()}, rounds)
            notes = {"timm": f"same weights, logits differ by {same:.1e}", "hf": "other random weights"}
            for other, note in notes.items():
                what = f"{size} batch {batch}: {other} / ours"
                rows.append(compare(what, seconds[other], seconds["ours"], note))
    return rows


def attention_maps(rounds: int) -> list[dict[str, object]]:
    """All attention maps of ViT-B/16 against a plain forward; the same for transformers' eager attention."""
    transformers = oracles.transformers()
    ours = vitrail.create("vit-b16").eval()
    eager, fused = (
        transformers.ViTForImageClassification._from_config(
            transformers.ViTConfig(num_labels=1000), attn_implementation=kind
        ).eval()
        for kind in ("eager", "sdpa")
    )
    rows = []
    for batch in (1, 8):
        pixels = torch.randn(batch, 3, 224, 224)
        with torch.inference_mode():
            seconds = interleave(
                {
                    "plain": partial(ours, pixels),
                    "trace": partial(vitrail.trace, ours, pixels, hidden=False),
                    "hf": partial(fused, pixels),
                    "hf maps": partial(eager, pixels, output_attentions=True),
                },
                rounds,
            )
        rows.append(compare(f"B batch {batch}: trace of all maps / plain forward", seconds["trace"], seconds["plain"]))
        rows.append(compare(f"B batch {batch}: transformers' maps / its forward", seconds["hf maps"], seconds["hf"]))
    return rows


def import_time(rounds: int) -> list[dict[str, object]]:
    """`import vitrail` against `import torch`, each in a fresh process, the interpreter's own start taken off."""

    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - started

    measured: dict[str, list[float]] = {"pass": [], "import vitrail": [], "import torch": []}
    for _ in range(rounds):
        for code, times in measured.items():
            times.append(seconds(code))
    start = min(measured["pass"])
    ours, torchs = (
        [Seconds(max(each - start, 0.0), max(each - start, 0.0)) for each in measured[f"import {name}"]]
        for name in ("vitrail", "torch")
    )
    return [compare("import vitrail / import torch", ours, torchs)]


def norm_kinds(rounds: int) -> list[dict[str, object]]:
    """Batch norm against layer norm in an otherwise equal network (ViT-S/16, batch 8, evaluation)."""
    layer, batch = vitrail.create("vit-s16").eval(), vitrail.create("vit-s16", norm="batch").eval()
    pixels = torch.randn(8, 3, 224, 224)
    with torch.inference_mode():
        seconds = interleave({"layer": lambda: layer(pixels), "batch": lambda: batch(pixels)}, rounds)
    return [compare("S batch 8: batch norm / layer norm", seconds["batch"], seconds["layer"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="8 rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rounds = 8 if chosen.quick else chosen.rounds
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    rows = beside_others(rounds) + attention_maps(rounds) + norm_kinds(rounds) + import_time(min(rounds, 10))
    if chosen.json:
        print(json.dumps({"threads": chosen.threads, "rounds": rounds, "rows": rows}))
        return
    table = Table("what", "ratio", "quartiles", "processor", "note", box=None, pad_edge=False)
    for row in rows:
        low, high = row["quartiles"]  # type: ignore[misc]
        table.add_row(
            str(row["what"]),
            f"{row['ratio']:.3f}",
            f"{low:.3f} to {high:.3f}",
            f"{row['processor']:.3f}",
            str(row["note"]),
        )
    Console(width=120).print(table)
    print(f"{chosen.threads} threads, {rounds} rounds, torch {torch.__version__}")


if __name__ == "__main__":
    main()
