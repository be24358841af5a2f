"""Placeholder images as web sites draw them: a few words, and perhaps a frame, on a ground of one colour."""

from __future__ import annotations

import io

from PIL import Image, ImageDraw, ImageFont

WORDS = ("No image available", "Image not found", "404", "This image is no longer available", "Photo coming soon")
SIZES = ((200, 200), (300, 200), (640, 480), (160, 120), (500, 500), (1024, 768))
COLOURS = (((255, 255, 255), (0, 0, 0)), ((238, 238, 238), (150, 150, 150)), ((40, 90, 160), (255, 255, 255)))
QUALITIES = (40, 60, 75, 90, 0)  # of JPEG; 0: as it was drawn


def placeholder(number: int, size: tuple[int, int] = (0, 0)) -> Image.Image:
    """Each number another size, other words and other colours."""
    width, height = size if size[0] else SIZES[number % len(SIZES)]
    ground, ink = COLOURS[number % len(COLOURS)]
    text = WORDS[number % len(WORDS)]
    image = Image.new("RGB", (width, height), ground)
    drawing = ImageDraw.Draw(image)
    font = ImageFont.load_default(max(10.0, 1.4 * width / (len(text) // 2 + 4)))
    drawing.text((width / 2, height / 2), text, fill=ink, font=font, anchor="mm")
    if number % 2:
        drawing.rectangle((0.4 * width, 0.1 * height, 0.6 * width, 0.25 * height), outline=ink, width=width // 100)
    return image


def saved(image: Image.Image, quality: int) -> Image.Image:
    """The image once JPEG of a quality has been over it."""
    if not quality:
        return image
    file = io.BytesIO()
    image.save(file, "jpeg", quality=quality)
    return Image.open(file).convert("RGB")
