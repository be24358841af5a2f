"""Everything that was tried, accuracy against speed, as a chart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from vitrail.errors import InputError
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Point, curves
from vitrail.reporting.shapes import Colour, Mark
from vitrail.reporting.svg import Chart, Key, check_chart_path, save_chart
from vitrail.shipping.optimizer import Optimised, Way

COLOURS: Final[dict[str, Colour]] = {"eager": "soft", "packed": "blue", "onnx": "amber", "openvino": "green"}
OTHER: Final[Colour] = "violet"  # of a runtime that has no colour of its own
MARKS: Final[dict[str, Mark]] = {"fp32": "dot", "bf16": "square", "int8": "triangle"}


def check_plot(path: str | os.PathLike[str]) -> Path:
    """Refuse at once what could not be drawn later."""
    return check_chart_path(Path(path))


def save_plot(found: Optimised, path: str | os.PathLike[str]) -> None:
    """The chart as FILE.png, .svg or .pdf."""
    file = check_plot(path)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_chart(search_chart(found), file)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}") from error


def search_chart(result: Optimised) -> Chart:
    """Points lost against images a second, the fastest setting of each way; the budget's best is ringed.

    Named are those alone that nothing beats in both; colour, shape and filling say what the others are.
    """
    fastest = {each.way: each for each in sorted(result.tried, key=lambda each: each.rate)}
    widest = max(each.rate for each in fastest.values())
    points = []
    least_lost = float("inf")
    for way, tried in sorted(fastest.items(), key=lambda pair: -pair[1].rate):
        lost = tried.judged.drop.value
        point = Point(tried.rate, -lost, COLOURS.get(way.runtime, OTHER), MARKS[way.precision], not way.merging.count)
        if way == result.eager.way:  # its name stands below, apart from the others
            point = point._replace(name=str(way), name_at=(0.0, 20.0), anchor="middle")
        elif lost < least_lost:
            right = tried.rate > widest / 2  # names stay inside
            point = point._replace(
                name=str(way), name_at=(-9.0 if right else 9.0, -9.0), anchor="end" if right else "start"
            )
        least_lost = min(lost, least_lost)
        points.append(point)
    ring = Point(result.best.rate, -result.best.judged.drop.value, "ruby", filled=False, radius=9.0)
    lowest = min(each.y for each in points)
    return curves(
        [],
        Axis("images a second, from file to answer", from_zero=True, high=1.08 * widest),
        Axis("accuracy against the checkpoint, points", low=lowest - 0.5, high=0.5),
        f"{result.best.way}: {result.speed:.2f} times the checkpoint as it is",
        [*points, ring],
        legend=_legend(list(fastest)),
        size=(640.0, 360.0),
    )


def _legend(ways: list[Way]) -> list[Key]:
    """What colours, shapes and fillings mean, of those that are there."""
    keys = [Key(name, COLOURS.get(name, OTHER), "dot") for name in dict.fromkeys(way.runtime for way in ways)]
    keys += [Key(name, "ink", mark) for name, mark in MARKS.items() if any(way.precision == name for way in ways)]
    if any(way.merging.count for way in ways):
        keys.append(Key("tokens merged", "ink", "dot", filled=False))
    return keys
