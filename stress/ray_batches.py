"""Kill workers and drivers of large jobs on Ray, and see whether an image is lost or answered for twice.

    python stress/ray_batches.py --kills 20 --seed 1

Five thousand images (those of the fixtures, and MNIST's digits, all as PNG; one in a thousand is cut short) are
answered for by `vitrail predict`, in one process, then by `vitrail predict --engine ray` with two workers of one
thread. Once some shards are done, a worker or the driver is killed, at a moment of chance; a killed driver is started
again with the same command. Jobs follow one another until so many kills are spent. The campaign passes when the rows of
every job are those of the one process, bit for bit, in the same order. Prints one JSON object. Linux alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.inference.row_files import read_rows
from vitrail.scale.ray_cluster import _children, _descendants

FIXTURES = Path(os.environ.get("VITRAIL_FIXTURES", "../shared/fixtures"))
CHECKPOINT = "vitrail:fashion"
CUT = 1000  # one image in so many


def make_images(folder: Path, count: int) -> None:
    """Photos of the fixtures, then digits, as PNG."""
    photos = sorted(
        path for name in ("fruits360_10", "sign_language_digits") for path in (FIXTURES / name).rglob("*.*")
    )
    photos = [path for path in photos if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
    with gzip.open(next((FIXTURES / "mnist").glob("*images*"))) as file:
        digits = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    (folder / "photos").mkdir(parents=True)
    (folder / "digits").mkdir()
    photos = photos[: count // 2]
    for number in range(count):
        kind = "photos" if number < len(photos) else "digits"
        image = Image.open(photos[number]) if kind == "photos" else Image.fromarray(digits[number - len(photos)])
        path = folder / kind / f"{number}.png"
        image.convert("RGB" if kind == "photos" else "L").save(path)
        if number % CUT == CUT - 1:
            path.write_bytes(path.read_bytes()[:100])


def command(images: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "vitrail", "predict", CHECKPOINT, str(images), "--top", "3", *more]


def workers_of(driver: int) -> list[int]:
    """The processes that compute, as Ray calls them."""
    found = []
    for process in sorted(_descendants(_children(driver))):
        try:
            name = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::MapWorker"):
            found.append(process)
    return found


def done(out: Path) -> int:
    try:
        return (out / "_done.jsonl").read_bytes().count(b"}")
    except OSError:
        return 0


def run_job(images: Path, out: Path, dice: random.Random, kills: list[str], most: int) -> int:
    """One job to its end, disturbed; how often it was started."""
    starts = 0
    while True:
        driver = subprocess.Popen(
            [*command(images, "--engine", "ray", "--workers", "2", "--threads", "1", "--out"), str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        starts += 1
        after = done(out) + dice.choice((1, 1, 2, 3))
        while driver.poll() is None:
            if len(kills) < most and done(out) >= after:
                time.sleep(dice.random() * 0.3)
                if dice.random() < 0.5:
                    kills.append("driver")
                    driver.send_signal(signal.SIGKILL)
                    break
                victims = workers_of(driver.pid)
                if victims:
                    kills.append("worker")
                    os.kill(dice.choice(victims), signal.SIGKILL)
                after = done(out) + dice.choice((1, 1, 2, 3))
            time.sleep(0.02)
        said, complaints = driver.communicate()
        if driver.returncode in (0, 3):
            return starts
        if driver.returncode != -signal.SIGKILL:
            raise SystemExit(f"exit code {driver.returncode}: {said.decode()} {complaints.decode()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1"}
    dice = random.Random(given.seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = folder / "images"
        make_images(images, given.images)
        one = folder / "one.jsonl"
        subprocess.run([*command(images, "--threads", "1", "--out"), str(one)], check=False, capture_output=True)
        expected = list(read_rows(one))
        kills: list[str] = []
        jobs, starts, again, wrong = 0, 0, 0, 0
        while len(kills) < given.kills or not jobs:
            out = folder / f"out-{jobs}"
            starts += run_job(images, out, dice, kills, given.kills)
            parts = sorted(out.glob("part-*"))
            rows = [row for part in parts for row in read_rows(part)]
            again += done(out) - len(parts)
            wrong += rows != expected
            jobs += 1
            print(
                f"job {jobs}: {len(kills)} kills so far, {len(rows):,} rows, right: {rows == expected}", file=sys.stderr
            )
    result = {
        "images": len(expected),
        "unread": sum(row["error"] is not None for row in expected),
        "jobs": jobs,
        "jobs that differ": wrong,
        "kills of workers": kills.count("worker"),
        "kills of drivers": kills.count("driver"),
        "starts": starts,
        "shards recorded twice": again,
        "seed": given.seed,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(result))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
