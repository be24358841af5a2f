"""Shapes: depth, width, MLP width and patch size, one at a time from a middle network. (row P.12)

    python recipes/shapes.py --out results

The paper scales from 8 layers, D 1024, MLP 2048, patch 32: depth helps most, width least, smaller patches help without
more parameters. Here everything is a 16th of that, on 6,000 small images with plain patches, at equal steps.

command   OMP_NUM_THREADS=1 python recipes/shapes.py --steps 600 --seeds 1 --out results
time      283 s on one busy core
memory    0.44 GB
score     82.4 % in the middle; 84.5 with twice the depth, 85.1 with twice the width, 82.0 with twice the MLP, and, at
          so few steps, 85.6 with the largest patches and 80.8 with the smallest
"""

from __future__ import annotations

from dataclasses import replace

from study import accuracy, options, show

from vitrail.insight.cost import estimate
from vitrail.training import RECIPES
from vitrail.training.model_choice import small_network


def main() -> None:
    chosen = options(__doc__ or "", seeds=1)
    base = replace(small_network((28, 28), 1, 10), stem=None, patch_size=(7, 7), width=64, heads=2, mlp_width=128)
    variants = {
        "middle": {},
        "depth 2": {"depth": 2},
        "depth 8": {"depth": 8},
        "width 32": {"width": 32, "heads": 1},
        "width 128": {"width": 128, "heads": 4},
        "mlp 64": {"mlp_width": 64},
        "mlp 256": {"mlp_width": 256},
        "patch 14": {"patch_size": (14, 14)},
        "patch 4": {"patch_size": (4, 4)},
    }
    found = []
    for name, changes in variants.items():
        config = replace(base, **changes)  # type: ignore[arg-type]
        cost = estimate(config)
        label = f"{name} ({cost.parameters / 1000:.0f} k)"
        one = accuracy(chosen.data, config, RECIPES["scratch"].recipe, chosen.seeds, chosen.steps, label)
        found.append(one._replace(line=name, at=cost.multiply_adds / 1e6))
    title = f"Shapes: cost and test accuracy of small networks, {chosen.data}"
    show(title, found, chosen.out, across="million multiply-adds an image")


if __name__ == "__main__":
    main()
