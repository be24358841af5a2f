"""Write the two images of the README anew: a photo that is explained, and the report of a run in Chromium.

python tools/readme_images.py FOLDER_OF_FIXTURES RUN/report.html
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import skimage
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import vitrail
from vitrail.insight import cards

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PHOTO = Path(skimage.__file__).parent / "data" / "rocket.jpg"
METHODS = ("occlusion",)
WIDTH, HEIGHT = 1000, 1000


def main() -> None:
    fixtures, report = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    checkpoint = vitrail.load(fixtures / "vit_tiny_patch16_224_in1k.safetensors")
    card = cards.card([vitrail.explain(checkpoint, PHOTO, method) for method in METHODS])
    card.convert("RGB").save(IMAGES / "readme-explain.jpg", quality=88, optimize=True)
    shot = screenshot(report).convert("RGB")
    shot.quantize(128, dither=Image.Dither.NONE).save(IMAGES / "readme-report.png", optimize=True)


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
