"""Pool: the cls token against the mean of the patches, each at two learning rates. (rows P.16, 003.10)

    python recipes/pool.py --out results

The paper's Fig. 9: the token at 8e-4 and the mean at 3e-4 are equal, the mean at 8e-4 is poor. Here AdamW trains a
small network of plain patches on 6,000 small images; small-data numbers, named as such.

command   OMP_NUM_THREADS=1 python recipes/pool.py --steps 400 --seeds 3 --out results
time      1,760 s on one busy core
memory    0.56 GB
score     cls 70.6 % at 8e-4 and 65.0 at 3e-4, mean 68.4 and 61.5: so few steps want the higher rate for both
"""

from __future__ import annotations

from dataclasses import replace

from study import accuracy, options, show

from vitrail.network.config import Positions
from vitrail.training import RECIPES
from vitrail.training.model_choice import small_network


def main() -> None:
    chosen = options(__doc__ or "")
    plain = replace(small_network((28, 28), 1, 10), stem=None, patch_size=(4, 4))
    networks = {
        "cls": replace(plain, cls_token=True, pool="cls", positions=Positions()),
        "mean": plain,
    }
    recipe = replace(RECIPES["scratch"].recipe, optimiser="adamw")
    found = [
        accuracy(chosen.data, config, replace(recipe, lr=lr), chosen.seeds, chosen.steps, f"{name} at {lr:g}")
        for name, config in networks.items()
        for lr in (8e-4, 3e-4)
    ]
    show("Pool: test accuracy of a small network on vitrail:fashion", found, chosen.out)


if __name__ == "__main__":
    main()
