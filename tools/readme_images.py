"""Write the images of the README and of the pages on looking inside anew: explained photos, figures of a model, and the
report of a run in Chromium.

python tools/readme_images.py FOLDER_OF_FIXTURES RUN/report.html
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import skimage
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import vitrail
from vitrail.insight import cards
from vitrail.insight.model_figures import portrait

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PHOTOS = Path(skimage.__file__).parent / "data"
LOOKED_AT = ("coffee.png", "chelsea.png", "rocket.jpg", "astronaut.png", "motorcycle_left.png", "coins.png")
WIDTH, HEIGHT = 1000, 855
PHOTO: Any = {"quality": 88, "optimize": True}


def main() -> None:
    fixtures, report = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    checkpoint = vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors")
    explained(checkpoint, "rocket.jpg", "occlusion").save(IMAGES / "readme-explain.jpg", **PHOTO)
    both = explained(checkpoint, "coffee.png", "integrated-gradients", "occlusion")
    both.save(IMAGES / "explain-coffee.jpg", **PHOTO)
    with tempfile.TemporaryDirectory() as folder:
        made = portrait(checkpoint, Path(folder), [PHOTOS / name for name in LOOKED_AT])
        for path in made.files:
            if path.suffix == ".png":
                save(Image.open(path), f"inspect-{path.name}")
    save(screenshot(report), "readme-report.png")


def explained(checkpoint: vitrail.Checkpoint, photo: str, *methods: str) -> Image.Image:
    """A photo with its maps, and what they are worth."""
    return cards.card([vitrail.explain(checkpoint, PHOTOS / photo, method) for method in methods]).convert("RGB")


def save(image: Image.Image, name: str) -> None:
    """As a PNG file of few colours."""
    image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def screenshot(page: Path) -> Image.Image:
    """The top of a page, in light mode."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    with webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver")) as browser:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        return Image.open(io.BytesIO(browser.get_screenshot_as_png()))


if __name__ == "__main__":
    main()
