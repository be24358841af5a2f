"""Time and memory of loading ViT-B/16 beside timm, as ratios: candidates interleaved in one run, same threads.

    python benchmarks/loading.py            the table
    python benchmarks/loading.py --quick    fewer rounds
    python benchmarks/loading.py --json

A ratio of times is ours divided by the other's, so below 1 means ours is faster; it is the median over rounds.
timm's way is to create the network, which starts it at random, to read the file, and to copy the weights over. Ours
reads the same weights under our names and hashes them; "hash apart" has the time of the hash alone taken off. Files
are in the system's cache. Memory is the peak above what the process held after its imports, as a multiple of the
weights, each in a fresh process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from network import Seconds, compare, interleave

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "network")]

import renames  # noqa: E402

import oracles  # noqa: E402
import vitrail  # noqa: E402
from vitrail import checkpoint  # noqa: E402

TIMM = "vit_base_patch16_224"
FOREIGN = "weights.load, timm's names"

Loader = Callable[[], torch.nn.Module]


def loaders(folder: Path) -> dict[str, Loader]:
    """Every way to a network from the files in a folder; the way from timm's names where the package has it."""

    def by_timm() -> torch.nn.Module:
        model = oracles.timm().create_model(TIMM, pretrained=False)
        model.load_state_dict(load_file(folder / "timm.safetensors"))
        return model.eval()  # type: ignore[no-any-return]

    ways: dict[str, Loader] = {
        "checkpoint.load": lambda: checkpoint.load(folder / "ours.safetensors").model,
        "timm": by_timm,
    }
    try:
        foreign = importlib.import_module("vitrail.weights").load
    except (ImportError, AttributeError) as error:
        print(f"left out, {FOREIGN}: {error}", file=sys.stderr)
        return ways
    return ways | {FOREIGN: lambda: foreign(folder / "timm.safetensors").model}


def write_files(folder: Path) -> None:
    """The same random weights under timm's names and, with all that belongs to them, under ours."""
    theirs = oracles.timm().create_model(TIMM, pretrained=False).eval()
    ours = vitrail.create("vit-b16").eval()
    renames.to_ours(renames.TIMM, ours, theirs.state_dict())
    save_file(theirs.state_dict(), folder / "timm.safetensors")
    vitrail.save(vitrail.Checkpoint(ours, vitrail.Preprocess(size=224)), folder / "ours.safetensors")


def times(folder: Path, rounds: int) -> list[dict[str, object]]:
    """Each way beside timm's, and the hash alone; first, all ways must lead to the same logits."""
    ways = loaders(folder)
    pixels = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        logits = {name: way()(pixels) for name, way in ways.items()}
    notes = {
        name: f"logits differ by {float((each - logits['timm']).abs().max()):.1e}" for name, each in logits.items()
    }
    loaded = checkpoint.load(folder / "ours.safetensors")
    hashing = partial(checkpoint.content_hash, loaded.describe(), loaded.tensors())
    seconds = interleave({**ways, "hash": hashing}, rounds)
    apart = [
        Seconds(whole.wall - alone.wall, whole.cpu - alone.cpu)
        for whole, alone in zip(seconds["checkpoint.load"], seconds["hash"], strict=True)
    ]
    rows = [
        compare("checkpoint.load / timm", seconds["checkpoint.load"], seconds["timm"], notes["checkpoint.load"]),
        compare("checkpoint.load, hash apart / timm", apart, seconds["timm"]),
        compare("content_hash / checkpoint.load", seconds["hash"], seconds["checkpoint.load"]),
    ]
    if FOREIGN in ways:
        rows.append(compare(f"{FOREIGN} / timm", seconds[FOREIGN], seconds["timm"], notes[FOREIGN]))
    return rows


def memory(folder: Path, rounds: int) -> list[dict[str, object]]:
    """The peak of each way as a multiple of the weights, the median over fresh processes."""
    rows: list[dict[str, object]] = []
    for name in loaders(folder):
        command = [sys.executable, __file__, "--peak-of", name, "--folder", str(folder)]
        found = [
            float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(rounds)
        ]
        rows.append(
            {
                "what": f"{name}: peak memory / weights",
                "ratio": round(statistics.median(found), 3),
                "quartiles": [round(min(found), 3), round(max(found), 3)],
                "processor": None,
                "note": f"least and most of {rounds} processes",
            }
        )
    return rows


def peak_of(way: Loader) -> float:
    """The most memory that a way to a network takes at once, above what is there before, for each byte of weights."""
    before = held("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    except OSError:
        before = held("VmHWM")
    model = way()
    peak = held("VmHWM")
    return (peak - before) / sum(each.nbytes for each in model.state_dict().values())


def held(name: str) -> int:
    """Bytes in memory now (VmRSS) or at most so far (VmHWM); where the system does not say, always the latter."""
    status = Path("/proc/self/status")
    if not status.exists():
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    [line] = [line for line in status.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="6 rounds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    rounds = 6 if chosen.quick else chosen.rounds
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    oracles.timm()  # an import is no part of loading
    if chosen.peak_of:
        print(peak_of(loaders(chosen.folder)[chosen.peak_of]))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        rows = times(folder, rounds) + memory(folder, min(rounds, 5))
    if chosen.json:
        print(json.dumps({"threads": chosen.threads, "rounds": rounds, "rows": rows}))
        return
    table = Table("what", "ratio", "quartiles", "processor", "note", box=None, pad_edge=False)
    for row in rows:
        low, high = row["quartiles"]  # type: ignore[misc]
        processor = "" if row["processor"] is None else f"{row['processor']:.3f}"
        table.add_row(str(row["what"]), f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}", processor, str(row["note"]))
    Console(width=120).print(table)
    print(f"{chosen.threads} threads, {rounds} rounds, torch {torch.__version__}")


if __name__ == "__main__":
    main()
