"""A short recipe, a tiny network and class folders of coloured images: a training of seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.network.config import ViTConfig
from vitrail.training import Recipe

QUICK = Recipe(epochs=4, batch=8, lr=3e-3)
NETWORK = ViTConfig(image_size=16, patch_size=4, width=24, depth=2, heads=1, mlp_width=48, pool="mean", cls_token=False)


def draw(folder: Path, count: int = 20, side: int = 16) -> Path:
    """Three class folders, by the colour of the images."""
    dice = np.random.default_rng(3)
    for number, name in enumerate(("2 red", "10 green", "blue")):
        (folder / name).mkdir(parents=True)
        for row in range(count):
            pixels = dice.integers(0, 90, (side, side, 3), dtype=np.uint8)
            pixels[:, :, number] += 120
            Image.fromarray(pixels).save(folder / name / f"{row}.png")
    return folder
