"""Tables of numbers -> charts of cells: which class is taken for which, and heat maps such as heads by blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from vitrail.errors import InputError
from vitrail.reporting.axes import short_count
from vitrail.reporting.html_page import percent, text
from vitrail.reporting.image_sheets import colours_of
from vitrail.reporting.shapes import cut_text, label, rect, text_width
from vitrail.reporting.svg import Chart
from vitrail.types import Array

_NUMBERS_UP_TO: Final = 30  # classes: beyond, a cell is too small for its number
_HEAT_CELL: Final = 24.0


def confusion(matrix: Array, classes: Sequence[str], normalised: bool = False, title: str = "") -> Chart:
    """Rows are the truth, columns the answers: counts, or shares of each row in per cent. The diagonal is right."""
    counts = np.asarray(matrix, np.float64)
    count = len(classes)
    if counts.shape != (count, count):
        raise InputError(f"confusion: expected a matrix of {count} x {count} for {count} classes, got {counts.shape}")
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    strength = shares if normalised else counts / max(float(counts.max(initial=0.0)), 1.0)
    cell = (
        min(max(34.0, 240 / count), 56.0) if count <= 12 else 27.0 if count <= _NUMBERS_UP_TO else max(3.2, 720 / count)
    )
    names = [cut_text(name, 18) for name in classes]
    longest = max(text_width(name) for name in names)
    upright = longest <= cell - 4  # short names need not lean
    left = max(22 + longest, text_width("truth") + 8)
    top = 40.0 if upright else 36 + 0.8 * longest
    elements = [label("predicted", left, 13), label("truth", 0, top - 8)]
    for number in range(0, count, math.ceil(12 / cell)):  # the labels that fit
        middle = (number + 0.5) * cell
        slanted = f' transform="translate({left + middle:.1f} {top - 7:.1f}) rotate(-50)"'
        elements.append(label(names[number], left - 7, top + middle + 4, "end", "plain"))
        if upright:
            elements.append(label(names[number], left + middle, top - 8, "middle", "plain"))
        else:
            elements.append(label(names[number], 0, 0, kind="plain", more=slanted))
    if count <= _NUMBERS_UP_TO:
        elements += _numbered_cells(counts, shares, strength, classes, normalised, cell, left, top)
    else:
        elements += _small_cells(strength, cell, left, top)
    side = count * cell
    elements.append(f'<rect class="axis" x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}"/>')
    kind = "shares of each true class" if normalised else "numbers of images"
    # A slanted label leans over to the right: with few classes the first may reach beyond the last.
    reach = max((number + 0.5) * cell + 0.66 * text_width(name) for number, name in enumerate(names))
    width = max(left + max(side, reach), left + text_width("predicted")) + 6
    words = f"Confusion of {count} classes, {kind}"
    return Chart(title, words, width, top + side + 4, tuple(elements), wide=True)


def heat_map(values: Array, title: str, row_name: str, column_name: str) -> Chart:
    """A coloured cell for every number (rows, columns) from 0 on, with a scale beside it; NaN stays empty."""
    high = max(float(np.nanmax(values)), 1e-30)
    rows, columns = values.shape
    left, top = 14 + text_width(f"{row_name} {rows - 1}"), 40.0
    elements = [label(column_name, left, 12)]
    for row in range(rows):
        elements.append(label(f"{row_name} {row}", left - 8, top + (row + 0.5) * _HEAT_CELL + 4, "end"))
    for column in range(columns):
        elements.append(label(str(column), left + (column + 0.5) * _HEAT_CELL, top - 8, "middle"))
    colours = colours_of(np.nan_to_num(values) / high)
    for row, column in np.argwhere(np.isfinite(values)).tolist():
        words = f"{row_name} {row}, {column_name} {column}: {values[row, column]:.3g}"
        x, y = left + column * _HEAT_CELL, top + row * _HEAT_CELL
        elements.append(rect(x, y, _HEAT_CELL, _HEAT_CELL, _fill(colours[row, column]), words))
    x = left + columns * _HEAT_CELL + 18
    for step, colour in enumerate(colours_of(np.linspace(1, 0, 25))):
        elements.append(rect(x, top + 4 * step, 14, 4.2, _fill(colour)))
    elements += [label(f"{high:.2g}", x + 20, top + 10), label("0", x + 20, top + 100)]
    words = f"{title}: {rows} x {columns} cells from 0 to {high:.2g}"
    height = top + max(rows * _HEAT_CELL, 104) + 4
    return Chart(title, words, x + 24 + text_width(f"{high:.2g}"), height, tuple(elements), wide=True)


def _fill(colour: Array) -> str:
    return f"fill:rgb({','.join(map(str, colour.tolist()))})"


def _numbered_cells(
    counts: Array, shares: Array, strength: Array, classes: Sequence[str], normalised: bool, *frame: float
) -> list[str]:
    """A cell for every number that is not zero, with the number in it; the frame is (side, left, top)."""
    cell, left, top = frame
    elements = []
    for row, column in np.argwhere(counts > 0):
        opacity = _opacity(float(strength[row, column]))
        x, y = left + column * cell, top + row * cell
        value = f"{100 * shares[row, column]:.0f}" if normalised else short_count(int(counts[row, column]))
        size = 12.0 if cell > 30 else 10.5
        size = min(size, (cell - 3) / (0.62 * len(value)))
        ink = ' style="fill:var(--paper)"' if opacity > 0.72 else ""
        colour = "blue" if row == column else "ruby"
        answer = "right" if row == column else f"taken for {classes[column]}"
        words = (
            f"{classes[row]}, {answer}: {int(counts[row, column]):,} of {int(counts[row].sum()):,} "
            f"({percent(float(shares[row, column]))})"
        )
        square = rect(x, y, cell - 1, cell - 1, f"fill:var(--{colour});fill-opacity:{opacity:.2f}")
        more = f' font-size="{size:.1f}"{ink}'
        number = label(value, x + cell / 2 - 0.5, y + cell / 2 + 0.35 * size, "middle", "plain", more)
        elements.append(f"<g><title>{text(words)}</title>{square}{number}</g>")
    return elements


def _small_cells(strength: Array, cell: float, left: float, top: float) -> list[str]:
    """Many cells in few strokes: one path for each shade, so that 200 classes stay a small file."""
    shades: dict[tuple[str, int], list[str]] = {}
    side = f"{cell:.2f}"
    for row, column in np.argwhere(strength > 0):
        shade = round(8 * _opacity(float(strength[row, column])))
        colour = "blue" if row == column else "ruby"
        shades.setdefault((colour, max(shade, 1)), []).append(
            f"M{left + column * cell:.1f} {top + row * cell:.1f}h{side}v{side}h-{side}z"
        )
    return [
        f'<path d="{"".join(squares)}" style="fill:var(--{colour});fill-opacity:{shade / 8:.2f}"/>'
        for (colour, shade), squares in sorted(shades.items())
    ]


def _opacity(strength: float) -> float:
    """Few errors among many right answers must be seen too: the square root lifts them."""
    return 0.1 + 0.9 * math.sqrt(min(max(strength, 0.0), 1.0))
