"""What charts share: scales, round ticks, axes, legends, and words that fit."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from vitrail.errors import InputError
from vitrail.reporting.html_page import Html, printable, text

Colour = Literal["blue", "ruby", "amber", "green", "violet", "teal", "soft"]


class Scale(NamedTuple):
    """Values low..high laid on a line start..stop."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.5  # a single value stands in the middle
        return self.start + share * (self.stop - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers that span low..high, at most `most` steps apart: 1, 2 or 5 of a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)) or high < low:
        raise InputError(f"ticks: expected finite numbers, the lower first, got {low} and {high}")
    if (high - low) / most == 0:  # one value, or two too near each other to part
        low, high = (0.0, 1.0) if low == 0 else (min(0.0, 2 * low), max(0.0, 2 * low))
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def inside(low: float, high: float, most: int = 5) -> list[float]:
    """Those of the ticks that lie within low..high."""
    slack = 1e-9 * (high - low)
    return [each for each in ticks(low, high, most) if low - slack <= each <= high + slack]


def draw_axes(
    x: Scale,
    y: Scale,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    show_y: Callable[[float], str],
    x_label: str,
    y_label: str,
    show_x: Callable[[float], str] | None = None,
) -> str:
    """Lines and numbers of both axes; the label of y stands above it, where it reads without turning the head."""
    show_x = show_x or plain
    parts = [
        f'<path class="grid" d="M{x.start:.1f} {y(each):.1f}H{x.stop:.1f}"/>'
        f'<text class="tick" text-anchor="end" x="{x.start - 7:.1f}" y="{y(each) + 4:.1f}">{show_y(each)}</text>'
        for each in y_ticks
    ]
    parts += [
        f'<path class="axis" d="M{x(each):.1f} {y.start:.1f}v4"/>'
        f'<text class="tick" text-anchor="middle" x="{x(each):.1f}" y="{y.start + 18:.1f}">{show_x(each)}</text>'
        for each in x_ticks
    ]
    parts.append(
        f'<path class="axis" d="M{x.start:.1f} {y.start:.1f}H{x.stop:.1f}"/>'
        f'<text class="tick" x="2" y="10">{text(y_label)}</text>'
        f'<text class="tick" text-anchor="end" x="{x.stop:.1f}" y="{y.start + 35:.1f}">{text(x_label)}</text>'
    )
    return "".join(parts)


def draw_legend(items: Sequence[tuple[str, Colour, bool]]) -> str:
    """What each colour is: name, colour, whether its line is thin."""
    rows = "".join(
        f'<li><svg viewBox="0 0 22 10" aria-hidden="true"><path d="M1 5H21" style="stroke:var(--{colour});'
        f'stroke-width:{2 if thin else 6};stroke-opacity:{0.55 if thin else 0.85}"/></svg>{text(name)}</li>'
        for name, colour, thin in items
    )
    return f'<ul class="legend">{rows}</ul>' if rows else ""


def framed(
    title: str, words: str, width: float, height: float, drawn: Sequence[str], legend: str = "", wide: bool = False
) -> Html:
    """A drawing with its title and legend; `words` say what it shows to those who cannot see it."""
    caption = f"<figcaption>{text(title)}</figcaption>" if title else ""
    # A wide chart is shown at its own size: larger than a phone, it scrolls rather than shrinks beyond reading.
    least = 0.85 * width if width > 560 else 0.0
    size = f' style="max-width:{1.15 * width:.0f}px;min-width:{least:.0f}px"' if wide else ""
    image = (
        f'<svg class="plot" role="img" aria-label="{text(words)}" viewBox="0 0 {width:.0f} {height:.0f}"{size}>'
        f"{''.join(drawn)}</svg>"
    )
    inner = f'<div class="scroll" tabindex="0" role="region" aria-label="{text(words)}">{image}</div>'
    return Html(f'<figure class="chart{" wide" * wide}">{caption}{inner if wide else image}{legend}</figure>')


def plain(value: float) -> str:
    """A number on an axis, short."""
    if value and not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def in_percents(value: float) -> str:
    """A share on an axis."""
    return f"{100 * value:.3g} %"


def short(count: int) -> str:
    """A count in at most four signs: 9,999 -> 9999, 12,345 -> 12k."""
    if count < 10_000:
        return str(count)
    return f"{count // 1000}k" if count < 1_000_000 else f"{count // 1_000_000}M"


def cut(name: str, most: int) -> str:
    """A name on one line, cut where it is wider than so many letters."""
    line = " ".join(printable(name).split()) or "(no name)"
    if sum(map(_letters, line)) <= most:
        return line
    wide, kept = 1, ""  # the dots take one
    for sign in line:
        wide += _letters(sign)
        if wide > most:
            break
        kept += sign
    return f"{kept}…"


def room(words: str, size: float = 12.0) -> float:
    """About how wide words are in a sans-serif face."""
    return 0.6 * size * sum(map(_letters, words))


def _letters(sign: str) -> int:
    """How many letters wide a sign is."""
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
