"""Write the images of docs/insight.md anew: the real ViT-Ti/16 on photos of scikit-image.

python tools/insight_images.py FOLDER_OF_FIXTURES
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import skimage
from PIL import Image

import vitrail
from vitrail.data import read_data
from vitrail.insight import cards
from vitrail.insight.model_figures import figures_of_images, figures_of_weights, portrait
from vitrail.insight.pruning_run import batches_of
from vitrail.reporting.figure_page import write_figure_page
from vitrail.reporting.image_sheets import fitted

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PHOTOS = Path(skimage.__file__).parent / "data"
METHODS = ("relevance", "gradient-rollout", "rollout", "grad-cam", "attention")


def save(image: Image.Image, name: str) -> None:
    """Small files: few colours are enough."""
    image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def main() -> None:
    loaded = vitrail.load(Path(sys.argv[1]) / "vit_tiny_patch16_224_in1k.safetensors")
    names = ("coffee.png", "chelsea.png", "rocket.jpg", "astronaut.png", "motorcycle_left.png", "coins.png")
    photos = [PHOTOS / name for name in names]
    for name in ("coffee.png", "rocket.jpg"):
        save(
            cards.card([vitrail.explain(loaded, PHOTOS / name, each) for each in METHODS]),
            f"explain-{Path(name).stem}.png",
        )
    frames = [fitted(each, 260) for each in cards.film(loaded, photos[0])]
    cards.save_film(frames, str(IMAGES / "blocks.gif"))
    with tempfile.TemporaryDirectory() as folder:
        figures = figures_of_weights(loaded) + figures_of_images(loaded, photos, "photos")
        write_figure_page(Path(folder), "Figures", "", figures)
        for name in ("positions", "filters", "distance", "norms", "colours"):
            save(Image.open(Path(folder, f"{name}.png")), f"inspect-{name}.png")
        small, data = vitrail.load("vitrail:fashion"), read_data("vitrail:fashion")
        portrait(small, Path(folder), list(data.images[:4]), batches_of(small, data.part("train")))
        save(Image.open(Path(folder, "importance.png")), "inspect-importance.png")
    save(cards.heads_sheet(vitrail.load("vitrail:glass"), glass()), "heads.png")


def glass() -> Image.Image:
    from vitrail.data.glass import window

    return window(12, 384).image


if __name__ == "__main__":
    main()
