"""What charts share: scales from values to places, round ticks, names and numbers that fit, and both axes drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from vitrail.errors import InputError
from vitrail.reporting.shapes import label, text_width


class Axis(NamedTuple):
    """What stands along one side of a chart, and how its values are shown."""

    label: str
    percent: bool = False  # shares, shown in per cent
    from_zero: bool = False
    log: bool = False
    low: float = math.inf  # shown even where no value reaches so far
    high: float = -math.inf
    ticks: tuple[float, ...] = ()  # instead of round numbers
    names: tuple[str, ...] = ()  # of the values 0, 1, 2, …, where these are no numbers but things

    def show(self, value: float) -> str:
        """A value as it is written beside the axis."""
        if self.names:
            return self.names[round(value)]
        return percent_label(value) if self.percent else tick_label(value)

    def range_of(self, values: Sequence[float]) -> tuple[float, float]:
        """The lowest and the highest value that the axis must show."""
        if self.names:
            return -0.6, len(self.names) - 0.4
        low, high = min(*values, self.low), max(*values, self.high)
        return (min(0.0, low) if self.from_zero else low), high

    def own_ticks(self) -> list[float]:
        """Ticks that do not depend on the values: those given, or one for each name."""
        return list(self.ticks) or [float(number) for number in range(len(self.names))]


class AxisScale(NamedTuple):
    """Values low..high laid on a line start..stop; a logarithmic one takes positive values."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        share = (value - low) / (high - low) if high > low else 0.5  # a single value stands in the middle
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
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def ticks_inside(low: float, high: float, most: int = 5) -> list[float]:
    """Those of the ticks that lie within low..high."""
    slack = 1e-9 * (high - low)
    return [value for value in ticks(low, high, most) if low - slack <= value <= high + slack]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten within low..high; where these are few, twice and five times each of them too."""
    if not 0 < low <= high or not math.isfinite(high):
        raise InputError(f"a logarithmic axis: expected positive numbers, the lower first, got {low} and {high}")
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{times}e{power}") for power in powers for times in (1, 2, 5)]
    shown = [value for value in every if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    tens = [value for value in shown if round(math.log10(value), 9).is_integer()]
    return tens if len(tens) >= 4 else shown or [low]


def left_margin(y_ticks: Sequence[float], show: Callable[[float], str]) -> float:
    """The room that the numbers of the y axis take."""
    return 16 + max(text_width(show(value)) for value in y_ticks)


def draw_axes(
    x: AxisScale, y: AxisScale, x_ticks: Sequence[float], y_ticks: Sequence[float], across: Axis, upward: Axis
) -> str:
    """Lines and numbers of both axes; the label of y stands above it, where it reads without turning the head."""
    parts = []
    for value in y_ticks:
        parts.append(f'<path class="grid" d="M{x.start:.1f} {y(value):.1f}H{x.stop:.1f}"/>')
        parts.append(label(upward.show(value), x.start - 7, y(value) + 4, "end"))
    for value in x_ticks:
        parts.append(f'<path class="axis" d="M{x(value):.1f} {y.start:.1f}v4"/>')
        parts.append(label(across.show(value), x(value), y.start + 18, "middle"))
    parts.append(f'<path class="axis" d="M{x.start:.1f} {y.start:.1f}H{x.stop:.1f}"/>')
    parts += [label(upward.label, 2, 10), label(across.label, x.stop, y.start + 35, "end")]
    return "".join(parts)


def tick_label(value: float) -> str:
    """A number on an axis, short."""
    if value and not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def percent_label(value: float) -> str:
    """A share on an axis."""
    return f"{100 * value:.3g} %"


def short_count(count: int) -> str:
    """A count in at most four signs: 9,999 -> 9999, 12,345 -> 12k."""
    if count < 10_000:
        return str(count)
    return f"{count // 1000}k" if count < 1_000_000 else f"{count // 1_000_000}M"
