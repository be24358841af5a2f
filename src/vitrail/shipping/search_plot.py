"""Everything that was tried, accuracy against speed, as an image."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vitrail.errors import InputError, MissingExtraError
from vitrail.shipping.optimizer import Optimised, Way

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
    """Points lost against images a second, the fastest setting of each way; the budget's best is ringed.

    Named are those alone that nothing beats in both; colour, shape and filling say what the others are.
    """
    place = check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    best = {}
    for each in sorted(found.tried, key=lambda each: each.rate):
        best[each.way] = each
    widest = max(each.rate for each in best.values())
    figure = Figure(figsize=(8.5, 4.8), layout="constrained")
    axes = figure.add_subplot()
    least_lost = float("inf")
    for way, each in sorted(best.items(), key=lambda pair: -pair[1].rate):
        lost = each.judged.drop.value
        filling = "none" if way.merging.count else COLOURS[way.runtime]
        look: dict[str, Any] = {
            "marker": MARKS[way.precision],
            "facecolors": filling,
            "edgecolors": COLOURS[way.runtime],
        }
        axes.scatter(each.rate, -lost, s=60, linewidths=1.6, zorder=3, **look)
        if lost >= least_lost and way != found.eager.way:
            continue
        least_lost = min(lost, least_lost)
        side = "right" if each.rate > widest / 2 else "left"  # names stay inside
        side = "center" if way == found.eager.way else side
        axes.annotate(
            str(way),
            (each.rate, -lost),
            {"right": (-8, 9), "left": (8, 9), "center": (0, -16)}[side],  # eager's below, apart from the others
            textcoords="offset points",
            ha=side,
            fontsize=8,
        )
    axes.legend(
        handles=_keys(Line2D, list(best)), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8
    )
    top = found.best
    axes.scatter(top.rate, -top.judged.drop.value, s=220, facecolors="none", edgecolors="#b91c1c", zorder=2)
    axes.set_xlabel("images a second, from file to answer")
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


def _keys(line: Any, ways: list[Way]) -> list[Any]:
    """What colours, shapes and fillings mean, of those that are there."""
    plain = {"linestyle": "", "markersize": 7, "markeredgewidth": 1.6}
    runtimes = [each for each in COLOURS if any(way.runtime == each for way in ways)]
    precisions = [each for each in MARKS if any(way.precision == each for way in ways)]
    keys = [line([], [], color=COLOURS[each], marker="o", label=each, **plain) for each in runtimes]
    keys += [line([], [], color="#111827", marker=MARKS[each], label=each, **plain) for each in precisions]
    if any(way.merging.count for way in ways):
        keys.append(line([], [], color="#111827", marker="o", markerfacecolor="none", label="tokens merged", **plain))
    return keys
