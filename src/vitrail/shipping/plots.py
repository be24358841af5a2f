"""Everything that was tried, accuracy against speed, as a picture."""

from __future__ import annotations

import os
from pathlib import Path

from vitrail.errors import InputError, MissingExtraError
from vitrail.shipping.optimising import Optimised

COLOURS = {"eager": "#6b7280", "packed": "#1d6fb8", "onnx": "#b45309", "openvino": "#15803d"}
MARKS = {"fp32": "o", "bf16": "s", "int8": "^"}


def check_plot(path: str | os.PathLike[str]) -> Path:
    """Refuse at once what could not be drawn later."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("plots need matplotlib: pip install 'vitrail[figures]'") from error
    place = Path(path)
    if place.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InputError(f"--plot: expected FILE.png, .svg or .pdf, got {place.name!r}")
    return place


def save_plot(found: Optimised, path: str | os.PathLike[str]) -> None:
    """Points lost against pictures a second, the fastest setting of each way; the budget's best is ringed."""
    place = check_plot(path)
    from matplotlib.figure import Figure

    best = {}
    for each in sorted(found.tried, key=lambda each: each.rate):
        best[each.way] = each
    widest = max(each.rate for each in best.values())
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    axes = figure.add_subplot()
    ordered = sorted(best.items(), key=lambda pair: pair[1].rate)
    for number, (way, each) in enumerate(ordered):
        colour, mark = COLOURS[way.runtime], MARKS[way.precision]
        axes.scatter(each.rate, -each.judged.drop.value, s=55, color=colour, marker=mark, zorder=3)
        left = each.rate > widest / 2  # names stay inside
        axes.annotate(
            str(way),
            (each.rate, -each.judged.drop.value),
            (-8 if left else 8, -14 if number % 2 else 7),  # neighbours above and below in turn
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=8,
        )
    top = found.best
    axes.scatter(top.rate, -top.judged.drop.value, s=220, facecolors="none", edgecolors="#b91c1c", zorder=2)
    axes.set_xlabel("pictures a second, from file to answer")
    axes.set_ylabel("accuracy against the checkpoint, points")
    axes.set_title(f"{top.way}: {found.speed:.2f} times the checkpoint as it is", fontsize=11)
    axes.set_xlim(0, 1.08 * widest)
    axes.margins(y=0.15)
    axes.grid(alpha=0.3)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(place, dpi=150)
    except OSError as error:
        raise InputError(f"cannot write {place}: {error.strerror}") from error
