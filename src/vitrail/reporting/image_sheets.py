"""Arrays -> images: colour map, heat map over an image, sheets of labelled tiles. Pillow only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitrail.types import Array

INK, PAPER, FAINT = (32, 30, 38), (252, 251, 248), (120, 116, 128)
# From dark to light without a turn, so that it reads in grey and for the colour-blind.
_COLOURS = np.array(
    [(10, 8, 38), (62, 16, 100), (142, 36, 108), (208, 74, 70), (246, 150, 48), (253, 240, 170)], np.float64
)


class TileSheet(NamedTuple):
    """Rows of equal tiles under a title, with names for rows and columns where given, and notes at the foot.

    `image` draws it as a file has it, `sheet_chart` as a page has it, in its light or dark.
    """

    tiles: Sequence[Sequence[Image.Image]]
    title: str
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    gap: int = 6
    notes: Sequence[str] = ()

    def image(self) -> Image.Image:
        """The sheet on light paper."""
        return sheet(*self)


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The typeface that comes with Pillow."""
    return ImageFont.load_default(size)


def normalised(values: Array) -> Array:
    """Stretch to 0..1; a constant map stays 0."""
    low, high = float(values.min()), float(values.max())
    return np.zeros(values.shape) if high <= low else (values - low) / (high - low)


def colours_of(values: Array) -> Array:
    """Values 0..1 (…) as colours (…, 3) of 8 bits."""
    steps = np.clip(values, 0, 1) * (len(_COLOURS) - 1)
    channels = [np.interp(steps, np.arange(len(_COLOURS)), _COLOURS[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def coloured(values: Array) -> Image.Image:
    """Values 0..1 (h, w) as an image."""
    return Image.fromarray(colours_of(values))


def enlarged(values: Array, size: tuple[int, int], smooth: bool = True) -> Array:
    """A map (h, w) at the size (width, height) of an image."""
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST
    return np.asarray(Image.fromarray(values.astype(np.float32)).resize(size, how))


def overlay(image: Image.Image, values: Array, smooth: bool = True) -> Image.Image:
    """A heat map (h, w) laid over its image: bright where it is high, the image dimmed where it is low."""
    return _lit(image, np.clip(enlarged(normalised(values), image.size, smooth), 0, 1))


def heat_over(
    image: Image.Image, values: Array, box: tuple[float, float, float, float], without: Array | None = None
) -> Image.Image:
    """The same where the map is of a part of the image, or of a frame around it: box (left, top, right, bottom).

    Patches `without` a say take the mean of those around them, and a small cross says so.
    """
    left, top = min(round(box[0]), image.width - 1), min(round(box[1]), image.height - 1)
    right, bottom = max(round(box[2]), left + 1), max(round(box[3]), top + 1)
    calm = values if without is None else smoothed(values, without)
    heat = np.clip(enlarged(normalised(calm), (right - left, bottom - top)), 0, 1)
    full_heat = np.zeros((image.height, image.width), np.float32)
    x, y, to_x, to_y = max(left, 0), max(top, 0), min(right, image.width), min(bottom, image.height)
    full_heat[y:to_y, x:to_x] = heat[y - top : to_y - top, x - left : to_x - left]
    lit = _lit(image, full_heat)
    if without is not None:
        high, wide = (bottom - top) / values.shape[0], (right - left) / values.shape[1]
        for row, column in np.argwhere(without):
            _cross(lit, left + (column + 0.5) * wide, top + (row + 0.5) * high, min(high, wide) / 5)
    if (x, y, to_x, to_y) == (0, 0, image.width, image.height):
        return lit
    unseen = Image.fromarray((np.asarray(lit) * 0.45).astype(np.uint8))
    unseen.paste(lit.crop((x, y, to_x, to_y)), (x, y))
    return marked(unseen, (x, y, to_x - 1, to_y - 1), PAPER, thin=True)


def smoothed(values: Array, without: Array) -> Array:
    """Values (h, w) whose marked ones are the mean of the unmarked around them."""
    if without.all():
        return np.zeros(values.shape)
    calm = values.astype(np.float64).copy()
    kept = np.where(without, np.nan, calm)
    for row, column in np.argwhere(without):
        for reach in range(1, max(values.shape)):
            near = kept[max(0, row - reach) : row + reach + 1, max(0, column - reach) : column + reach + 1]
            if not np.isnan(near).all():
                calm[row, column] = np.nanmean(near)
                break
    return calm


def crossed(image: Image.Image) -> Image.Image:
    """An image with the cross of a patch in its middle, as a legend shows it."""
    _cross(image, (image.width - 1) / 2, (image.height - 1) / 2, min(image.size) / 4)
    return image


def _cross(image: Image.Image, x: float, y: float, arm: float) -> None:
    draw = ImageDraw.Draw(image)
    for colour, width in ((INK, 3), (PAPER, 1)):
        draw.line((x - arm, y - arm, x + arm, y + arm), colour, width)
        draw.line((x - arm, y + arm, x + arm, y - arm), colour, width)


def _lit(image: Image.Image, heat: Array) -> Image.Image:
    """An image under a heat map of its own size, values 0..1."""
    base = np.asarray(image.convert("RGB"), dtype=np.float32)
    heat = heat.astype(np.float32)
    grey = base.mean(axis=-1, keepdims=True)
    dimmed = (0.5 * base + 0.5 * grey) * 0.55
    share = (0.75 * heat)[..., None]
    mixed = dimmed * (1 - share) + np.asarray(coloured(heat), dtype=np.float32) * share
    lit = mixed + base * (0.35 * heat[..., None])
    return Image.fromarray(np.clip(lit, 0, 255).round().astype(np.uint8))


def pane_tiles(image: Image.Image, grid: tuple[int, int], gap: int = 4) -> TileSheet:
    """An image cut into its patches, a tile each."""
    width, height = image.width // grid[1], image.height // grid[0]
    tiles = [
        [image.crop((x * width, y * height, (x + 1) * width, (y + 1) * height)) for x in range(grid[1])]
        for y in range(grid[0])
    ]
    return TileSheet(tiles, "The image, in patches", gap=gap)


def panes(image: Image.Image, grid: tuple[int, int], gap: int = 4) -> Image.Image:
    """The same as one image, with gaps between the patches and around them."""
    tiles = pane_tiles(image, grid, gap).tiles
    width, height = tiles[0][0].size
    sheet = Image.new("RGB", (grid[1] * (width + gap) + gap, grid[0] * (height + gap) + gap), PAPER)
    for row, patches in enumerate(tiles):
        for column, patch in enumerate(patches):
            sheet.paste(patch, (gap + column * (width + gap), gap + row * (height + gap)))
    return sheet


def marked(
    image: Image.Image, box: tuple[float, float, float, float], colour: tuple[int, int, int], thin: bool = False
) -> Image.Image:
    """An image with a frame around a box (left, top, right, bottom)."""
    image = image.convert("RGB") if image.mode != "RGB" else image.copy()
    ImageDraw.Draw(image).rectangle(box, outline=colour, width=1 if thin else max(2, image.width // 90))
    return image


def sheet(
    tiles: Sequence[Sequence[Image.Image]],
    title: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    gap: int = 6,
    notes: Sequence[str] = (),
) -> Image.Image:
    """Rows of equal tiles under a title, with names for rows and columns where given, and notes at the foot."""
    width, height = tiles[0][0].size
    large, small = font(20), font(14)
    left = 16 + (round(max(small.getlength(name) for name in rows)) + 12 if rows else 0)
    top = 52 + (24 if columns else 0)
    count = max(len(row) for row in tiles)
    page = Image.new(
        "RGB",
        (
            max(
                left + count * (width + gap) + 16,
                round(large.getlength(title)) + 32,
                *(round(small.getlength(note)) + 32 for note in notes),
            ),
            top + len(tiles) * (height + gap) + 10 + (20 * len(notes) + 8 if notes else 0),
        ),
        PAPER,
    )
    draw = ImageDraw.Draw(page)
    draw.text((16, 16), title, INK, large)
    for number, name in enumerate(columns):
        draw.text((left + number * (width + gap) + width / 2, top - 8), name, FAINT, small, anchor="ms")
    for row, images in enumerate(tiles):
        y = top + row * (height + gap)
        if rows:
            draw.text((left - 10, y + height / 2), rows[row], FAINT, small, anchor="rm")
        for column, image in enumerate(images):
            page.paste(image, (left + column * (width + gap), y))
    for number, note in enumerate(notes):
        draw.text((16, top + len(tiles) * (height + gap) + 8 + 20 * number), note, INK, small)
    return page


def captioned_sheet(tiles: Sequence[tuple[Image.Image, str]], title: str, columns: int, side: int = 168) -> Image.Image:
    """Images in rows under a title, each in a square above its own words, which may take two lines."""
    small, gap, line = font(13), 14, 17
    words = max(len(caption.split("\n")) for _, caption in tiles) * line
    rows = -(-len(tiles) // columns)
    page = Image.new("RGB", (columns * (side + gap) + gap, 48 + rows * (side + words + gap)), PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((gap, 14), title, INK, font(20))
    for number, (image, caption) in enumerate(tiles):
        left, top = gap + number % columns * (side + gap), 48 + number // columns * (side + words + gap)
        drawn = fitted(image, side)
        page.paste(drawn, (left + (side - drawn.width) // 2, top + (side - drawn.height) // 2))
        for row, part in enumerate(caption.split("\n")):
            draw.text((left + side / 2, top + side + 6 + line * row), part, INK, small, anchor="mt")
    return page


def fitted(image: Image.Image, side: int) -> Image.Image:
    """An image whose longer side has so many pixels; those of a tiny one stay square."""
    ratio = side / max(image.size)
    size = (max(1, round(image.width * ratio)), max(1, round(image.height * ratio)))
    how = Image.Resampling.NEAREST if max(image.size) <= 96 else Image.Resampling.LANCZOS
    return image.convert("RGB").resize(size, how)
