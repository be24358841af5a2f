"""A run's records -> the parts of a report that tell how the network came to be: methods, curves, images, time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from PIL import Image

from vitrail.checks import join_limited
from vitrail.data.samples import SPLITS, Dataset
from vitrail.evaluation.results import Score
from vitrail.reporting import charts
from vitrail.reporting import html_page as html
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Bar, Series
from vitrail.reporting.html_page import Cell, Html, Section, Shown, counted, number, percent
from vitrail.reporting.metric_names import metric_name
from vitrail.reporting.svg import Chart

Row = Mapping[str, Any]

SEEN: Final = 24  # images of a batch


class DataFacts(NamedTuple):
    """What a run was given: images of each class in each split, and files that it could not use."""

    source: str
    classes: tuple[str, ...]
    counts: Mapping[str, Sequence[int]]  # split -> images of each class
    left_out: Mapping[str, int] = {}  # why, and how many files
    skipped: Sequence[tuple[str, str]] = ()  # unreadable images: name, reason
    left_out_names: Mapping[str, Sequence[str]] = {}  # why, and the first of these files


def count_data(dataset: Dataset, skipped: Sequence[tuple[str, str]] = ()) -> DataFacts:
    """Count a dataset; images of several labels count for each of them."""
    columns = {name: number for number, name in enumerate(dataset.classes)}
    counts = {split: [0] * len(columns) for split in (*dataset.splits, "")}
    for sample in dataset.samples:
        for label in sample.labels:
            counts[sample.split][columns[label]] += 1
    if not any(counts[""]):
        del counts[""]
    left_out, names = dict(dataset.left_out), dict(dataset.left_out_names)
    return DataFacts(dataset.source, dataset.classes, counts, left_out, tuple(skipped), names)


def stages(found: Sequence[tuple[str, Score | float, str]]) -> Section | None:
    """From the simplest method to the last: what each step brought."""
    if not found:
        return None
    bars, rows = [], []
    for name, score, _ in found:
        value, low, high = score if isinstance(score, Score) else (float(score), math.nan, math.nan)
        bars.append(Bar(name, value, low, high))
        rows.append([name, percent(value), f"{percent(low)} to {percent(high)}" if math.isfinite(low) else "–"])
    chart = charts.bars(bars, "accuracy")
    listed = html.table(["method", "accuracy", "95 % interval"], rows)
    notes = html.facts([(name, note) for name, _, note in found if note])  # below: a phone has no room beside
    body = html.beside(chart.html, listed + notes)
    behind = fell_behind(bars)
    body = Html(html.callout(behind, "warn") + body) if behind else body
    return Section("Step by step", body, "What each method reached, from the simplest on. Lines are 95 % intervals.")


def fell_behind(methods: Sequence[Bar]) -> str:
    """A sentence where a simpler method did better than the last; else nothing."""
    *simpler, last = methods
    best = max(simpler, key=lambda each: each.value, default=last)
    if best.value <= last.value:
        return ""
    words = f"A simpler way did better here: {best.name} {percent(best.value)}, {last.name} {percent(last.value)}."
    if not best.low > last.high:  # the intervals overlap, or there are none
        return f"{words} That may be chance."
    return f"{words} A smaller learning rate may help, or --recipe probe, which trains only the last layer."


class LearningCharts(NamedTuple):
    """How a run went, over its epochs, or over its steps where the length of an epoch is unknown."""

    loss: Chart
    scores: Chart
    rate: Chart


def learning_charts(history: Sequence[Row], task: str = "single-label", per_epoch: float = 0.0) -> LearningCharts:
    """Loss, score and learning rate over the run; empty charts where there is no number.

    Without the number of steps in an epoch, it is taken from the epochs themselves.
    """
    epochs = [row for row in history if row.get("event") == "epoch"]
    steps = [row for row in history if row.get("event") == "step"]
    per_epoch = per_epoch or steps_per_epoch(epochs)
    end = max((value(row, "step") for row in history if math.isfinite(value(row, "step"))), default=0.0)
    across = Axis("epoch" if per_epoch else "step", low=0.0, high=end / (per_epoch or 1.0))  # the same for all three

    def line(rows: Sequence[Row], key: str) -> list[tuple[float, float]]:
        return [(value(row, "step") / (per_epoch or 1.0), value(row, key)) for row in rows if key in row]

    noisy = Series("training, step by step", line(steps, "loss"), "soft", thin=True)
    loss = charts.curves(
        [
            noisy,
            Series("training", line(epochs, "loss"), "blue", dots=True),
            Series("validation", line(epochs, "val_loss"), "ruby", dots=True),
        ],
        across,
        Axis("loss", from_zero=True),
        "Loss: lower is better",
    )
    name = score_name(task)
    measured = Series(f"validation: {name}", line(epochs, "val_score"), "ruby", dots=True)
    title = f"{name[0].upper()}{name[1:]}: higher is better"
    scores = charts.curves([measured], across, Axis(name, percent=True), title)
    rate = charts.curves([Series("learning rate", line(steps, "lr"), "amber")], across, Axis(""), "Learning rate")
    return LearningCharts(loss, scores, rate)


def score_name(task: str) -> str:
    """What the score of an epoch is, in words: `val_score` of its record."""
    return metric_name("mean_ap" if task == "multi-label" else "top1")


def learning(history: Sequence[Row], task: str = "single-label", per_epoch: float = 0.0) -> Section | None:
    """The charts of a run, and what they say."""
    body = html.beside(*(chart.html for chart in learning_charts(history, task, per_epoch) if chart))
    if not body:
        return None
    sentences = "".join(html.paragraph(each) for each in course(history, task))
    return Section("How it learned", sentences + body, "With a mouse, hover over a point to read its value.")


def course(history: Sequence[Row], task: str = "single-label") -> list[str]:
    """What the curves say, in sentences."""
    epochs = [row for row in history if row.get("event") == "epoch"]
    sentences = []
    best = [row for row in epochs if row.get("best")]
    if best:
        reached = value(best[-1], "val_score")
        score = f", with {score_name(task)} {percent(reached)} on validation images" if math.isfinite(reached) else ""
        sentences.append(f"The best epoch was {best[-1].get('epoch')} of {epochs[-1].get('epoch')}{score}; it is kept.")
    known = [row for row in epochs if math.isfinite(value(row, "val_loss"))]
    if len(known) >= 3:
        lowest, last = min(known, key=lambda row: value(row, "val_loss")), known[-1]
        if value(last, "val_loss") > 1.1 * value(lowest, "val_loss"):
            rises = f"The validation loss is lowest at epoch {lowest.get('epoch')} and rises afterwards"
            if value(last, "loss") > value(lowest, "loss"):
                sentences.append(f"{rises}, and so does the training loss: a smaller learning rate may help.")
            elif value(last, "val_loss") > value(last, "loss"):  # else images not seen are no harder than those learned
                sentences.append(
                    f"{rises}: the network begins to learn its training images by heart. More augmentation, "
                    "more images or fewer epochs may help."
                )
        elif lowest is last and value(last, "val_loss") < 0.98 * value(known[-2], "val_loss"):
            falls = "The validation loss was still falling at the end"
            if best and best[-1].get("epoch") != last.get("epoch"):
                sentences.append(f"{falls}, but {score_name(task)} rose no more: more epochs may not help.")
            else:
                sentences.append(f"{falls}: a longer run would probably do better.")
    backs = sum(row.get("event") == "rollback" for row in history)
    if backs:
        sentences.append(
            f"The run went back {counted(backs, 'time')} after a step that went wrong, and went on from there."
        )
    return sentences


def steps_per_epoch(epochs: Sequence[Row]) -> float:
    """From the first epoch that has its number: the last may be cut short. 0 where it is unknown."""
    known = [(value(row, "step"), value(row, "epoch")) for row in epochs]
    return next((step / epoch for step, epoch in known if step > 0 and epoch > 0), 0.0)


def seen(images: Sequence[tuple[Image.Image, str]]) -> Section | None:
    """A batch as the network receives it."""
    if not images:
        return None
    shown = html.gallery([Shown(image, label) for image, label in images[:SEEN]])
    note = (
        "Images of a training batch after resizing and augmentation. If you can hardly tell what they are, nor can the "
        "network."
    )
    return Section("What the network sees", shown, note)


def data(known: DataFacts | None) -> Section | None:
    """Images of each class and split, and what was left out."""
    if known is None:
        return None
    splits = [split for split in (*SPLITS, "") if split in known.counts]
    splits += sorted(set(known.counts) - set(splits))
    names = [_SPLITS.get(split, split) for split in splits]
    rows: list[list[Cell]] = [
        [name, *(int(known.counts[split][place]) for split in splits)] for place, name in enumerate(known.classes)
    ]
    rows.append(["all", *(int(sum(known.counts[split])) for split in splits)])
    parts = [html.facts([("source", known.source), ("classes", f"{len(known.classes):,}")])]
    for split, name in zip(splits, names, strict=True):
        counted = [int(each) for each in known.counts[split]]
        if min(counted, default=1) == 0 and any(counted):
            empty = [known.classes[place] for place, each in enumerate(counted) if not each]
            parts.append(html.callout(f"No {name} images of {join_limited(empty, ', ')}.", "warn"))
        elif counted and max(counted) >= 5 * min(counted):
            rare = known.classes[counted.index(min(counted))]
            words = f"Uneven: the largest class has {max(counted) / min(counted):.0f} times as many {name} images as"
            parts.append(html.callout(f"{words} the smallest, {rare}. Read the scores class by class.", "warn"))
    parts.append(html.table(["class", *names], [rows[-1], *rows[:-1]], most=31, fixed=1))
    if known.left_out:
        rows = [[why, n, join_limited(known.left_out_names.get(why, ()), ", ")] for why, n in known.left_out.items()]
        parts += [html.heading("Left out"), html.table(["why", "files", "the first of them"], rows)]
    if known.skipped:
        parts += [html.heading("Unreadable images"), html.table(["image", "why"], known.skipped, most=10)]
    return Section("The data", "".join(parts))


_SPLITS: Final = {"train": "training", "val": "validation", "test": "test", "": "without a split"}


def times(rows: Sequence[Row]) -> Section | None:
    """Where the time went, and what would help."""
    data, compute = sum(_positive(rows, "data_seconds")), sum(_positive(rows, "compute_seconds"))
    total = data + compute
    if total <= 0:
        return None
    share = data / total
    known = [("training time", duration(total))]
    if speeds := _positive(rows, "images_per_second"):
        known.append(("speed", f"{number(float(np.median(speeds)))} images a second"))
    parts = charts.strip([("reading images", data, "amber"), ("computing", compute, "blue")], "How the time was spent")
    if share > 0.3:
        words = (
            f"The processor waits for images {percent(share, 0)} of the time: more --workers, a faster disk, or "
            "images stored nearer to the size the network sees would make it faster."
        )
        advice = html.callout(words, "warn")
    else:
        little = f"only {percent(share, 0)}" if share >= 0.005 else "next to none"
        words = (
            f"Reading images takes {little} of the time: more workers would not help; a smaller "
            "--size, a smaller network or a faster machine would."
        )
        advice = html.callout(words, "good")
    return Section("Time", html.facts(known) + html.beside(parts.html, "") + advice)


def duration(seconds: float) -> str:
    """Seconds in words: 8.4 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def value(row: Row, key: str) -> float:
    """A number of a record; NaN where there is none."""
    found = row.get(key)
    return float(found) if isinstance(found, int | float) else math.nan


def _positive(rows: Sequence[Row], key: str) -> list[float]:
    """The numbers above 0 of the records that have one."""
    return [number for number in (value(row, key) for row in rows) if number > 0]
