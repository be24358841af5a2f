"""How much faster two workers of one thread answer than one, and what Ray costs beside one process.

    python benchmarks/ray_scaling.py --images 5000 --rounds 3

One cluster of this machine for each measurement; the clock runs from the first shard that is done to the last, so that
neither the start of Ray nor the opening of the network counts, which are told beside it. Needs as many idle cores as
workers. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from PIL import Image

from vitrail.scale.batch_inference import predict_many


def make_images(folder: Path, count: int, size: int) -> None:
    """Rough images, which compress and decode as photos do."""
    dice = np.random.default_rng(0)
    for number in range(count):
        rough = Image.fromarray(dice.integers(0, 256, (size // 8, size // 8, 3), np.uint8))
        rough.resize((size, size), Image.Resampling.BICUBIC).save(folder / f"{number}.png")


def measure(checkpoint: str, images: Path, out: Path, workers: int, shard_size: int) -> tuple[float, float]:
    """Images a second once all workers are at work, and seconds from the call to the first shard."""
    began = time.perf_counter()
    seen: list[tuple[float, int]] = []
    predict_many(
        checkpoint,
        images,
        out,
        workers=workers,
        threads=1,
        shard_size=shard_size,
        progress=False,
        done=lambda count: seen.append((time.perf_counter(), count)),
    )
    times = [at for at, count in seen if count]
    counts = [count for _, count in seen if count]
    # The first shard of each worker is not counted: workers need not begin at once.
    first = workers
    return sum(counts[first:]) / (times[-1] - times[first - 1]), times[0] - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="vitrail:fashion")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shard-size", type=int, default=64)
    given = parser.parse_args()
    speeds: dict[int, list[float]] = {1: [], given.workers: []}
    starts: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        images = Path(name) / "images"
        images.mkdir()
        make_images(images, given.images, given.size)
        for number in range(given.rounds):
            for workers in (1, given.workers) if number % 2 == 0 else (given.workers, 1):
                out = Path(name) / f"out-{number}-{workers}"
                speed, start = measure(given.checkpoint, images, out, workers, given.shard_size)
                speeds[workers].append(speed)
                starts.append(start)
    medians = {workers: statistics.median(values) for workers, values in speeds.items()}
    result = {
        "images": given.images,
        "images/s by workers": {workers: round(value, 1) for workers, value in medians.items()},
        "times as fast": round(medians[given.workers] / medians[1], 2),
        "seconds to the first shard": round(statistics.median(starts), 1),
        "all": {workers: [round(value, 1) for value in values] for workers, values in speeds.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
