"""Numbers -> charts as SVG inside a page: colours come from the page's style, so they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.errors import InputError
from vitrail.reporting.axes import (
    Colour,
    Scale,
    cut,
    draw_axes,
    draw_legend,
    framed,
    in_percents,
    inside,
    plain,
    room,
    short,
    ticks,
)
from vitrail.reporting.html_page import Html, number, percent, text

Array = np.ndarray[Any, Any]

_ORDER: Final[tuple[Colour, ...]] = ("blue", "ruby", "green", "amber", "violet", "teal")
_WIDTH: Final = 380.0
_NUMBERS_UP_TO: Final = 30  # classes: beyond, a cell is too small for its number
_POINTS: Final = 240  # of a line: more could not be told apart


class Series(NamedTuple):
    """One line: points (x, y); `dots` marks each point and says its value, `thin` is for noisy lines."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: Colour | None = None
    dots: bool = False
    thin: bool = False


class Bar(NamedTuple):
    """One bar with its interval, if it has one."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    colour: Colour = "blue"


def curves(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    title: str = "",
    in_percent: bool = False,
    from_zero: bool = False,
    x_in_percent: bool = False,
) -> Html:
    """Lines over a common x; gaps where a value is no number; nothing if no line has a point."""
    kept = [each._replace(points=_thinned(each.points)) for each in series]
    finite = [point for each in kept for point in each.points if math.isfinite(point[1])]
    if not finite:
        return Html()
    xs, ys = [x for x, _ in finite], [y for _, y in finite]
    y_ticks = ticks(min(0.0, *ys) if from_zero else min(ys), max(ys))
    show: Callable[[float], str] = in_percents if in_percent else plain
    left = 16 + max(room(show(each)) for each in y_ticks)
    x = Scale(min(xs), max(xs), left, _WIDTH - 20)
    y = Scale(y_ticks[0], y_ticks[-1], 196.0, 22.0)
    x_ticks = inside(min(xs), max(xs), 6)
    if not x_in_percent:  # there is no half an epoch to look for
        x_ticks = [each for each in x_ticks if each == int(each)] or x_ticks
    show_x = in_percents if x_in_percent else plain
    drawn = [draw_axes(x, y, x_ticks, y_ticks, show, x_label, y_label, show_x)]
    shown = []
    for place, each in enumerate(kept):
        if not any(math.isfinite(value) for _, value in each.points):
            continue
        colour = each.colour or _ORDER[place % len(_ORDER)]
        drawn.append(_line(each, colour, x, y, x_label, percent if in_percent else number))
        shown.append((each.name, colour, each.thin))
    words = f"{title or y_label} over {x_label}: {', '.join(name for name, _, _ in shown)}"
    return framed(title, words, _WIDTH, 236.0, drawn, draw_legend(shown) if len(shown) > 1 else "")


def reliability(bins: Iterable[tuple[float, float, int, float, float]], title: str = "") -> Html:
    """How often answers of each stated confidence are right, against the diagonal; below, how many there are.

    A bin is (low, high, count, mean confidence, accuracy).
    """
    found = [each for each in bins if each[2] > 0]
    if not found:
        return Html()
    left = 48.0
    x, y = Scale(0.0, 1.0, left, _WIDTH - 20), Scale(0.0, 1.0, 250.0, 22.0)
    fifths = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    most = max(count for _, _, count, _, _ in found)
    depth = Scale(0.0, float(most), 0.0, 34.0)
    drawn = [draw_axes(x, y, fifths, fifths, in_percents, "stated confidence", "share that is right", in_percents)]
    for low, high, count, confidence, accuracy in found:
        side, width = x(low) + 1, max(x(high) - x(low) - 2, 1.0)
        words = (
            f"{count:,} answers between {percent(low, 0)} and {percent(high, 0)}: "
            f"stated {percent(confidence)} on average, right {percent(accuracy)}"
        )
        top = y(accuracy) if math.isfinite(accuracy) else y(0)
        gap = sorted((top, y(confidence) if math.isfinite(confidence) else top))
        solid = 0.85 if count >= 10 else 0.35  # few answers say little
        drawn.append(
            f'<g class="bin"><title>{text(words)}</title>'
            f'<rect x="{side:.1f}" y="{top:.1f}" width="{width:.1f}" height="{y(0) - top:.1f}" '
            f'style="fill:var(--blue);fill-opacity:{solid}"/>'
            f'<rect x="{side:.1f}" y="{gap[0]:.1f}" width="{width:.1f}" height="{gap[1] - gap[0]:.1f}" '
            'style="fill:var(--ruby);fill-opacity:.3;stroke:var(--ruby)"/>'
            f'<rect x="{side:.1f}" y="{346 - depth(count):.1f}" width="{width:.1f}" height="{depth(count):.1f}" '
            'style="fill:var(--soft);fill-opacity:.55"/>'
            f'<text class="tick" font-size="9.5" text-anchor="middle" x="{side + width / 2:.1f}" '
            f'y="{342 - depth(count):.1f}">{short(count)}</text></g>'
        )
    drawn.append(
        f'<path d="M{x(0):.1f} {y(0):.1f}L{x(1):.1f} {y(1):.1f}" '
        'style="stroke:var(--ink);stroke-dasharray:4 4;fill:none"/>'
        f'<path class="axis" d="M{x(0):.1f} 346.5H{x(1):.1f}"/>'
        f'<text class="tick" x="{x(0):.1f}" y="362">number of answers</text>'
    )
    legend = draw_legend([("right", "blue", False), ("distance from what it stated", "ruby", False)])
    return framed(title, "Stated confidence against the share of right answers", _WIDTH, 368.0, drawn, legend)


def confusion(matrix: Array, classes: Sequence[str], normalised: bool = False, title: str = "") -> Html:
    """Rows are the truth, columns what was said: counts, or shares of each row in per cent. The diagonal is right."""
    counts = np.asarray(matrix, np.float64)
    count = len(classes)
    if counts.shape != (count, count):
        raise InputError(f"confusion: expected a matrix of {count} x {count} for {count} classes, got {counts.shape}")
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    strength = shares if normalised else counts / max(float(counts.max(initial=0.0)), 1.0)
    cell = 34.0 if count <= 12 else 27.0 if count <= _NUMBERS_UP_TO else max(3.2, 720 / count)
    every = math.ceil(12 / cell)  # the labels that fit
    names = [cut(name, 18) for name in classes]
    left = 22 + max(room(name) for name in names)
    top = 30 + 0.8 * max(room(name) for name in names)
    drawn = [
        f'<text class="tick" x="{left:.1f}" y="13">the model said</text>',
        f'<text class="tick" x="0" y="{top - 8:.1f}">truth</text>',
    ]
    for place in range(0, count, every):
        middle = (place + 0.5) * cell
        drawn.append(
            f'<text text-anchor="end" x="{left - 7:.1f}" y="{top + middle + 4:.1f}">{text(names[place])}</text>'
            f'<text transform="translate({left + middle:.1f} {top - 7:.1f}) rotate(-50)">{text(names[place])}</text>'
        )
    draw = _cells if count <= _NUMBERS_UP_TO else _small_cells
    drawn += draw(counts, shares, strength, classes, normalised, cell, left, top)
    side = count * cell
    drawn.append(f'<rect class="axis" x="{left:.1f}" y="{top:.1f}" width="{side:.1f}" height="{side:.1f}"/>')
    kind = "shares of each true class" if normalised else "numbers of images"
    right = 0.64 * room(names[-1])  # the last slanted label leans over
    width = left + side + max(right - cell / 2, 0) + 6
    return framed(title, f"Confusion of {count} classes, {kind}", width, top + side + 4, drawn, "", wide=True)


def bars(items: Sequence[Bar], x_label: str, title: str = "", in_percent: bool = True, whole: bool = True) -> Html:
    """A bar for each name, its interval as a line; `whole` shows the full range 0 to 1."""
    kept = [each for each in items if math.isfinite(each.value)]
    if not kept:
        return Html()
    show = percent if in_percent else number
    highest = max(max(each.value, each.high if math.isfinite(each.high) else each.value) for each in kept)
    steps = [0.0, 0.25, 0.5, 0.75, 1.0] if whole and highest <= 1 else ticks(0.0, max(highest, 1e-9))
    left = 14 + max(room(cut(each.name, 22)) for each in kept)
    x = Scale(0.0, steps[-1], left, _WIDTH - 62)
    bottom = 8.0 + 24 * len(kept)
    tick = in_percents if in_percent else plain
    drawn = [
        f'<path class="grid" d="M{x(each):.1f} 4V{bottom:.1f}"/>'
        f'<text class="tick" text-anchor="middle" x="{x(each):.1f}" y="{bottom + 16:.1f}">{tick(each)}</text>'
        for each in steps
    ]
    drawn.append(f'<text class="tick" text-anchor="end" x="{_WIDTH:.1f}" y="{bottom + 34:.1f}">{text(x_label)}</text>')
    for place, each in enumerate(kept):
        y = 8 + 24 * place
        between = math.isfinite(each.low) and math.isfinite(each.high)
        words = f"{each.name}: {show(each.value)}" + (f", {show(each.low)} to {show(each.high)}" if between else "")
        line = f"M{x(each.low):.1f} {y + 9}H{x(each.high):.1f}M{x(each.low):.1f} {y + 5}v8M{x(each.high):.1f} {y + 5}v8"
        drawn.append(
            f'<g class="bar"><title>{text(words)}</title>'
            f'<text text-anchor="end" x="{left - 8:.1f}" y="{y + 13}">{text(cut(each.name, 22))}</text>'
            f'<rect x="{x(0):.1f}" y="{y}" width="{max(x(each.value) - x(0), 0):.1f}" height="18" rx="2" '
            f'style="fill:var(--{each.colour});fill-opacity:.55"/>'
            + (f'<path d="{line}" style="stroke:var(--ink);stroke-width:1.4;fill:none"/>' if between else "")
            + f'<text text-anchor="end" x="{_WIDTH:.1f}" y="{y + 13}">{show(each.value)}</text></g>'
        )
    return framed(title, f"{title or x_label}: {len(kept)} bars", _WIDTH, bottom + 40, drawn)


def histogram(
    groups: Sequence[tuple[str, Sequence[float] | Array]],
    low: float,
    high: float,
    x_label: str,
    title: str = "",
    bins: int = 20,
    in_percent: bool = False,
) -> Html:
    """How many values fall into each of equal bins of low..high, groups upon each other; other values are left out."""
    edges = np.linspace(low, high, bins + 1)
    parts = [np.histogram(_finite(values), edges)[0] for _, values in groups]
    total = np.sum(parts, axis=0) if parts else np.zeros(bins, np.int64)
    if not total.any():
        return Html()
    y_ticks = [each for each in ticks(0.0, float(total.max())) if each == int(each)]
    left = 16 + max(room(plain(each)) for each in y_ticks)
    x, y = Scale(low, high, left, _WIDTH - 20), Scale(0.0, max(y_ticks[-1], float(total.max())), 196.0, 22.0)
    show = in_percents if in_percent else plain
    drawn = [draw_axes(x, y, inside(low, high), y_ticks, plain, x_label, "images", show)]
    below = np.zeros(bins, np.int64)
    colours: tuple[Colour, ...] = ("blue", "ruby", "amber")
    for place, ((name, _), counts) in enumerate(zip(groups, parts, strict=True)):
        for number_of, (count, base) in enumerate(zip(counts.tolist(), below.tolist(), strict=True)):
            if count:
                side, width = x(edges[number_of]) + 0.7, x(edges[number_of + 1]) - x(edges[number_of]) - 1.4
                words = f"{name}: {count:,} from {show(edges[number_of])} to {show(edges[number_of + 1])}"
                drawn.append(
                    f'<rect x="{side:.1f}" y="{y(base + count):.1f}" width="{width:.1f}" '
                    f'height="{y(base) - y(base + count):.1f}" style="fill:var(--{colours[place % 3]});'
                    f'fill-opacity:.75"><title>{text(words)}</title></rect>'
                )
        below += counts
    legend = draw_legend([(name, colours[place % 3], False) for place, (name, _) in enumerate(groups)])
    return framed(title, f"{title or x_label}: how many images", _WIDTH, 236.0, drawn, legend)


def strip(parts: Sequence[tuple[str, float, Colour]], words: str, title: str = "") -> Html:
    """Parts of a whole, side by side in one strip; the legend says each share."""
    total = sum(value for _, value, _ in parts if math.isfinite(value))
    if total <= 0:
        return Html()
    drawn, place, legend = [], 0.0, []
    for name, value, colour in parts:
        width = _WIDTH * value / total if math.isfinite(value) else 0.0
        label = f"{name}: {percent(value / total, 0)}"
        drawn.append(
            f'<rect x="{place:.1f}" y="2" width="{max(width - 2, 0):.1f}" height="26" rx="3" '
            f'style="fill:var(--{colour});fill-opacity:.75"><title>{text(label)}</title></rect>'
        )
        legend.append((label, colour, False))
        place += width
    return framed(title, words, _WIDTH, 30.0, drawn, draw_legend(legend))


def _cells(
    counts: Array, shares: Array, strength: Array, classes: Sequence[str], normalised: bool, *place: float
) -> list[str]:
    """A cell for every number that is not zero, with the number in it."""
    cell, left, top = place
    drawn = []
    for row, column in np.argwhere(counts > 0):
        opacity = _opacity(float(strength[row, column]))
        x, y = left + column * cell, top + row * cell
        value = f"{100 * shares[row, column]:.0f}" if normalised else short(int(counts[row, column]))
        size = 12.0 if cell > 30 else 10.5
        size = min(size, (cell - 3) / (0.62 * len(value)))
        ink = ' style="fill:var(--paper)"' if opacity > 0.72 else ""
        said = "right" if row == column else f"taken for {classes[column]}"
        words = (
            f"{classes[row]}, {said}: {int(counts[row, column]):,} of {int(counts[row].sum()):,} "
            f"({percent(float(shares[row, column]))})"
        )
        drawn.append(
            f'<g><title>{text(words)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" '
            f'height="{cell - 1:.1f}" style="fill:var(--{"blue" if row == column else "ruby"});'
            f'fill-opacity:{opacity:.2f}"/><text text-anchor="middle" font-size="{size:.1f}" '
            f'x="{x + cell / 2 - 0.5:.1f}" y="{y + cell / 2 + 0.35 * size:.1f}"'
            f"{ink}>{value}</text></g>"
        )
    return drawn


def _small_cells(
    counts: Array, shares: Array, strength: Array, classes: Sequence[str], normalised: bool, *place: float
) -> list[str]:
    """Many cells in few strokes: one path for each shade, so that 200 classes stay a small file."""
    cell, left, top = place
    shades: dict[tuple[str, int], list[str]] = {}
    for row, column in np.argwhere(counts > 0):
        shade = round(8 * _opacity(float(strength[row, column])))
        colour = "blue" if row == column else "ruby"
        side = f"{cell:.2f}"
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


def _line(series: Series, colour: Colour, x: Scale, y: Scale, x_label: str, show: Callable[[float | None], str]) -> str:
    """One line, lifted where there is no number, and its points."""
    path, down = [], False
    for at, value in series.points:
        if math.isfinite(value):
            path.append(f"{'L' if down else 'M'}{x(at):.1f} {y(value):.1f}")
        down = math.isfinite(value)
    width, opacity = (1.2, 0.55) if series.thin else (2.2, 1.0)
    drawn = (
        f'<path d="{"".join(path)}" style="stroke:var(--{colour});stroke-width:{width};stroke-opacity:{opacity};'
        'fill:none;stroke-linejoin:round;stroke-linecap:round"/>'
    )
    if not series.dots:
        return drawn
    radius = 3.4 if len(series.points) <= 40 else 2.0
    points = "".join(
        f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="{radius}" style="fill:var(--{colour})">'
        f"<title>{text(series.name)}, {text(x_label)} {plain(at)}: {show(value)}</title></circle>"
        for at, value in series.points
        if math.isfinite(value)
    )
    return drawn + points


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Neighbours averaged until few enough are left; a group without a number stays a gap."""
    found = [(float(x), float(y)) for x, y in points if math.isfinite(x)]
    if len(found) <= _POINTS:
        return found
    groups = np.array_split(np.array(found), _POINTS)
    means = []
    for each in groups:
        values = each[np.isfinite(each[:, 1]), 1]
        means.append((float(each[:, 0].mean()), float(values.mean()) if len(values) else math.nan))
    return means


def _finite(values: Sequence[float] | Array) -> Array:
    array = np.asarray(values, np.float64)
    return array[np.isfinite(array)]
