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
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Point, Series, curves
from vitrail.reporting.shapes import Colour, Mark
from vitrail.reporting.svg import Chart, Key, save_chart
from vitrail.training import Recipe, train

LOOKS: list[tuple[Mark, Colour]] = [
    *(("dot", "blue"), ("square", "ruby"), ("triangle", "green")),
    *(("dot", "amber"), ("square", "violet"), ("triangle", "teal")),
]


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
    save_chart(line_chart(title, rows, across) if across else row_chart(title, rows), path)


def row_chart(title: str, rows: Sequence[Scored]) -> Chart:
    """A row a variant, with a dash at its mean."""
    points, means = [], []
    for row, each in enumerate(reversed(rows)):
        points += [Point(100 * score, row) for score in each.scores]
        means.append(Series("mean", [(100 * each.mean, row - 0.3), (100 * each.mean, row + 0.3)], "ruby"))
    names = tuple(each.name for each in reversed(rows))
    keys = [Key("a seed", "blue", "dot"), Key("the mean", "ruby", "line")]
    size = (600.0, 30.0 * len(rows) + 80)
    return curves(means, Axis("test accuracy, %"), Axis("", names=names), title, points, legend=keys, size=size)


def line_chart(title: str, rows: Sequence[Scored], across: str) -> Chart:
    """A line of several points each, named in a legend; a point alone carries its name."""
    lines: dict[str, list[Scored]] = {}
    for each in rows:
        lines.setdefault(each.line, []).append(each)
    points, series = [], []
    for (name, variants), (mark, colour) in zip(lines.items(), itertools.cycle(LOOKS), strict=False):
        for each in variants:
            label = name if len(variants) == 1 else ""
            points += [Point(each.at, 100 * score, colour, radius=2.0) for score in each.scores]
            points.append(Point(each.at, 100 * each.mean, colour, mark, name=label, radius=4.5))
        if len(variants) > 1:
            series.append(Series(name, [(each.at, 100 * each.mean) for each in variants], colour))
    at = sorted({each.at for each in rows})
    log = at[-1] > 10 * at[0]
    room = at[-1] * (1.6 if log else 1.2) if len(lines) == len(rows) else at[-1]  # for the names
    axis = Axis(across, log=log, ticks=tuple(at) if len(at) < 8 else (), high=room)
    return curves(series, axis, Axis("test accuracy, %"), title, points, size=(640.0, 380.0))
