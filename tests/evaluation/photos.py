"""Images that differ as photographs do, and what happens to them on the way into a data set."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Final

import numpy as np
from PIL import Image, ImageEnhance

Change = Callable[[Image.Image], Image.Image]


def photo(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """Large and small patches in muted colours, (width, height); another seed, another image."""
    dice = np.random.default_rng(seed)
    rough, fine = (
        Image.fromarray(dice.integers(20, 236, (rows, rows, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
        for rows in (6, 22)
    )
    return ImageEnhance.Color(Image.blend(rough, fine, 0.3)).enhance(0.4)


def scaled(factor: float) -> Change:
    return lambda image: image.resize(
        (round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC
    )


def jpeg(quality: int) -> Change:
    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "jpeg", quality=quality)
        return Image.open(file).convert("RGB")

    return change


def brighter(factor: float) -> Change:
    return lambda image: ImageEnhance.Brightness(image).enhance(factor)


def mirrored(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def all_at_once(image: Image.Image) -> Image.Image:
    return jpeg(75)(brighter(1.05)(scaled(0.8)(image)))


CHANGES: Final[dict[str, Change]] = {
    "jpeg 50": jpeg(50),
    "jpeg 90": jpeg(90),
    "half the size": scaled(0.5),
    "four fifths of the size": scaled(0.8),
    "double the size": scaled(2.0),
    "darker": brighter(0.85),
    "brighter": brighter(1.08),
    "mirrored": mirrored,
    "smaller, brighter and JPEG": all_at_once,
}
