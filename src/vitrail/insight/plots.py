"""Numbers -> plots, in the look of the other images. Pillow only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from vitrail.insight.image_sheets import FAINT, INK, PAPER, coloured, font
from vitrail.insight.occlusion import Array

BLUE, RED = (43, 111, 158), (200, 85, 61)
_GRID = (226, 222, 214)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    return [step * each for each in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


class Axes:
    """A frame with ticks; points are given in its own numbers."""

    def __init__(
        self,
        title: str,
        across: str,
        upward: str,
        x: tuple[float, float],
        y: tuple[float, float],
        size: tuple[int, int] = (760, 440),
    ) -> None:
        self.x, self.y = x, (y[0], y[1] if y[1] > y[0] else y[0] + 1)
        self.box = (84, 82, size[0] - 24, size[1] - 62)
        self.page = Image.new("RGB", size, PAPER)
        self.draw = ImageDraw.Draw(self.page)
        small = font(14)
        self.draw.text((16, 16), title, INK, font(20))
        for each in ticks(*self.x, 8):
            left, _ = self.at(each, self.y[0])
            self.draw.line((left, self.box[1], left, self.box[3]), _GRID)
            self.draw.text((left, self.box[3] + 8), f"{each:g}", FAINT, small, anchor="mt")
        for each in ticks(*self.y):
            _, top = self.at(self.x[0], each)
            self.draw.line((self.box[0], top, self.box[2], top), _GRID)
            self.draw.text((self.box[0] - 8, top), f"{each:g}", FAINT, small, anchor="rm")
        self.draw.text(((self.box[0] + self.box[2]) / 2, size[1] - 12), across, INK, small, anchor="ms")
        self.draw.text((16, self.box[1] - 8), upward, INK, small, anchor="ls")

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where on the page."""
        left, top, right, bottom = self.box
        return (
            left + (x - self.x[0]) / (self.x[1] - self.x[0]) * (right - left),
            bottom - (y - self.y[0]) / (self.y[1] - self.y[0]) * (bottom - top),
        )


def dots(rows: Array, title: str, across: str, upward: str) -> Image.Image:
    """A column of dots for every row of numbers, and a line through the means; NaN is left out."""
    axes = Axes(title, across, upward, (-0.6, len(rows) - 0.4), (0.0, float(np.nanmax(rows)) * 1.06))
    for place, row in enumerate(rows):
        for value in row[~np.isnan(row)]:
            x, y = axes.at(place, value)
            axes.draw.ellipse((x - 4, y - 4, x + 4, y + 4), outline=BLUE, width=2)
    axes.draw.line([axes.at(place, float(np.nanmean(row))) for place, row in enumerate(rows)], RED, 2)
    return axes.page


def histogram(values: Array, title: str, across: str, marks: Sequence[tuple[float, str]] = ()) -> Image.Image:
    """How many values lie where, by powers of ten upward, so that a few outliers show; marks are named lines."""
    high = max(float(values.max()), *(each for each, _ in marks), 1e-9) * 1.02
    counts, edges = np.histogram(values, bins=60, range=(0.0, high))
    top = math.log10(max(int(counts.max()), 1)) + 0.2
    axes = Axes(title, across, "patches, in powers of ten", (0.0, high), (-0.1, top))
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        if count:
            (x, y), (to_x, to_y) = axes.at(left, math.log10(count)), axes.at(right, -0.1)
            axes.draw.rectangle((x, y, max(to_x - 1, x + 1), to_y), fill=BLUE)
    for line, (value, name) in enumerate(sorted(marks)):
        x, y = axes.at(value, top)
        axes.draw.line((x, y, x, axes.box[3]), RED, 2)
        left = x + font(14).getlength(name) + 10 < axes.box[2]
        axes.draw.text((x + (6 if left else -6), y + 2 + 18 * line), name, RED, font(14), anchor="lt" if left else "rt")
    return axes.page


def cells(values: Array, title: str, rows: str, columns: str, side: int = 34) -> Image.Image:
    """A coloured cell for every number, with a scale beside it; NaN stays empty."""
    small = font(14)
    high = max(float(np.nanmax(values)), 1e-30)
    left, top = 96, 84
    width = max(left + values.shape[1] * side + 120, round(font(20).getlength(title)) + 32)
    page = Image.new("RGB", (width, top + max(values.shape[0] * side, 120) + 24), PAPER)
    draw = ImageDraw.Draw(page)
    draw.text((16, 16), title, INK, font(20))
    drawn = coloured(np.nan_to_num(values) / high).resize(
        (values.shape[1] * side, values.shape[0] * side), Image.Resampling.NEAREST
    )
    page.paste(drawn, (left, top))
    for row, column in np.argwhere(np.isnan(values)):
        draw.rectangle(
            (left + column * side, top + row * side, left + (column + 1) * side, top + (row + 1) * side), PAPER
        )
    for row in range(values.shape[0]):
        draw.text((left - 8, top + (row + 0.5) * side), f"{rows} {row}", FAINT, small, anchor="rm")
    for column in range(values.shape[1]):
        draw.text((left + (column + 0.5) * side, top - 8), f"{column}", FAINT, small, anchor="ms")
    draw.text((left, top - 26), columns, INK, small, anchor="ls")
    x = left + values.shape[1] * side + 24
    scale = coloured(np.linspace(1, 0, 100)[:, None]).resize((16, 100), Image.Resampling.NEAREST)
    page.paste(scale, (x, top))
    draw.text((x + 22, top), f"{high:.2g}", FAINT, small, anchor="lt")
    draw.text((x + 22, top + 100), "0", FAINT, small, anchor="lb")
    return page
