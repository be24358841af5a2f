"""What the studies share: train each variant with some seeds, and show the scores as a table and a plot."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data import Dataset, read_data
from vitrail.network.config import ViTConfig
from vitrail.training import Recipe, train


class Scored(NamedTuple):
    """A variant of a study, and the test accuracy of each seed."""

    name: str
    scores: list[float]
    seconds: float
    line: str = ""  # that the variant is a point of, where the study draws its scores across something
    at: float = 0.0  # where on it

    @property
    def mean(self) -> float:
        return statistics.mean(self.scores)

    @property
    def words(self) -> str:
        spread = f" ± {100 * statistics.stdev(self.scores):.1f}" if len(self.scores) > 1 else ""
        return f"{100 * self.mean:.1f}{spread}"


def options(about: str, **defaults: Any) -> argparse.Namespace:
    """The options that every study has: how much of the data, how long, how many seeds, where to write."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=defaults.get("data", "vitrail:fashion"))
    parser.add_argument("--steps", type=int, default=defaults.get("steps", 600))
    parser.add_argument("--seeds", type=int, default=defaults.get("seeds", 3))
    parser.add_argument("--out", type=Path, help="a folder for the table (JSON) and the plot (PNG)")
    return parser.parse_args()


def accuracy(
    data: Dataset | str, config: ViTConfig | None, recipe: Recipe, seeds: int, steps: int, name: str, **more: Any
) -> Scored:
    """Test accuracy of a variant, once a seed, without a validation part: every run has the same number of steps."""
    dataset = data if isinstance(data, Dataset) else read_data(data)
    started = time.monotonic()
    scores = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as place:
            run = train(
                dataset,
                model=config,
                recipe=recipe,
                steps=steps,
                val=0.0,
                seed=seed,
                out=place,
                check=False,
                report=False,
                **more,
            )
        scores.append(run.evaluation.scores["top1"].value)
    return told(Scored(name, scores, time.monotonic() - started))


def told(found: Scored) -> Scored:
    """The same, said as soon as it is known."""
    print(f"{found.name:<28} {found.words:>12} %   {found.seconds:6.0f} s", file=sys.stderr, flush=True)
    return found


def show(title: str, found: Iterable[Scored], out: Path | None, across: str = "") -> None:
    """The table on the screen; with a folder, as JSON and as a plot too, across what is named or a row a variant."""
    rows = list(found)
    print(f"\n{title}")
    for each in rows:
        print(f"  {each.name:<28} {each.words:>12} %")
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    stem = title.split(":")[0].lower().replace(" ", "-")
    (out / f"{stem}.json").write_text(json.dumps([each._asdict() for each in rows], indent=1) + "\n")
    plot(title, rows, across, out / f"{stem}.png")


def plot(title: str, rows: Sequence[Scored], across: str, path: Path) -> None:
    """A dot a seed; the means as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5 if across else 0.45 * len(rows) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    if across:
        draw_lines(axes, rows)
        axes.set(xlabel=across, ylabel="test accuracy, %")
    else:
        draw_rows(axes, rows)
        axes.set(xlabel="test accuracy, %")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=140)


def draw_rows(axes: Any, rows: Sequence[Scored]) -> None:
    """A row a variant, with a dash at its mean."""
    for place, each in enumerate(reversed(rows)):
        axes.plot([100 * score for score in each.scores], [place] * len(each.scores), "o", color="#2b6f9e", alpha=0.7)
        axes.plot([100 * each.mean] * 2, [place - 0.3, place + 0.3], color="#c8553d")
    axes.set(yticks=range(len(rows)), yticklabels=[each.name for each in reversed(rows)])


def draw_lines(axes: Any, rows: Sequence[Scored]) -> None:
    """A line of several points each, named in a legend; a point alone carries its name."""
    lines: dict[str, list[Scored]] = {}
    for each in rows:
        lines.setdefault(each.line, []).append(each)
    for (name, points), marker in zip(lines.items(), itertools.cycle("os^Dv"), strict=False):
        mean = [100 * each.mean for each in points]
        [drawn] = axes.plot([each.at for each in points], mean, marker=marker, label=name, alpha=0.85)
        for each in points:
            axes.plot(
                [each.at] * len(each.scores), [100 * score for score in each.scores], ".", color=drawn.get_color()
            )
        if len(points) == 1:
            axes.annotate(name, (points[0].at, mean[0]), (6, 4), textcoords="offset points", fontsize=9)
    if len(rows) > len(lines) > 1:
        axes.legend()
    if max(each.at for each in rows) > 10 * min(each.at for each in rows):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
    if len(lines) == len(rows):
        axes.margins(x=0.14, y=0.1)  # room for the names
    at = sorted({each.at for each in rows})
    if len(at) < 8:
        axes.set_xticks(at, [f"{each:,.0f}" for each in at], minor=False)
        axes.minorticks_off()
