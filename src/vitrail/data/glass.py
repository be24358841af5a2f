"""Stained-glass windows drawn by rule: a seed -> an image with one emblem among its panes, and its class.

The built-in network `vitrail:glass` was trained on them, so that there is something true to look at from the start.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFilter

CLASSES = ("crescent", "cross", "diamond", "fish", "heart", "leaf", "star", "sun")

Point = tuple[float, float]
_LEAD = (24, 22, 26)
_PANES = (
    (28, 58, 140),
    (38, 104, 168),
    (112, 36, 96),
    (24, 110, 92),
    (150, 36, 48),
    (70, 50, 130),
    (46, 134, 120),
)
_LIGHTS = ((248, 206, 82), (244, 232, 190), (250, 170, 90), (240, 244, 250))
_SCALE = 3  # drawn larger, then reduced: smooth edges


class Window(NamedTuple):
    """An image, the number of its class, and where the emblem stands: (left, top, right, bottom)."""

    image: Image.Image
    label: int
    box: tuple[float, float, float, float]


def window(seed: int, size: int = 96, label: int | None = None) -> Window:
    """Draw the window of a seed; the same seed gives the same image."""
    dice = random.Random(seed)
    label = dice.randrange(len(CLASSES)) if label is None else label
    side = size * _SCALE
    image = Image.new("RGB", (side, side), _LEAD)
    draw = ImageDraw.Draw(image)
    _draw_panes(draw, dice, side)
    radius = side * dice.uniform(0.13, 0.2)
    centre = (
        dice.uniform(radius * 1.3, side - radius * 1.3),
        dice.uniform(radius * 1.3, side - radius * 1.3),
    )
    _draw_medallion(draw, dice, centre, radius, CLASSES[label])
    image = _light(image, dice).resize((size, size), Image.Resampling.LANCZOS)
    box = tuple(value / _SCALE for value in _around(centre, radius * 1.25))
    return Window(image, label, (box[0], box[1], box[2], box[3]))


def _draw_panes(draw: ImageDraw.ImageDraw, dice: random.Random, side: int) -> None:
    """A net of uneven quadrilaterals, each of one colour, with lead between them."""
    rows, columns = dice.randint(5, 8), dice.randint(5, 8)
    shake = 0.28

    def knot(row: int, column: int) -> Point:
        move_x = dice.uniform(-shake, shake) if 0 < column < columns else 0
        move_y = dice.uniform(-shake, shake) if 0 < row < rows else 0
        return (column + move_x) * side / columns, (row + move_y) * side / rows

    knots = [[knot(row, column) for column in range(columns + 1)] for row in range(rows + 1)]
    lead = max(2, round(side * dice.uniform(0.007, 0.013)))
    palette = dice.sample(_PANES, 4)
    for row in range(rows):
        for column in range(columns):
            corners = [
                knots[row][column],
                knots[row][column + 1],
                knots[row + 1][column + 1],
                knots[row + 1][column],
            ]
            tint = dice.uniform(0.75, 1.5)
            colour = tuple(min(255, round(value * tint)) for value in dice.choice(palette))
            draw.polygon(corners, fill=colour, outline=_LEAD, width=lead)


def _draw_medallion(draw: ImageDraw.ImageDraw, dice: random.Random, centre: Point, radius: float, emblem: str) -> None:
    """A round pane with the emblem in a light colour, turned a little."""
    field = tuple(round(value * dice.uniform(0.45, 0.8)) for value in dice.choice(_PANES))
    draw.ellipse(_around(centre, radius * 1.25), fill=field, outline=_LEAD, width=max(3, round(radius * 0.09)))
    light = tuple(min(255, round(value * dice.uniform(0.85, 1.0))) for value in dice.choice(_LIGHTS))
    turn = dice.uniform(-0.35, 0.35)

    def place(points: list[Point]) -> list[Point]:
        cos, sin = math.cos(turn) * radius, math.sin(turn) * radius
        return [(centre[0] + x * cos - y * sin, centre[1] + x * sin + y * cos) for x, y in points]

    for outline in _EMBLEMS[emblem]():
        draw.polygon(place(outline), fill=light, outline=_LEAD, width=max(1, round(radius * 0.05)))


def _light(image: Image.Image, dice: random.Random) -> Image.Image:
    """Daylight from one side, as through real glass."""
    glow = Image.linear_gradient("L").rotate(dice.choice((0, 90, 180, 270))).resize(image.size)
    shade = Image.new("RGB", image.size, (10, 10, 24))
    mask = glow.point([round(value * 0.3) for value in range(256)])
    return Image.composite(shade, image, mask).filter(ImageFilter.GaussianBlur(_SCALE * 0.4))


def _around(centre: Point, radius: float) -> tuple[float, float, float, float]:
    return centre[0] - radius, centre[1] - radius, centre[0] + radius, centre[1] + radius


def _ring(count: int, radius: Callable[[float], float], start: float = -math.pi / 2) -> list[Point]:
    """Points around the centre, at a distance that depends on how far round they are (0 to 1)."""
    angles = [start + 2 * math.pi * index / count for index in range(count)]
    return [
        (math.cos(angle) * radius(index / count), math.sin(angle) * radius(index / count))
        for index, angle in enumerate(angles)
    ]


def _star() -> list[list[Point]]:
    return [_ring(10, lambda share: 1.0 if round(share * 10) % 2 == 0 else 0.42)]


def _sun() -> list[list[Point]]:
    return [_ring(24, lambda share: 1.0 if round(share * 24) % 2 == 0 else 0.68), _ring(40, lambda _: 0.5)]


def _diamond() -> list[list[Point]]:
    return [[(0, -1), (0.66, 0), (0, 1), (-0.66, 0)]]


def _cross() -> list[list[Point]]:
    arm = 0.3
    corner = [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm)]
    return [corner + [(-x, -y) for x, y in corner]]


def _crescent() -> list[list[Point]]:
    outer = [(math.cos(a), math.sin(a)) for a in _angles(-2.2, 2.2, 40)]
    inner = [(-0.25 + 0.72 * math.cos(a), 0.72 * math.sin(a)) for a in _angles(2.05, -2.05, 40)]
    return [outer + inner]


def _heart() -> list[list[Point]]:
    points = [
        (
            16 * math.sin(a) ** 3 / 17,
            -(13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)) / 17,
        )
        for a in _angles(0, 2 * math.pi, 60)
    ]
    return [points]


def _leaf() -> list[list[Point]]:
    side = [(0.62 * math.sin(math.pi * share) ** 1.3, -1 + 1.7 * share) for share in (i / 30 for i in range(31))]
    stem = [(0.06, 0.66), (0.06, 1.0), (-0.06, 1.0), (-0.06, 0.66)]
    return [side + [(-x, y) for x, y in reversed(side)], stem]


def _fish() -> list[list[Point]]:
    body = [(0.75 * math.cos(a) + 0.2, 0.45 * math.sin(a)) for a in _angles(0, 2 * math.pi, 40)]
    tail = [(-0.42, 0.0), (-1.0, -0.52), (-0.82, 0.0), (-1.0, 0.52)]
    return [tail, body]


def _angles(start: float, stop: float, count: int) -> list[float]:
    return [start + (stop - start) * index / count for index in range(count + 1)]


_EMBLEMS = dict(zip(CLASSES, (_crescent, _cross, _diamond, _fish, _heart, _leaf, _star, _sun), strict=True))
