"""Numbers -> charts: lines and points, bars, histograms, strips. Colours follow the light or dark of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from vitrail.reporting import axes
from vitrail.reporting.axes import Axis, AxisScale, percent_label, short_count, tick_label
from vitrail.reporting.html_page import counted, number, percent, text
from vitrail.reporting.shapes import Colour, Mark, cut_text, label, mark_shape, rect, text_width
from vitrail.reporting.svg import Chart, Key
from vitrail.types import Array

_ORDER: Final[tuple[Colour, ...]] = ("blue", "ruby", "green", "amber", "violet", "teal")
_WIDTH: Final = 380.0
FEW: Final = 10  # answers, below which their share says little
_POINTS: Final = 240  # of a line: more could not be told apart


class Series(NamedTuple):
    """One line: points (x, y); `dots` marks each point and says its value, `thin` is for noisy lines."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: Colour | None = None
    dots: bool = False
    thin: bool = False


class Point(NamedTuple):
    """A mark of its own, with a name beside it where it has one: (dx, dy) away, text to its start, middle or end."""

    x: float
    y: float
    colour: Colour = "blue"
    mark: Mark = "dot"
    filled: bool = True
    name: str = ""
    name_at: tuple[float, float] = (8.0, -6.0)
    anchor: str = "start"
    radius: float = 3.4


class Bar(NamedTuple):
    """One bar with its interval, if it has one."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    colour: Colour = "blue"


class Line(NamedTuple):
    """A dashed line across a chart at one x, with its name beside it."""

    x: float
    name: str


def curves(
    series: Sequence[Series],
    x_axis: Axis,
    y_axis: Axis,
    title: str = "",
    points: Sequence[Point] = (),
    lines: Sequence[Line] = (),
    legend: Sequence[Key] = (),
    size: tuple[float, float] = (_WIDTH, 236.0),
) -> Chart:
    """Lines and points over a common x; gaps where a value is no number; nothing if there is no number at all.

    Without a legend of its own, a chart of several lines names them.
    """
    kept = [each._replace(points=_thinned(each.points)) for each in series]
    pairs = [pair for each in kept for pair in each.points if math.isfinite(pair[1])]
    pairs += [(each.x, each.y) for each in points]
    if not pairs:
        return Chart()
    low, high = y_axis.range_of([value for _, value in pairs])
    if y_axis.percent and low == high and 0 <= low <= 1:  # one share stands among all that are possible
        low, high = 0.0, 1.0
    y_ticks = y_axis.own_ticks() or axes.ticks(low, high)
    across = x_axis.range_of([value for value, _ in pairs] + [each.x for each in lines])
    across = _with_margin(x_axis, *across) if points else across
    x = AxisScale(*across, axes.left_margin(y_ticks, y_axis.show), size[0] - 20, x_axis.log)
    y = AxisScale(min(low, y_ticks[0]), max(high, y_ticks[-1]), size[1] - 40, 22.0)
    elements = [axes.draw_axes(x, y, _x_ticks(x_axis, *across), y_ticks, x_axis, y_axis)]
    keys: list[Key] = []
    for place, each in enumerate(kept):
        colour = each.colour or _ORDER[place % len(_ORDER)]
        if any(math.isfinite(value) for _, value in each.points):
            elements.append(_line(each, colour, x, y, x_axis.label, percent if y_axis.percent else number))
            keys.append(Key(each.name, colour, "line", filled=not each.thin))
    elements += [_point(each, x(each.x), y(each.y)) for each in points]
    elements += _dashed_lines(lines, x, y)
    names = [each.name for each in (legend or keys)]
    words = f"{title or y_axis.label} over {x_axis.label}: {', '.join(names)}"
    shown = tuple(legend) or (tuple(keys) if len(keys) > 1 else ())
    return Chart(title, words, *size, tuple(elements), shown, wide=size[0] > _WIDTH)


def reliability(bins: Iterable[tuple[float, float, int, float, float]], title: str = "") -> Chart:
    """How often answers of each stated confidence are right, against the diagonal; below, how many there are.

    A bin is (low, high, count, mean confidence, accuracy).
    """
    filled = [each for each in bins if each[2] > 0]
    if not filled:
        return Chart()
    x, y = AxisScale(0.0, 1.0, 48.0, _WIDTH - 20), AxisScale(0.0, 1.0, 250.0, 22.0)
    fifths = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    depth = AxisScale(0.0, float(max(count for _, _, count, _, _ in filled)), 0.0, 34.0)
    both = Axis("stated confidence", percent=True), Axis("accuracy", percent=True)
    elements = [axes.draw_axes(x, y, fifths, fifths, *both)]
    for low, high, count, confidence, accuracy in filled:
        side, width = x(low) + 1, max(x(high) - x(low) - 2, 1.0)
        words = (
            f"{counted(count, 'answer')} between {percent(low, 0)} and {percent(high, 0)}: "
            f"stated {percent(confidence)} on average, right {percent(accuracy)}"
        )
        top = y(accuracy) if math.isfinite(accuracy) else y(0)
        gap = sorted((top, y(confidence) if math.isfinite(confidence) else top))
        solid = 0.85 if count >= FEW else 0.35  # few answers say little
        shapes = (
            rect(side, top, width, y(0) - top, f"fill:var(--blue);fill-opacity:{solid}"),
            rect(side, gap[0], width, gap[1] - gap[0], "fill:var(--ruby);fill-opacity:.3;stroke:var(--ruby)"),
            rect(side, 346 - depth(count), width, depth(count), "fill:var(--soft);fill-opacity:.55"),
            label(short_count(count), side + width / 2, 342 - depth(count), "middle", more=' font-size="9.5"'),
        )
        elements.append(f'<g class="bin"><title>{text(words)}</title>{"".join(shapes)}</g>')
    elements.append(
        f'<path d="M{x(0):.1f} {y(0):.1f}L{x(1):.1f} {y(1):.1f}" '
        'style="stroke:var(--ink);stroke-dasharray:4 4;fill:none"/>'
        f'<path class="axis" d="M{x(0):.1f} 346.5H{x(1):.1f}"/>{label("number of answers", x(0), 362)}'
    )
    legend = [Key("right", "blue"), Key("distance from what it stated", "ruby")]
    if any(count < FEW for _, _, count, _, _ in filled):
        legend.insert(1, Key(f"right, of fewer than {FEW} answers", "blue", filled=False))
    words = "Stated confidence against the share of right answers"
    return Chart(title, words, _WIDTH, 368.0, tuple(elements), tuple(legend))


def bars(items: Sequence[Bar], x_label: str, title: str = "") -> Chart:
    """A bar for each name and its share, its interval as a line; on the full range 0 to 1."""
    kept = [each for each in items if math.isfinite(each.value)]
    if not kept:
        return Chart()
    left = 14 + max(text_width(cut_text(each.name, 22)) for each in kept)
    x = AxisScale(0.0, 1.0, left, _WIDTH - 62)
    bottom = 8.0 + 24 * len(kept)
    elements = [
        f'<path class="grid" d="M{x(value):.1f} 4V{bottom:.1f}"/>'
        + label(percent_label(value), x(value), bottom + 16, "middle")
        for value in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    elements.append(label(x_label, _WIDTH, bottom + 34, "end"))
    elements += [_bar(each, 8 + 24 * row, x) for row, each in enumerate(kept)]
    return Chart(title, f"{title or x_label}: {len(kept)} bars", _WIDTH, bottom + 40, tuple(elements))


def histogram(
    groups: Sequence[tuple[str, Sequence[float] | Array]],
    x_axis: Axis,
    title: str = "",
    bins: int = 20,
    of: str = "images",
    log_counts: bool = False,
    lines: Sequence[Line] = (),
    size: tuple[float, float] = (_WIDTH, 236.0),
) -> Chart:
    """How many values fall into each of equal bins of the axis, groups upon each other; other values are left out.

    Counts by powers of ten, for a single group, show a few outliers beside many others.
    """
    edges = np.linspace(x_axis.low, x_axis.high, bins + 1)
    parts = [np.histogram(_finite(values), edges)[0] for _, values in groups]
    total = np.sum(parts, axis=0) if parts else np.zeros(bins, np.int64)
    if not total.any():
        return Chart()
    most = float(total.max())
    counted = Axis(f"{of} (logarithmic scale)" if log_counts else of, log=log_counts)
    y_ticks = axes.log_ticks(1.0, max(most, 10.0)) if log_counts else [e for e in axes.ticks(0.0, most) if e == int(e)]
    bottom = 0.8 if log_counts else 0.0  # one value is seen too
    x = AxisScale(x_axis.low, x_axis.high, axes.left_margin(y_ticks, tick_label), size[0] - 20)
    head = 38.0 if lines else 22.0  # names of lines stand above the bars
    y = AxisScale(bottom, max(y_ticks[-1], most), size[1] - 40, head, log_counts)
    elements = [axes.draw_axes(x, y, axes.ticks_inside(x_axis.low, x_axis.high), y_ticks, x_axis, counted)]
    base = np.zeros(bins, np.int64)
    colours: tuple[Colour, ...] = ("blue", "ruby", "amber")
    for (name, _), counts, colour in zip(groups, parts, colours, strict=False):
        for column in np.flatnonzero(counts).tolist():
            low, high = float(edges[column]), float(edges[column + 1])
            foot, top = y(max(float(base[column]), bottom)), y(float(base[column] + counts[column]))
            words = f"{name}: {counts[column]:,} from {x_axis.show(low)} to {x_axis.show(high)}"
            width = max(x(high) - x(low) - 1.4, 0.7)
            style = f"fill:var(--{colour});fill-opacity:.75"
            elements.append(rect(x(low) + 0.7, top, width, foot - top, style, words))
        base += counts
    elements += _dashed_lines(lines, x, y)
    legend = tuple(Key(name, colour) for (name, _), colour in zip(groups, colours, strict=False))
    words = f"{title or x_axis.label}: how many {of}"
    return Chart(title, words, *size, tuple(elements), legend if len(legend) > 1 else (), wide=size[0] > _WIDTH)


def strip(parts: Sequence[tuple[str, float, Colour]], words: str, title: str = "") -> Chart:
    """Parts of a sum, side by side in one strip; the legend says each share."""
    total = sum(value for _, value, _ in parts if math.isfinite(value))
    if total <= 0:
        return Chart()
    elements, left, legend = [], 0.0, []
    for name, value, colour in parts:
        width = _WIDTH * value / total if math.isfinite(value) else 0.0
        named = f"{name}: {percent(value / total, 0)}"
        style = f"fill:var(--{colour});fill-opacity:.75"
        elements.append(rect(left, 2, max(width - 2, 0), 26, style, named, rounded=3))
        legend.append(Key(named, colour))
        left += width
    return Chart(title, words, _WIDTH, 30.0, tuple(elements), tuple(legend))


def _x_ticks(axis: Axis, low: float, high: float) -> list[float]:
    if axis.own_ticks():
        return axis.own_ticks()
    if axis.log:
        return axes.log_ticks(low, high)
    values = axes.ticks_inside(low, high, 6) or [float(f"{low:.3g}")]  # a single value is seldom round
    if axis.percent:
        return values
    return [value for value in values if value == int(value)] or values  # there is no half an epoch to look for


def _with_margin(axis: Axis, low: float, high: float) -> tuple[float, float]:
    """A little more at both ends, so that no point stands on the numbers of the y axis."""
    if axis.log:
        margin = (high / low) ** 0.04
        return low / margin, high * margin
    margin = 0.04 * (high - low)
    return (low if axis.from_zero else low - margin), high + margin


def _line(
    series: Series, colour: Colour, x: AxisScale, y: AxisScale, x_label: str, show: Callable[[float | None], str]
) -> str:
    """One line, lifted where there is no number, and its points."""
    path, down = [], False
    for at, value in series.points:
        if math.isfinite(value):
            path.append(f"{'L' if down else 'M'}{x(at):.1f} {y(value):.1f}")
        down = math.isfinite(value)
    width, opacity = (1.2, 0.55) if series.thin else (2.2, 1.0)
    line = (
        f'<path d="{"".join(path)}" style="stroke:var(--{colour});stroke-width:{width};stroke-opacity:{opacity};'
        'fill:none;stroke-linejoin:round;stroke-linecap:round"/>'
    )
    if not series.dots:
        return line
    radius = 3.4 if len(series.points) <= 40 else 2.0
    points = "".join(
        f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="{radius}" style="fill:var(--{colour})">'
        f"<title>{text(series.name)}, {text(x_label)} {tick_label(at)}: {show(value)}</title></circle>"
        for at, value in series.points
        if math.isfinite(value)
    )
    return line + points


def _point(point: Point, x: float, y: float) -> str:
    shape = mark_shape(point.mark, x, y, point.colour, point.filled, point.radius)
    if not point.name:
        return shape
    return shape + label(point.name, x + point.name_at[0], y + point.name_at[1], point.anchor, "name")


def _dashed_lines(lines: Sequence[Line], x: AxisScale, y: AxisScale) -> list[str]:
    """Each from the very top to the bottom; over all of them their names, where they meet neither line nor name."""
    marks, names = [], []
    ordered = sorted(lines)
    places = [x.start, *(x(each.x) for each in ordered), x.stop]
    row, taken = 0, x.start
    for line, before, at, after in zip(ordered, places, places[1:], places[2:], strict=False):
        marks.append(
            f'<path d="M{at:.1f} 22.0V{y.start:.1f}" '
            'style="stroke:var(--ruby);stroke-width:1.6;stroke-dasharray:5 4;fill:none"/>'
        )
        wide = text_width(line.name) + 10
        left = at + wide > after and (before < at - wide or at + wide > x.stop)
        start = at - wide if left else at
        row, taken = (row + 1 if start < taken else 0), max(taken, start + wide)
        side, anchor = (-6, "end") if left else (6, "start")
        names.append(label(line.name, at + side, 34 + 16 * row, anchor, "name", ' style="fill:var(--ruby)"'))
    return marks + names


def _bar(bar: Bar, y: float, x: AxisScale) -> str:
    has_interval = math.isfinite(bar.low) and math.isfinite(bar.high)
    words, interval = f"{bar.name}: {percent(bar.value)}", ""
    if has_interval:
        words += f", {percent(bar.low)} to {percent(bar.high)}"
        low, high = x(bar.low), x(bar.high)
        ends = f"M{low:.1f} {y + 9}H{high:.1f}M{low:.1f} {y + 5}v8M{high:.1f} {y + 5}v8"
        interval = f'<path d="{ends}" style="stroke:var(--ink);stroke-width:1.4;fill:none"/>'
    name = label(cut_text(bar.name, 22), x.start - 8, y + 13, "end", "plain")
    length = max(x(bar.value) - x(0), 0)
    shape = rect(x(0), y, length, 18, f"fill:var(--{bar.colour});fill-opacity:.55", rounded=2)
    value = label(percent(bar.value), _WIDTH, y + 13, "end", "plain")
    return f'<g class="bar"><title>{text(words)}</title>{name}{shape}{interval}{value}</g>'


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Neighbours averaged until few enough are left; a group without a number stays a gap."""
    kept = [(float(x), float(y)) for x, y in points if math.isfinite(x)]
    if len(kept) <= _POINTS:
        return kept
    means = []
    for group in np.array_split(np.array(kept), _POINTS):
        values = group[np.isfinite(group[:, 1]), 1]
        means.append((float(group[:, 0].mean()), float(values.mean()) if len(values) else math.nan))
    return means


def _finite(values: Sequence[float] | Array) -> Array:
    array = np.asarray(values, np.float64)
    return array[np.isfinite(array)]
