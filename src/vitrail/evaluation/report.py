"""Report: what is known of a run or an evaluation -> one page that a person likes to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from PIL import Image

from vitrail.evaluation import sections, training_sections
from vitrail.evaluation.caveats import TRAINED
from vitrail.evaluation.comparison import Comparison, Differing
from vitrail.evaluation.results import Evaluation, Score
from vitrail.evaluation.sections import Images
from vitrail.evaluation.training_sections import DataFacts, Row
from vitrail.reporting import html_page as html
from vitrail.reporting.html_page import Cell, Html, Section, Shown, Tile, counted, percent

DIFFERING: Final = 18  # images shown of each kind
SPLITS: Final = {"train": "training image", "val": "validation image", "test": "test image"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """Plain facts; a part that is empty is not shown."""

    title: str
    command: str = ""  # that does it again
    summary: Sequence[tuple[str, object]] = ()
    history: Sequence[Row] = ()  # rows of metrics.jsonl
    per_epoch: int = 0  # steps of an epoch; 0: told by the history itself
    times: Sequence[Row] = ()  # rows of times.jsonl
    stages: Sequence[tuple[str, Score | float, str]] = ()  # method, share right, note
    evaluation: Evaluation | None = None
    validation: Evaluation | None = None
    images: Images | None = None  # of the evaluation's rows, or the validation's where there is no evaluation
    seen: Sequence[tuple[Image.Image, str]] = ()  # a batch after augmentation, with labels
    data: DataFacts | None = None
    environment: Sequence[tuple[str, object]] = ()
    notes: Sequence[str] = ()  # what was done with the images on the way
    warnings: Sequence[str] = ()


def build(report: Report) -> str:
    """The page."""
    shown = report.evaluation or report.validation
    parts = [
        _short(report),
        training_sections.stages(report.stages),
        training_sections.learning(report.history, shown.task if shown else "single-label", report.per_epoch),
    ]
    if shown is not None and len(shown):
        parts += [
            sections.classes(shown),
            sections.confusions(shown, report.images),
            sections.worst(shown, report.images),
            sections.calibration(shown),
            sections.rejection(shown),
            sections.unlike(shown),
        ]
    parts += [
        training_sections.seen(report.seen),
        training_sections.data(report.data),
        training_sections.times(report.times),
        _again(report),
    ]
    subtitle = "" if shown is None else f"{counted(len(shown), kind_of(shown))} from “{shown.source}”"
    return html.page(report.title, subtitle, [each for each in parts if each is not None])


def _told(sentence: str) -> Html:
    """What was said before the training: a warning, or advice."""
    advice = sentence.removeprefix("advice: ")
    return html.callout(advice) if advice != sentence else html.callout(sentence.removeprefix("warning: "), "warn")


def _caveat(sentence: str) -> Html:
    return html.callout(sentence, "bad" if sentence == TRAINED else "warn") if sentence else Html()


def kind_of(evaluation: Evaluation) -> str:
    """What kind of image an evaluation saw."""
    return SPLITS.get(evaluation.split, "image")


def _short(report: Report) -> Section:
    """The numbers that matter, what limits them, and what the run was."""
    body = [_told(each) for each in report.warnings]
    shown = report.evaluation or report.validation
    if shown is not None and not len(shown):
        body.append(html.callout("No image could be evaluated, so there are no scores.", "bad"))
    elif shown is not None:
        body.append(sections.headline(shown))
        body.append(_caveat(shown.caveat))
        compared = sections.commonest(shown)
        body.append(html.paragraph(compared) if compared else Html())
    body.append(html.facts(report.summary))
    body += [html.callout(each) for each in report.notes]
    known = [(f"{kind_of(each)}s", each) for each in (report.evaluation, report.validation) if each is not None]
    if any(len(each) for _, each in known):
        body.append(html.folded("All scores with their intervals", sections.all_scores(known)))
    if shown is not None and shown.skipped:
        words = f"Unreadable, so not counted: {counted(len(shown.skipped), 'image')}: "
        names = ", ".join(name for name, _ in shown.skipped[:5])
        body.append(html.callout(f"{words}{names}{' …' if len(shown.skipped) > 5 else ''}", "warn"))
    return Section("In short", "".join(body))


def _again(report: Report) -> Section | None:
    """The command, and what it ran on."""
    if not report.command and not report.environment:
        return None
    command = html.code(report.command) if report.command else ""
    what = "run" if report.history or report.environment else "evaluation"
    return Section(f"Reproduce this {what}", Html(command + html.facts(report.environment)))


def comparison_page(
    comparison: Comparison, images: Images | None = None, names: tuple[str, str] = ("A", "B"), command: str = ""
) -> str:
    """Two networks on the same images: which is better, whether that may be chance, and where they differ."""
    a, b = comparison.a, comparison.b
    parts = [_verdict(comparison, names), _classes_of_both(comparison, names)]
    kinds = [
        (f"Only {names[0]} is right", [each for each in comparison.differing if each.right_a and not each.right_b]),
        (f"Only {names[1]} is right", [each for each in comparison.differing if each.right_b and not each.right_a]),
        ("Both wrong, each in its way", [each for each in comparison.differing if not each.right_a | each.right_b]),
    ]
    parts += [_differences(title, found, names, images) for title, found in kinds if found]
    if command:
        parts.append(Section("Reproduce this comparison", html.code(command)))
    source = a.source or b.source
    subtitle = counted(len(a), kind_of(a)) + (f" from “{source}”" if source else "")
    return html.page(f"{names[0]} against {names[1]}", subtitle, parts)


def _verdict(comparison: Comparison, names: tuple[str, str]) -> Section:
    gap, count = comparison.difference, len(comparison.a)
    better = names[0] if gap.value > 0 else names[1]
    shares = [(comparison.both_right + alone) / count for alone in (comparison.only_a, comparison.only_b)]
    kind = "right" if comparison.a.task == "single-label" else "with all labels right"
    span = f"{names[0]} minus {names[1]}: between {100 * gap.low:+.1f} and {100 * gap.high:+.1f} (95 % interval)."
    body = [
        html.tiles(
            [
                *(Tile(percent(share), name, f"of images {kind}") for share, name in zip(shares, names, strict=True)),
                Tile(f"{100 * gap.value:+.1f}", "points of difference", span),
                Tile(likelihood(comparison.p_value), "p-value", "How likely so large a difference is by chance alone."),
            ]
        )
    ]
    if comparison.p_value < 0.05:
        words = f"{better} is better on images like these: so large a difference is seldom chance."
        body.append(html.callout(words, "good"))
    else:
        words = "The difference may well be chance: more images would be needed to tell which is better."
        body.append(html.callout(words, "warn"))
    body.append(_caveat(comparison.caveat))
    rows: list[list[Cell]] = [
        [f"{names[0]} right", comparison.both_right, comparison.only_a],
        [f"{names[0]} wrong", comparison.only_b, comparison.both_wrong],
    ]
    body.append(html.table(["images", f"{names[1]} right", f"{names[1]} wrong"], rows))
    scores = sections.all_scores([(names[0], comparison.a), (names[1], comparison.b)])
    body.append(html.folded("All scores with their intervals", scores))
    return Section("In short", "".join(body))


def likelihood(p_value: float) -> str:
    """A p-value in few digits."""
    return "–" if math.isnan(p_value) else "under 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _classes_of_both(comparison: Comparison, names: tuple[str, str]) -> Section:
    second = {each.name: each for each in comparison.b.per_class}
    both = [(each, second[each.name]) for each in comparison.a.per_class if each.count]
    both.sort(key=lambda pair: -abs(pair[0].f1 - pair[1].f1))
    rows: list[list[Cell]] = [
        [one.name, one.count, percent(one.f1), percent(other.f1), f"{100 * (one.f1 - other.f1):+.1f}"]
        for one, other in both
    ]
    headers = ["class", "images", f"F1 of {names[0]}", f"F1 of {names[1]}", "difference in points"]
    return Section("Class by class", html.table(headers, rows, most=30), "The largest differences first.")


def _differences(title: str, differing: Sequence[Differing], names: tuple[str, str], images: Images | None) -> Section:
    seen = dict(islice(sections.readable(images, (each.row for each in differing)), DIFFERING))
    items, rows = [], []
    for pair in differing:
        truth = sections.named(pair.truth)
        one = sections.answer(pair.predicted_a, pair.probability_a)
        other = sections.answer(pair.predicted_b, pair.probability_b)
        rows.append([pair.name, truth, one, other])
        if pair.row in seen:
            caption = f"{truth}\n{names[0]}: {one}\n{names[1]}: {other}"
            items.append(Shown(seen[pair.row], caption, "good" if pair.right_a or pair.right_b else "bad"))
    listed = html.table(["image", "truth", f"{names[0]} predicted", f"{names[1]} predicted"], rows[:200])
    more = f" The first {len(items)} are shown." if 0 < len(items) < len(differing) else ""
    body = html.gallery(items) + (html.folded("As a list", listed) if items else listed)
    return Section(title, body, f"{counted(len(differing), 'image')}; the truth in bold.{more}")
