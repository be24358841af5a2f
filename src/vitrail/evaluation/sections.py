"""An evaluation -> the parts of a report: each gives a section, or nothing where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np
from PIL import Image

from vitrail.errors import ImageError
from vitrail.evaluation.intervals import wilson
from vitrail.evaluation.results import ClassScores, Evaluation, Score
from vitrail.evaluation.scoring import correct_answers, predictions_of
from vitrail.reporting import charts
from vitrail.reporting import html_page as html
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Bar, Series
from vitrail.reporting.html_page import Cell, Html, Section, Shown, Tile, counted, number, percent
from vitrail.reporting.matrix_charts import confusion
from vitrail.reporting.metric_names import METRICS, metric_name
from vitrail.reporting.svg import Chart
from vitrail.types import Array

Images = Callable[[int], Image.Image]  # the image of a row of an evaluation; ImageError where it has gone

WORST: Final = 24  # images shown of each kind: enough to see a pattern, few enough for a small file
PAIRS: Final = 6
OF_A_PAIR: Final = 3
BARS: Final = 40


def between(score: Score) -> str:
    """The interval in words."""
    if not (math.isfinite(score.low) and math.isfinite(score.high)):
        return "too few images for an interval"
    return f"between {100 * score.low:.1f} and {100 * score.high:.1f} %"


HEADLINES: Final = {  # what a score means, with its interval in words
    "top1": "Expect {} on new images like these (95 % interval).",
    "mean_ap": "How well labels are ranked; {} on new images like these (95 % interval).",
    "exact": "Every label right and none too many; {} (95 % interval).",
    "top5": "The truth is among the five most probable classes; {} (95 % interval).",
    "macro_f1": "Every class counts the same, however rare; {} (95 % interval).",
    "ece": "How far its stated confidence is from the truth (ECE); {} (95 % interval).",
}


def headline(evaluation: Evaluation) -> Html:
    """The numbers that matter, in words; without a word on new images where a caveat forbids it."""
    numbers = []
    for name, words in HEADLINES.items():
        if name in evaluation.scores:
            score = evaluation.scores[name]
            note = words.format(between(score))
            if not math.isfinite(score.low):
                note = note.replace(" (95 % interval)", "")
            if evaluation.caveat:
                note = note.replace(" on new images like these", "").removeprefix("Expect ")
                note = f"{note[0].upper()}{note[1:]}"
            numbers.append(Tile(percent(score.value), metric_name(name), note))
    return html.tiles(numbers)


def commonest(evaluation: Evaluation) -> str:
    """What a machine that never looks would reach, so that the score has a measure."""
    if evaluation.task != "single-label" or not len(evaluation):
        return ""
    counts = np.bincount(evaluation.targets.astype(np.int64), minlength=len(evaluation.classes))
    most = int(counts.argmax())
    share = counts[most] / counts.sum()
    return f"For comparison: always answering “{evaluation.classes[most]}” would be right {percent(share)} of the time."


def all_scores(evaluations: Sequence[tuple[str, Evaluation]]) -> Html:
    """Every score with its interval, one column of both for each evaluation."""
    names = [name for name in METRICS if any(name in each.scores for _, each in evaluations)]
    names += sorted({name for _, each in evaluations for name in each.scores} - set(names))
    rows: list[list[Cell]] = []
    for name in names:
        show = number if name == "loss" else percent
        cells: list[Cell] = [metric_name(name)]
        for _, each in evaluations:
            score = each.scores.get(name)
            cells += ["–", "–"] if score is None else [show(score.value), f"{show(score.low)} to {show(score.high)}"]
        rows.append(cells)
    headers = ["score", *(part for name, _ in evaluations for part in (name, "95 % interval"))]
    return html.table(headers, rows)


def weakest_first(evaluation: Evaluation) -> list[ClassScores]:
    """The classes of which there were images."""
    return sorted((each for each in evaluation.per_class if each.count), key=lambda each: each.f1)


def class_bars(evaluation: Evaluation) -> Chart:
    """F1 of each class with its interval, the weakest first."""
    known = weakest_first(evaluation)
    bars = [Bar(each.name, each.f1, *f1_interval(each)) for each in known[:BARS]]
    return charts.bars(bars, "F1", "F1 of each class" if len(known) <= BARS else "The weakest classes")


def classes(evaluation: Evaluation) -> Section | None:
    """Every class, the weakest first."""
    known = weakest_first(evaluation)
    if not known:
        return None
    several = any(scores.threshold is not None for scores in known)
    rows: list[list[Cell]] = []
    for scores in known:
        low, high = f1_interval(scores)
        row: list[Cell] = [
            scores.name,
            scores.count,
            html.meter(scores.f1),
            percent(scores.f1),
            f"{percent(low, 0)} to {percent(high, 0)}",
            percent(scores.recall),
            percent(scores.precision),
            percent(scores.average_precision),
        ]
        rows.append(row + ([number(scores.threshold)] if several else []))
    headers = ["class", "images", "", "F1", "95 % interval", "recall", "precision"]
    headers += ["average precision"] + (["minimum confidence"] if several else [])
    chart: str = html.beside(class_bars(evaluation).html, "")
    if evaluation.absent:
        chart += html.callout(f"No image of these classes was there to test: {', '.join(evaluation.absent)}.", "warn")
    body = html.table(headers, rows, most=30) + html.folded("The same as a chart", chart)
    note = (
        "The weakest first. Recall: how many of the class's images are found. Precision: how many of the answers with "
        "its name are right. F1 is high only where both are. Average precision: 100 % where every image of the class "
        "gets a higher probability for it than any other image. Few images, wide intervals."
    )
    return Section("Class by class", body, note)


def f1_interval(scores: ClassScores) -> tuple[float, float]:
    """The 95 % interval of one class's F1.

    F1 = 2q / (1 + q) rises with q = hits / (hits + misses + false alarms), a plain share: Wilson's interval serves.
    """
    hits = round(scores.recall * scores.count)
    predicted = round(hits / scores.precision) if scores.precision > 0 else 0
    share = wilson(hits, scores.count + max(predicted - hits, 0))
    return 2 * share.low / (1 + share.low), 2 * share.high / (1 + share.high)


def confusions(evaluation: Evaluation, images: Images | None) -> Section | None:
    """Which classes are taken for which, and the images on which it happens."""
    if evaluation.confusion is None:
        return None
    views = [
        ("Counts", confusion(evaluation.confusion, evaluation.classes).html),
        ("Percent of each true class", confusion(evaluation.confusion, evaluation.classes, normalised=True).html),
    ]
    matrix = html.tabs("confusion", views)
    pairs = evaluation.most_confused[:PAIRS]
    rows: list[list[Cell]] = [[each.truth, each.predicted, each.count, percent(each.share)] for each in pairs]
    listed = html.heading("Most often confused") + html.table(["truth", "taken for", "images", "of the class"], rows)
    parts = [matrix, listed if pairs else ""]
    body = html.beside(*parts) if len(evaluation.classes) <= 12 else "".join(parts)  # a larger one needs the width
    shown = [_pair(evaluation, each.truth, each.predicted, images) for each in pairs]
    note = "Each row is a true class, each column an answer: blue is right, red is wrong."
    return Section("Confusions", body + html.beside(*filter(None, shown)), note)


def _pair(evaluation: Evaluation, truth: str, predicted: str, images: Images | None) -> str:
    """The surest errors of one pair."""
    answers = predictions_of(evaluation)
    asked, given = evaluation.classes.index(truth), evaluation.classes.index(predicted)
    rows = np.flatnonzero((evaluation.targets == asked) & (answers == given))
    rows = rows[np.argsort(-evaluation.probabilities[rows, given], kind="stable")]
    items = [
        _missed(image, [truth], [predicted], float(evaluation.probabilities[row, given]), evaluation.names[row])
        for row, image in islice(readable(images, rows.tolist()), OF_A_PAIR)
    ]
    return html.heading(f"{truth}, taken for {predicted}") + html.gallery(items, "small") if items else ""


def calibration(evaluation: Evaluation) -> Section | None:
    """Whether its probabilities mean what they say."""
    chart = charts.reliability(evaluation.bins, "Stated confidence and accuracy")
    if not chart:
        return None
    parts: list[str] = [chart.html]
    if evaluation.task == "single-label":
        right, sure = right_and_sure(evaluation)
        groups = [("right", sure[right]), ("wrong", sure[~right])]
        axis = Axis("stated confidence", percent=True, low=0.0, high=1.0)
        parts.append(charts.histogram(groups, axis, "Confidence of right and wrong answers").html)
    sentences = "".join(html.paragraph(each) for each in trust(evaluation))
    note = "A calibrated model that says 80 % is right 80 % of the time: the bars reach the dashed line."
    return Section("Can its confidence be trusted?", sentences + html.beside(*parts), note)


def trust(evaluation: Evaluation) -> list[str]:
    """The calibration, in sentences."""
    sentences = []
    filled = [each for each in evaluation.bins if each.count and math.isfinite(each.confidence + each.accuracy)]
    total = sum(each.count for each in filled)
    if total:
        stated = sum(each.count * each.confidence for each in filled) / total
        true = sum(each.count * each.accuracy for each in filled) / total
        chance = wilson(round(true * total), total)  # within it, nothing can be said
        kind = "over-confident" if stated > chance.high else "too modest" if stated < chance.low else ""
        shares = f"states {percent(stated)} on average and is right {percent(true)} of the time"
        if kind:
            sentences.append(f"On the whole it is {kind}: it {shares}.")
        else:
            reach = 100 * (chance.high - true if stated > true else true - chance.low)
            with_so_many = f"With {counted(total, 'answer')}, up to {reach:.1f} points of difference may be chance."
            sentences.append(f"It {shares}. {with_so_many}")
    if "ece" in evaluation.scores:
        score = evaluation.scores["ece"]
        sentences.append(
            f"Over all levels of confidence, the two lie {100 * score.value:.1f} points apart on average "
            f"(calibration error, ECE; 95 % interval: {between(score)}). Few images make it look larger than it is."
        )
    sentences.append(tempered(evaluation.temperature))
    return sentences


def tempered(temperature: float | None) -> str:
    """What a fitted temperature did, in words."""
    if temperature is None:
        return "Its probabilities were not corrected after training."
    corrected = f"Its probabilities were corrected after training (temperature {temperature:.2f})"
    if abs(math.log(temperature)) < 0.02:
        return f"{corrected}, which changes almost nothing."
    before = "more" if temperature > 1 else "less"
    return f"{corrected}: before, it was {before} sure than it should be."


def right_and_sure(evaluation: Evaluation) -> tuple[Array, Array]:
    """For every image: whether the first answer is right, and how probable the model called it."""
    return correct_answers(evaluation), evaluation.probabilities.max(axis=1)


def rejection(evaluation: Evaluation) -> Section | None:
    """What it gains where it may decline to answer."""
    if evaluation.task != "single-label" or not len(evaluation):
        return None
    right, sure = right_and_sure(evaluation)
    order = np.argsort(-sure, kind="stable")
    counts = np.arange(1, len(order) + 1)
    shares, accuracy = counts / len(order), np.cumsum(right[order]) / counts
    least = max(len(order) // 20, 1)  # the first few swing too much to mean anything
    places = np.unique(np.linspace(least - 1, len(order) - 1, 120).round().astype(int))
    points = list(zip(shares[places].tolist(), accuracy[places].tolist(), strict=True))
    chart = charts.curves(
        [Series("accuracy of these answers", points, "green")],
        Axis("images that count, the most confident first", percent=True),
        Axis("accuracy of these answers", percent=True),
        "Accuracy where only confident answers count",
    )
    rows: list[list[Cell]] = []
    for share in (1.0, 0.95, 0.9, 0.8, 0.7, 0.5):
        last = max(round(share * len(order)), 1) - 1
        rows.append([percent(share, 0), percent(accuracy[last]), percent(sure[order[last]])])
    listed = html.table(["images that count", "accuracy", "minimum confidence"], rows)
    if evaluation.reject is None:
        note = "No minimum confidence is set, so every answer counts. The table says what setting one would bring."
        return Section("When it is not confident enough", html.beside(chart.html, listed), note)
    tried = html.tiles(
        [
            Tile(
                percent(evaluation.answered), "confident enough", "The other answers are marked “not confident enough”."
            ),
            Tile(percent(evaluation.answered_top1), "accuracy of these answers", "Of those that are confident enough."),
            Tile(
                percent(evaluation.reject),
                "minimum confidence",
                "Below, an answer is marked; vitrail predict --decline leaves it out.",
            ),
        ]
    )
    return Section(
        "When it is not confident enough",
        tried + html.beside(chart.html, listed),
        "Answers below the minimum confidence are marked, so that a person can look at them.",
    )


def unlike(evaluation: Evaluation) -> Section | None:
    """How many images it takes for unlike the training ones, beside what is promised."""
    if evaluation.unlike is None:
        return None
    share, promised, _ = evaluation.unlike
    caveat = {"val": " It was set on validation images, perhaps on these.", "train": " These it was trained on."}
    tiles = [
        Tile(
            percent(share.value), "of these images taken for unlike", f"{between(share).capitalize()} (95 % interval)."
        ),
        Tile(
            percent(promised, 0),
            "promised at most",
            "Of images like the training ones: false alarms." + caveat.get(evaluation.split, ""),
        ),
    ]
    note = "Their answers are marked as unlike anything it was trained on."
    if share.low > promised:
        note += " They are far more than promised, so these seem to be other images than those it learned from."
    return Section("Images unlike the training ones", html.tiles(tiles), note)


def worst(evaluation: Evaluation, images: Images | None) -> Section | None:
    """The errors that cost most: sure and wrong."""
    missed = evaluation.worst[:WORST]
    if not missed:
        return None
    seen = dict(readable(images, (each.row for each in missed)))
    items, rows = [], []
    for wrong in missed:
        rows.append([wrong.name, named(wrong.truth), named(wrong.predicted), percent(wrong.probability)])
        if wrong.row in seen:
            items.append(_missed(seen[wrong.row], wrong.truth, wrong.predicted, wrong.probability, wrong.name))
    listed = html.table(["image", "truth", "predicted", "with probability"], rows)
    all_seen = len(items) == len(missed)
    body = html.gallery(items) + (html.folded("The same as a list", listed) if all_seen else listed)
    note = "In bold the label given, then what was predicted. Look closely: some may be wrong labels."
    return Section("Worst errors", body, note)


def _missed(image: Image.Image, truth: Sequence[str], predicted: Sequence[str], probability: float, name: str) -> Shown:
    """An error with what it is, what was predicted, and where to find it."""
    return Shown(image, f"{named(truth)}\npredicted {answer(predicted, probability)}\n{_file(name)}", "bad")


def named(labels: Sequence[str]) -> str:
    """Labels in a row; an image of several labels may have none."""
    return ", ".join(labels) or "nothing"


def answer(labels: Sequence[str], probability: float) -> str:
    """What was predicted, and how surely."""
    return f"{named(labels)}, {percent(probability)}" if math.isfinite(probability) else named(labels)


def _file(name: str) -> str:
    """The last part of a path: its folders often only repeat the class. Images without files have numbers."""
    last = name.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1] or name
    return f"image {last}" if last.isdecimal() else last


def readable(images: Images | None, rows: Iterable[int]) -> Iterator[tuple[int, Image.Image]]:
    """Rows with their images, where these can still be read; a report is not lost for a file that has gone."""
    if images is None:
        return
    for row in rows:
        try:
            image = images(row)
        except (ImageError, OSError):
            continue
        yield row, image
