"""A large set: time from the command to the first step, peak memory, and the memory of a manifest of many rows.

    python benchmarks/large_set.py                         60,000 JPEGs of 32 px, and 500,000 rows
    python benchmarks/large_set.py --other ../before       beside another checkout of the project
    python benchmarks/large_set.py --keep /data/jpegs      where the images are made, or lie from an earlier time
    python benchmarks/large_set.py --quick --json

The images are drawn from a seed, ten classes in folders, just written and so in the system's memory. Each run is a
process of its own: `vitrail.train` from its start, imports and all, to the end of its first step. The first run of a
tree knows nothing of the images; the second has what the first has kept. The rows are a data set of that many names,
split, recorded, written as JSON, read back and compared; nothing of it lies on a disk. Memory is the peak of the
process, with torch in it, which `imports` gives alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from PIL import Image

SIDE, CLASSES, ROW_CLASSES = 32, 10, 1000
TREE = Path(__file__).resolve().parents[1]


def make_images(root: Path, count: int) -> None:
    """Ten folders of JPEGs, the same for the same count; those that are there already stay."""
    dice = np.random.default_rng(0)
    for number in range(CLASSES):
        (root / f"class{number}").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        small = dice.integers(0, 256, (4, 4, 3), np.uint8)
        path = root / f"class{number % CLASSES}" / f"{number:06}.jpg"
        if not path.exists():
            Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BILINEAR).save(path, quality=90)


# ---- in a process of its own -------------------------------------------------------------------------------------


def answer(**values: Any) -> NoReturn:
    """Print what was measured, and end at once: nothing after it belongs to the measurement."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    processor = sum(os.times()[:2])
    print(json.dumps({**values, "processor": round(processor, 2), "megabytes": round(peak)}), flush=True)
    os._exit(0)


def first_step(data: str, out: str, since: float) -> None:
    """A training to its first step."""
    import vitrail
    from vitrail.training import Callbacks

    heard = Callbacks(step=lambda step, steps, loss: answer(seconds=round(time.time() - since, 2)))
    vitrail.train(data, epochs=1, out=out, check=False, callbacks=heard)


def manifest_rows(count: int, since: float) -> None:
    """A data set of so many names, split, recorded, written and read back."""
    import torch  # noqa: F401  (as a training has it)

    from vitrail.data import Dataset, Entry, Manifest, Sample, differences, manifest, record, split
    from vitrail.data.samples import Files

    labels = [(f"class{number:04}",) for number in range(ROW_CLASSES)]
    samples = tuple(
        Sample(f"class{row % ROW_CLASSES:04}/{row:08}.jpg", labels[row % ROW_CLASSES]) for row in range(count)
    )
    files = Files(Path("images"), [each.name for each in samples])
    data = Dataset("images", samples, files, tuple(name for (name,) in labels))
    digests = np.random.default_rng(0).integers(0, 256, (count, 32), np.uint8)
    if hasattr(manifest, "EntryList"):
        sizes = (np.full(count, 500, np.int32), np.full(count, 400, np.int32), np.arange(count))
        entries: Any = manifest.EntryList(samples, manifest.ImageFacts(*sizes, digests))
    else:  # before there were columns
        rows = zip(samples, digests, strict=True)
        entries = tuple(
            Entry(*sample, 500, 400, row, digest.tobytes().hex()) for row, (sample, digest) in enumerate(rows)
        )
    now = record(split(data, val=0.1, test=0.2).dataset, entries)
    text = now.to_json()
    before = Manifest.from_json(text)
    assert differences(before, now) == []
    answer(seconds=round(time.time() - since, 2), rows=count)


def imports(since: float) -> None:
    """What a process has in memory before it does anything."""
    import vitrail.training  # noqa: F401

    answer(seconds=round(time.time() - since, 2))


# ---- the table ---------------------------------------------------------------------------------------------------


def measure(tree: Path, cache: Path, *words: str) -> dict[str, Any]:
    """One of the above, by the code of a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "VITRAIL_CACHE": str(cache)}
    command = [sys.executable, __file__, "--alone", *words, str(time.time())]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode or not run.stdout.strip():
        raise SystemExit(f"{tree}: {' '.join(words)} failed:\n{run.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def measure_tree(tree: Path, data: Path, rows: int, scratch: Path) -> list[dict[str, Any]]:
    """Every row of the table for one tree."""
    cache = scratch / "cache"
    measured = [{"what": "imports", **measure(tree, cache, "imports")}]
    for number in ("first", "second"):
        found = measure(tree, cache, "first-step", str(data), str(scratch / number))
        measured.append({"what": f"{number} run, to its first step", **found})
    measured.append({"what": f"manifest of {rows:,} rows", **measure(tree, cache, "rows", str(rows))})
    return [{"tree": tree.name, **each} for each in measured]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--other", type=Path, help="another checkout of the project")
    parser.add_argument("--keep", type=Path, help="the folder of the images, which stays")
    parser.add_argument("--quick", action="store_true", help="60 images and 500 rows")
    parser.add_argument("--json", nargs="?", const="-", help="write the rows as JSON, to a file or to standard output")
    options = parser.parse_args()
    images, rows = (60, 500) if options.quick else (options.images, options.rows)
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="large-set-") as folder:
        data = options.keep or Path(folder) / "images"
        make_images(data, images)
        for number, tree in enumerate([TREE] if options.other is None else [options.other.resolve(), TREE]):
            scratch = Path(folder) / str(number)
            table += measure_tree(tree, data, rows, scratch)
            shutil.rmtree(scratch, ignore_errors=True)
    text = json.dumps({"images": images, "processors": os.cpu_count(), "rows": table}, indent=1)
    if options.json not in (None, "-"):
        Path(options.json).write_text(text + "\n")
    if options.json == "-":
        print(text)
        return
    print(f"{images:,} JPEGs of {SIDE} px; {os.cpu_count()} processors")
    for each in table:
        times = f"{each['seconds']:8.1f} s {each['processor']:8.1f} s of processor"
        print(f"{each['tree']:12} {each['what']:32} {times} {each['megabytes']:6,} MB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        what, *given, start = sys.argv[2:]
        if what == "first-step":
            first_step(given[0], given[1], float(start))
        elif what == "rows":
            manifest_rows(int(given[0]), float(start))
        imports(float(start))
    main()
