"""What a network takes for unlike anything it was trained on: other images, and false alarms on its own kind.

    python benchmarks/unlike.py FIXTURES --minutes 4                         from scratch, on photos of hands
    python benchmarks/unlike.py FIXTURES --minutes 4 --from FIXTURES/vit_tiny_patch16_224_in1k.safetensors --size 96
    python benchmarks/unlike.py FIXTURES --run runs/hands                    a run that is there already

Trained on sign_language_digits; fed fruits360_10 (test), the first 400 test images of MNIST, and noise of four kinds.
False alarms are measured on the test images, which set nothing: as they are, and on average over 500 other divisions of
validation and test images, since one division of a few hundred images swings by more than a point.
"""

from __future__ import annotations

import argparse
import gzip
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

import vitrail
from vitrail.checkpoint import save
from vitrail.data.readers import read_data
from vitrail.evaluation import data_for
from vitrail.images.ood_detector import OodDetector
from vitrail.inference import open_model
from vitrail.training import final_evaluation, ood_fitting
from vitrail.types import Array

DIVISIONS = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fixtures", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--val", type=float, default=0.2)
    parser.add_argument("--from", dest="start")
    parser.add_argument("--size", type=int)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    given = parser.parse_args()
    hands = given.fixtures / "sign_language_digits"
    folder = given.run or train(given, hands)
    checkpoint = vitrail.load(folder)
    ood = checkpoint.ood
    if ood is None:
        raise SystemExit(f"{folder} says nothing of what is familiar: train it anew")
    data = data_for(folder, str(hands), checkpoint.classes)
    own = {split: vitrail.embed(checkpoint, list(data.part(split).images)) for split in ("val", "test")}
    table = Table("images", "count", "taken for unlike", box=None)
    for name, images in others(given.fixtures).items():
        table.add_row(name, str(len(images)), percent(ood, vitrail.embed(checkpoint, images)))
    table.add_row("hands, test: false alarms", str(len(own["test"])), percent(ood, own["test"]))
    rates = divided(ood, own["val"], own["test"])
    table.add_row(
        f"the same, {DIVISIONS} divisions", "", f"{100 * rates.mean():.1f} % (one alone ± {100 * rates.std():.1f})"
    )
    Console().print(table)
    weigh(checkpoint, folder)


def train(given: argparse.Namespace, hands: Path) -> Path:
    """A run, and which share of its time went into what is familiar."""
    spent: list[float] = []
    fit = ood_fitting.fit_ood

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        fitted = fit(*arguments)
        spent.append(time.perf_counter() - start)
        return fitted

    vars(final_evaluation)["fit_ood"] = timed
    options: dict[str, Any] = {"size": given.size} if given.size else {}
    start = {"start": given.start} if given.start else {}
    run = vitrail.train(str(hands), minutes=given.minutes, val=given.val, out=given.out, **start, **options)
    print(
        f"{run.folder}: {run.seconds:.0f} s, of which {spent[0]:.2f} s ({100 * spent[0] / run.seconds:.1f} %) "
        "for what is familiar"
    )
    print(f"accuracy on test  {100 * run.evaluation.scores['top1'].value:.1f} %")
    return run.folder


def others(fixtures: Path) -> dict[str, list[Any]]:
    """Images of other kinds."""
    dice = np.random.default_rng(0)
    fruits = read_data(str(fixtures / "fruits360_10")).part("test")
    packed = (fixtures / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes()
    digits = np.frombuffer(gzip.decompress(packed), np.uint8, offset=16)
    coarse = [Image.fromarray(dice.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(100)]
    return {
        "fruits": list(fruits.images),
        "digits": list(digits.reshape(-1, 28, 28)[:400]),
        "noise, uniform": list(dice.integers(0, 256, (100, 100, 100, 3), np.uint8)),
        "noise, Gaussian": list(dice.normal(128, 40, (100, 100, 100, 3)).clip(0, 255).astype(np.uint8)),
        "noise, coarse": [each.resize((100, 100), Image.Resampling.BICUBIC) for each in coarse],
        "one colour": [np.full((100, 100, 3), colour, np.uint8) for colour in dice.integers(0, 256, (100, 3))],
    }


def percent(ood: OodDetector, embedding: Array) -> str:
    return f"{100 * ood.is_unlike(ood.familiarity(embedding)).mean():.1f} %"


def divided(ood: OodDetector, val: Array, test: Array) -> Array:
    """False alarms of many divisions of the same images into those that set the promise and those that measure."""
    distances = np.concatenate([ood.mahalanobis(val), ood.mahalanobis(test)])
    dice, rates = np.random.default_rng(0), []
    for _ in range(DIVISIONS):
        order = dice.permutation(len(distances))
        setting, measuring = np.sort(distances[order[: len(val)]]), distances[order[len(val) :]]
        farther = len(val) - np.searchsorted(setting, measuring, side="left")
        rates.append(float(((1 + farther) / (1 + len(val)) <= ood.false_alarms).mean()))
    return np.array(rates)


def weigh(checkpoint: vitrail.Checkpoint, folder: Path) -> None:
    """What it adds to the file."""
    path = Path(folder) / "without.safetensors"
    save(replace(checkpoint, ood=None), path)
    whole = (Path(folder) / "best.safetensors").stat().st_size
    print(f"it adds {(whole - path.stat().st_size) / 1e3:.0f} kB to a file of {whole / 1e6:.1f} MB")
    path.unlink()
    assert open_model(folder).ood == checkpoint.ood


if __name__ == "__main__":
    main()
