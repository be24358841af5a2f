"""Positions: none, 1-D, 2-D, sines and cosines, relative, rotary: how much does the kind matter? (row P.16)

    python recipes/positions.py --out results

The paper's Table 8 (B/16, ImageNet 5-shot): none 61.4, 1-D 64.2, 2-D 64.0, relative 64.0 %. Here it is a small network
on 6,000 small images; small-data numbers, named as such.

command   OMP_NUM_THREADS=1 python recipes/positions.py --steps 400 --seeds 3 --out results
time      3,094 s on one busy core
memory    0.59 GB
score     none 77.1 %; 1-D 81.1, 2-D 81.1, relative 79.1, rotary 81.7; sines and cosines 82.6 (1-D) and 82.1 (2-D)
"""

from __future__ import annotations

from dataclasses import replace

from study import accuracy, options, show

from vitrail.network.config import Positions, Rotary
from vitrail.training import RECIPES
from vitrail.training.model_choice import small_network

KINDS = {
    "none": {"positions": Positions(kind="none", prefix=False)},
    "learned, 1-D": {"positions": Positions(prefix=False)},
    "learned, 2-D": {"positions": Positions(kind="learned-2d", prefix=False)},
    "sines and cosines, 1-D": {"positions": Positions(kind="sincos-1d", prefix=False)},
    "sines and cosines, 2-D": {"positions": Positions(kind="sincos-2d", prefix=False)},
    "relative": {"positions": Positions(kind="relative", prefix=False)},
    "rotary": {"positions": Positions(kind="none", prefix=False), "rotary": Rotary()},
}


def main() -> None:
    chosen = options(__doc__ or "")
    # Without the convolutions, whose edges give the place away: patches of 4 of a 28-pixel image.
    base = replace(small_network((28, 28), 1, 10), stem=None, patch_size=(4, 4))
    recipe = RECIPES["scratch"].recipe
    found = [
        accuracy(chosen.data, replace(base, **kind), recipe, chosen.seeds, chosen.steps, name)  # type: ignore[arg-type]
        for name, kind in KINDS.items()
    ]
    show("Positions: test accuracy of a small network on vitrail:fashion", found, chosen.out)


if __name__ == "__main__":
    main()
