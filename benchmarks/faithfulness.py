"""How faithful the maps of each method are: deletion and insertion on real photos, beside orders that know nothing.

    python benchmarks/faithfulness.py                     ViT-Ti/16 (ImageNet-1k) on 52 photos
    python benchmarks/faithfulness.py --photos 12 --json

Patches are covered by the image's mean colour, the most important first (deletion: lower is better), or shown on an
empty image (insertion: higher is better); what counts is the probability of the class that the network names. Means
over the photos with the 95 % interval of a bootstrap over photos; `gain` is insertion minus deletion, less that of
random orders, and `over attention` the same less that of the last block's raw attention, photo by photo.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import vitrail
from vitrail.insight.activations import asked
from vitrail.insight.faithfulness import scores_of
from vitrail.insight.methods import METHODS, Best, GradientRollout, IntegratedGradients, Rollout, named
from vitrail.insight.targets import aim_at

FIXTURES = Path(os.environ.get("VITRAIL_FIXTURES", Path(__file__).resolve().parents[2] / "shared" / "fixtures"))
SEED = 0
PHOTOS = (  # of scikit-image: photographs of things
    *("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "clock_motion.png"),
    *("hubble_deep_field.jpg", "moon.png", "motorcycle_left.png", "rocket.jpg", "retina.jpg", "page.png"),
)
VARIANTS = {
    "rollout, nothing discarded": Rollout(discard=0.0),
    "gradient-rollout, nothing discarded": GradientRollout(discard=0.0),
    "integrated-gradients": IntegratedGradients(steps=64),  # the sum need not be exact for the order of patches
}


def photos(count: int) -> list[Path]:
    """Those of scikit-image, then four of each fruit."""
    import skimage

    found = [Path(skimage.__file__).parent / "data" / name for name in PHOTOS]
    for kind in sorted((FIXTURES / "fruits360_10" / "test").iterdir()):
        found += sorted(kind.glob("*.jpg"))[:40:10]
    return found[:count]


def measure(checkpoint: vitrail.Checkpoint, paths: list[Path]) -> dict[str, Any]:
    """Deletion and insertion (photos, 2) of every method, of random orders and of the centre."""
    methods = {name: named(name) for name in METHODS if name != Best.name} | VARIANTS
    rows: dict[str, list[list[float]]] = {}
    for path in track(paths, disable=not sys.stderr.isatty(), console=Console(stderr=True)):
        pixels = torch.from_numpy(checkpoint.preprocess(path))[None]
        aims = [aim_at(None, asked(checkpoint.model, pixels).logits[0], checkpoint.classes)]
        maps = [each.attribute(checkpoint.model, pixels, aims)[0].map for each in methods.values()]
        scores, _ = scores_of(partial(asked, checkpoint.model), pixels[0], maps, aims[0], SEED)
        for name, each in zip(methods, scores, strict=True):
            rows.setdefault(name, []).append([each.deletion, each.insertion])
        rows.setdefault("random", []).append([scores[0].random_deletion, scores[0].random_insertion])
        rows.setdefault("centre", []).append([scores[0].centre_deletion, scores[0].centre_insertion])
    return {name: np.array(values) for name, values in rows.items()}


def interval(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Mean, and the 95 % interval of a bootstrap over photos."""
    dice = np.random.default_rng(SEED)
    means = values[dice.integers(0, len(values), (4000, len(values)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--checkpoint", default=str(FIXTURES / "vit_tiny_patch16_224_in1k.safetensors"))
    options.add_argument("--photos", type=int, default=52)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    paths = photos(chosen.photos)
    found = measure(vitrail.load(chosen.checkpoint), paths)
    gains = {name: values[:, 1] - values[:, 0] for name, values in found.items()}
    table = {
        name: {
            "deletion": interval(values[:, 0]),
            "insertion": interval(values[:, 1]),
            "gain": interval(gains[name] - gains["random"]),
            "over attention": interval(gains[name] - gains["attention"]),
        }
        for name, values in sorted(found.items(), key=lambda pair: -gains[pair[0]].mean())
    }
    if chosen.json:
        print(json.dumps({"photos": len(paths), "methods": table}, indent=1))
        return
    shown = Table("method", *next(iter(table.values())), title=f"{len(paths)} photos")
    for name, row in table.items():
        shown.add_row(name, *(f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in row.values()))
    Console(width=150).print(shown)


if __name__ == "__main__":
    main()
