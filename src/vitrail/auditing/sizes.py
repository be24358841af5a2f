"""Sizes of images -> how they spread, which of them are odd, and how they should be brought to one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np

from vitrail.checks import check_int
from vitrail.errors import InputError
from vitrail.images.preprocess import Resize
from vitrail.types import Array

LARGEST: Final = 224  # pixels a side that are suggested: what pretrained networks were made for
SMALL: Final = 64  # below, a side is rounded to a multiple of 4 rather than 16: 28 stays 28
SQUARE: Final = 1.1  # long side to short: a centre crop cuts at most 9 % of such an image
MILD: Final = 1.4  # up to here, squashing turns a circle into an egg that is still one
ONE_SHAPE: Final = 1.1  # images within this factor of the middle aspect count as of that shape
MOST: Final = 0.95  # share of the images that "nearly all" means
ODD_SCALE: Final = 4.0  # times larger or smaller than the middle image
ODD_ASPECT: Final = 2.5  # times wider or taller
TINY: Final = 16  # pixels of the short side: nothing is to be seen on less


class HasSize(Protocol):
    """Anything with a name and a size in pixels."""

    @property
    def name(self) -> str: ...

    @property
    def height(self) -> int: ...

    @property
    def width(self) -> int: ...


class Suggestion(NamedTuple):
    """How images should reach the network: the arguments of Preprocess, and why."""

    size: tuple[int, int]  # (height, width)
    resize: Resize
    reason: str
    crop: float = 1.0  # nothing is cut beyond what the resize policy cuts


class Odd(NamedTuple):
    """An image unlike the others in size or shape."""

    name: str
    height: int
    width: int
    why: str


class Common(NamedTuple):
    """One size, and how many images have it."""

    height: int
    width: int
    images: int


class Sizes(NamedTuple):
    """How large images are."""

    names: tuple[str, ...]
    heights: Array  # (n,) int64
    widths: Array
    common: tuple[Common, ...]  # the most frequent sizes, up to eight
    distinct: int  # different sizes in all
    odd: tuple[Odd, ...]  # the oddest first
    suggestion: Suggestion

    @property
    def aspects(self) -> Array:
        """(n,): width by height."""
        return np.asarray(self.widths / self.heights)

    @property
    def shorts(self) -> Array:
        """(n,): the short side."""
        return np.minimum(self.heights, self.widths)


def measure(entries: Sequence[HasSize]) -> Sizes:
    """Everything about the sizes of images."""
    heights, widths = _sides(entries)
    counts = Counter(zip(heights.tolist(), widths.tolist(), strict=True))
    common = tuple(Common(height, width, count) for (height, width), count in counts.most_common(8))
    names = tuple(each.name for each in entries)
    return Sizes(names, heights, widths, common, len(counts), find_odd(entries), suggest(entries))


def suggest(entries: Sequence[HasSize], multiple: int | None = None) -> Suggestion:
    """How to bring these images to one size, from how their shapes spread.

    Sides are multiples of `multiple`, as patches ask for; of 16 if it is not given, of 4 under 64 pixels.
    """
    heights, widths = _sides(entries)
    if multiple is not None:
        check_int("multiple", multiple, 1, LARGEST, error=InputError)
    logs = np.log(widths / heights)
    side = float(np.sqrt(np.median(heights * widths)))  # of a square with as many pixels as the middle image
    long = np.exp(np.abs(logs))  # long side to short
    square = float((long <= SQUARE).mean())
    if square >= MOST:
        short = float(np.median(np.minimum(heights, widths)))
        reason = f"{_share(square)} of the images are square or nearly so: a centre crop cuts off next to nothing"
        return Suggestion(_frame(short, 0.0, multiple), "crop", reason)
    middle = float(np.median(logs))
    alike = float((np.abs(logs - middle) <= np.log(ONE_SHAPE)).mean())
    if alike >= MOST:
        size = _frame(side, middle, multiple)
        if abs(np.log(size[1] / size[0]) - middle) <= np.log(ONE_SHAPE):
            reason = (
                f"{_share(alike)} of the images have one shape, {np.exp(middle):.2f} times as wide as high: "
                f"a frame of that shape, {size[0]}x{size[1]} (height x width), shows them whole and hardly distorted"
            )
            return Suggestion(size, "squash", reason)
    lost = float(1 - 1 / np.median(long))
    end = float(np.quantile(long, MOST))
    if end <= MILD:
        reason = (
            f"shapes differ, but in {_share(MOST)} of the images the long side is at most {end:.2f} times the short: "
            f"squashing shows them whole, where a centre crop would cut {_share(lost)} off the median image"
        )
        return Suggestion(_frame(side, 0.0, multiple), "squash", reason)
    reason = (
        f"shapes differ widely, the long side being up to {end:.1f} times the short in {_share(MOST)} of the images: "
        "bars around them keep all of each image and its shape, where a centre crop would cut "
        f"{_share(lost)} off the median image"
    )
    return Suggestion(_frame(float(np.median(np.maximum(heights, widths))), 0.0, multiple), "pad", reason)


def find_odd(entries: Sequence[HasSize]) -> tuple[Odd, ...]:
    """Images far larger, smaller, wider or taller than the middle one, or too small to show anything."""
    heights, widths = _sides(entries)
    scales = 0.5 * np.log(heights * widths)
    shapes = np.log(widths / heights)
    scale, shape = np.median(scales), np.median(shapes)
    # Where sizes spread anyway, three times their usual spread is not odd yet.
    far_scale = max(np.log(ODD_SCALE), 3 * _spread(scales))
    far_shape = max(np.log(ODD_ASPECT), 3 * _spread(shapes))
    middle = f"{round(float(np.median(widths)))}x{round(float(np.median(heights)))}"
    odd: list[tuple[float, Odd]] = []
    for row in range(len(entries)):
        larger, wider = scales[row] - scale, shapes[row] - shape
        reasons = []
        if abs(larger) > far_scale:
            reasons.append(f"{np.exp(abs(larger)):.1f} times {'larger' if larger > 0 else 'smaller'}")
        if abs(wider) > far_shape:
            reasons.append(f"{np.exp(abs(wider)):.1f} times {'wider' if wider > 0 else 'taller'} in shape")
        small = min(heights[row], widths[row]) < TINY
        if reasons or small:
            each = entries[row]
            why = f"{' and '.join(reasons)} than the median size, {middle}" if reasons else ""
            why = "; ".join([why] * bool(why) + [f"under {TINY} pixels high or wide"] * bool(small))
            odd.append((max(abs(larger), abs(wider)), Odd(each.name, each.height, each.width, why)))
    odd.sort(key=lambda pair: -pair[0])
    return tuple(odd for _, odd in odd)


def _sides(entries: Sequence[HasSize]) -> tuple[Array, Array]:
    """Heights and widths."""
    if not entries:
        raise InputError("no images to measure: expected at least one that can be read")
    return np.array([each.height for each in entries], np.int64), np.array([each.width for each in entries], np.int64)


def _spread(values: Array) -> float:
    """What the standard deviation would be if the values were normal; a few far ones do not move it."""
    return float(1.4826 * np.median(np.abs(values - np.median(values))))


def _frame(side: float, log_aspect: float, multiple: int | None) -> tuple[int, int]:
    """(height, width) of about side x side pixels and this aspect."""
    side = min(side, float(LARGEST))
    step = multiple or (16 if side >= SMALL else 4)
    aspect = float(np.exp(abs(log_aspect)))
    # The long side follows from the short one as it was rounded: the shape matters more than the size.
    short = max(step, step * round(side / aspect**0.5 / step))
    long = max(step, step * round(short * aspect / step))
    return (short, long) if log_aspect > 0 else (long, short)


def _share(part: float) -> str:
    """A share in whole per cent, never rounded up to all."""
    return "all" if part == 1 else f"{int(100 * part)} %"
