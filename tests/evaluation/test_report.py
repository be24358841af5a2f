"""The report: every number it shows is the evaluation's, parts without data are absent, the file stays small."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from PIL import Image

from evaluation.markup import Page, read
from evaluation.reports import CLASSES, HOSTILE, full, history, made, several, square, whole
from vitrail.errors import ImageError
from vitrail.evaluation.caveats import CHOSEN, TRAINED
from vitrail.evaluation.comparison import Comparison, comparison_of
from vitrail.evaluation.report import Report, build, comparison_page, likelihood
from vitrail.evaluation.results import Score, Unlike
from vitrail.evaluation.scoring import evaluation_of
from vitrail.evaluation.sections import f1_interval
from vitrail.evaluation.training_sections import (
    DataFacts,
)
from vitrail.reporting.html_page import percent
from vitrail.reporting.page_script import SCRIPT


def titles(page: Page) -> list[str]:
    return [each.text for each in page.all("h2")]


def test_a_whole_report_has_every_part_in_order() -> None:
    assert titles(whole()) == [
        "In short",
        "Step by step",
        "How it learned",
        "Class by class",
        "Confusions",
        "Worst errors",
        "Can its confidence be trusted?",
        "When it is not confident enough",
        "What the network sees",
        "The data",
        "Time",
        "Reproduce this run",
    ]
    assert whole().all("h1")[0].text == "flowers-3"
    assert "300 test images from “flowers”" in whole().text


def test_images_unlike_the_training_ones_are_counted_beside_the_promise() -> None:
    measured = dataclasses.replace(made(), unlike=Unlike(Score(0.052, 0.034, 0.078), 0.05))
    page = read(build(Report(title="a", evaluation=measured)))
    assert "Images unlike the training ones" in titles(page)
    assert "5.2 %of these images taken for unlike" in page.text.replace("\n", "")
    assert "Between 3.4 and 7.8 % (95 % interval)." in page.text
    assert "5 %promised at most" in page.text.replace("\n", "")
    assert "set on validation images" not in page.text
    chosen = read(build(Report(title="a", evaluation=dataclasses.replace(measured, split="val"))))
    assert "It was set on validation images, perhaps on these." in chosen.text
    assert "Images unlike the training ones" not in titles(whole())
    assert measured.unlike_words == "5.2 % (3.4 to 7.8 %); promised: at most 5 % of images like the training ones"
    assert dataclasses.replace(measured, split="val").unlike_words.endswith("ones, set on validation images")
    assert made().unlike_words == ""


@pytest.mark.parametrize("low, told", [(0.0, False), (0.049, False), (0.051, True)])
def test_more_unlike_images_than_promised_are_only_told_beyond_chance(low: float, told: bool) -> None:
    measured = dataclasses.replace(made(), unlike=Unlike(Score(0.1, low, 0.2), 0.05))
    page = read(build(Report(title="a", evaluation=measured)))
    assert ("these seem to be other images than those it learned from" in page.text) == told


def test_every_class_is_shown_the_weakest_first() -> None:
    weakest = sorted(made().per_class, key=lambda each: each.f1)
    rows = [each.text for each in whole().all("tr")]
    starts = [next(row for row in rows if row.startswith(f"{each.name}{each.count}")) for each in weakest]
    assert [rows.index(each) for each in starts] == sorted(rows.index(each) for each in starts)
    for each, row in zip(weakest, starts, strict=True):
        low, high = f1_interval(each)
        assert row == (
            f"{each.name}{each.count}{percent(each.f1)}{percent(low, 0)} to {percent(high, 0)}"
            f"{percent(each.recall)}{percent(each.precision)}{percent(each.average_precision)}"
        )


def test_the_confusion_is_shown_as_counts_and_as_shares() -> None:
    table = made().confusion
    assert table is not None
    words = [each.text for each in whole().all("title")]
    for truth in range(7):
        for said in range(7):
            if table[truth, said]:
                what = "right" if truth == said else f"taken for {CLASSES[said]}"
                share = percent(table[truth, said] / table[truth].sum())
                line = f"{CLASSES[truth]}, {what}: {table[truth, said]} of {table[truth].sum()} ({share})"
                assert words.count(line) == 2, line  # once in each of the two views
    assert [each.text for each in whole().all("label")] == ["Counts", "Percent of each true class"]


def test_confused_pairs_come_with_their_images() -> None:
    evaluation = made()
    pair = evaluation.most_confused[0]
    heading = f"{pair.truth}, taken for {pair.predicted}"
    assert heading in [each.text for each in whole().all("h3")]
    asked, given = CLASSES.index(pair.truth), CLASSES.index(pair.predicted)
    rows = np.flatnonzero((evaluation.targets == asked) & (evaluation.probabilities.argmax(1) == given))
    surest = max(rows.tolist(), key=lambda row: float(evaluation.probabilities[row, given]))
    share = percent(evaluation.probabilities[surest, given])
    words = f"{pair.truth}, predicted {pair.predicted}, {share}, {surest:04d}.png"
    assert whole().all("img")[0].attributes["alt"] == words


def test_the_worst_errors_come_with_truth_answer_and_probability() -> None:
    alts = [each.attributes["alt"] for each in whole().all("img")]
    shown = [
        f"{each.truth[0]}, predicted {each.predicted[0]}, {percent(each.probability)}, {each.name.split('/')[1]}"
        for each in made().worst[:24]
    ]
    assert [each for each in alts if ", predicted " in each][-24:] == shown
    assert made().worst[0].name in whole().text  # the whole path is in the list below


def test_parts_without_data_are_absent() -> None:
    page = read(build(Report(title="empty")))
    assert titles(page) == ["In short"]
    assert not page.all("svg", "plot")
    some = read(build(Report(title="x", history=history(), command="vitrail train x")))
    assert titles(some) == ["In short", "How it learned", "Reproduce this run"]
    assert "vitrail train x" in some.all("code")[0].text


def test_without_test_images_the_validation_is_shown_and_named() -> None:
    judged = dataclasses.replace(made(seed=3), split="val", caveat=CHOSEN)
    page = read(build(full(evaluation=None, validation=judged)))
    assert CHOSEN in [each.text for each in page.all("p", "warn")]
    assert "on new images like these" not in page.text
    assert "300 validation images from “flowers”" in page.text
    assert percent(made(seed=3).scores["top1"].value) in page.all("div", "tile")[0].text


def test_images_that_were_trained_on_say_so() -> None:
    """And nothing is expected of new ones."""
    judged = dataclasses.replace(made(), split="train", caveat=TRAINED)
    page = read(build(full(evaluation=judged, validation=None)))
    assert page.all("p", "bad")[0].text == TRAINED
    assert "on new images like these" not in page.text
    assert TRAINED not in whole().text
    assert CHOSEN not in whole().text


def test_a_comparison_by_images_that_one_has_seen_says_so() -> None:
    seen = dataclasses.replace(made(), caveat=CHOSEN)
    fair = comparison_of(made(), made(lift=0.5, seed=4))
    unfair = comparison_of(made(lift=0.5, seed=4), seen)
    assert f"B: {CHOSEN}" in [each.text for each in read(comparison_page(unfair)).all("p", "warn")]
    assert CHOSEN not in comparison_page(fair)
    assert (unfair.to_dict()["caveat"], fair.to_dict()["caveat"]) == (f"B: {CHOSEN}", None)
    assert unfair.to_dict()["b"]["caveat"] == CHOSEN


def test_several_labels_have_no_confusion() -> None:
    evaluation = several()
    page = read(build(full(evaluation=evaluation, validation=None, stages=())))
    assert not {"Confusions", "When it is not confident enough"} & set(titles(page))
    assert {"Class by class", "Worst errors", "Can its confidence be trusted?"} <= set(titles(page))
    for name in ("mean_ap", "macro_f1", "exact", "ece"):
        assert any(percent(evaluation.scores[name].value) in each.text for each in page.all("div", "tile")), name
    assert "minimum confidence" in [each.text for each in page.all("th")]
    assert "0.4" in [each.text for each in page.all("td", "n")]


@pytest.mark.fault("W17")
def test_hostile_names_are_only_text() -> None:
    names = (HOSTILE, "\"'><b>", "&lt;", "${x}", "*/</style>", "\x00\u202e", "日本語")
    evaluation = dataclasses.replace(made(classes=names, folder=HOSTILE), source=HOSTILE, skipped=((HOSTILE, HOSTILE),))
    report = full(
        title=HOSTILE,
        command=HOSTILE,
        summary=[(HOSTILE, HOSTILE)],
        stages=[(HOSTILE, 0.5, HOSTILE)],
        evaluation=evaluation,
        validation=evaluation,
        seen=[(square(0), HOSTILE)],
        data=DataFacts(HOSTILE, names, {HOSTILE: [1] * 7}, {HOSTILE: 1}, [(HOSTILE, HOSTILE)]),
        environment=[(HOSTILE, HOSTILE)],
        warnings=[HOSTILE],
    )
    found = build(report)
    page = read(found)  # refuses scripts, handlers and foreign sources
    assert "<script" not in found.replace(SCRIPT, "").replace("<script></script>", "")
    assert page.text.count(HOSTILE) > 20
    found.encode("utf-8")


def test_images_that_are_gone_are_listed_by_name() -> None:
    def gone(row: int) -> Image.Image:
        if row % 2:
            raise ImageError(f"{row} cannot be read")
        raise FileNotFoundError(row)

    for images in (gone, None):
        page = read(build(Report(title="x", evaluation=made(), images=images)))
        assert not page.all("img")
        rows = [each.text for each in page.all("tr")]
        first = made().worst[0]
        assert f"{first.name}{first.truth[0]}{first.predicted[0]}{percent(first.probability)}" in rows


def test_images_that_could_not_be_read_are_said() -> None:
    evaluation = dataclasses.replace(made(), skipped=tuple((f"{n}.png", "cut off") for n in range(7)))
    page = read(build(Report(title="x", evaluation=evaluation)))
    assert "Unreadable, so not counted: 7 images: 0.png, 1.png, 2.png, 3.png, 4.png …" in page.text


def test_classes_that_nobody_tested_are_said() -> None:
    logits = np.eye(3)[[0, 0, 1]]
    evaluation = evaluation_of(logits, np.array([0, 0, 1]), None, ("a", "b", "never"), resamples=0)
    page = read(build(Report(title="x", evaluation=evaluation)))
    assert "No image of these classes was there to test: never." in page.text
    assert not [each for each in page.all("tr") if each.text.startswith("never")]
    assert "too few images for an interval" in page.text  # no resamples, no interval


def test_a_report_of_a_thousand_images_stays_small() -> None:
    dice = np.random.default_rng(0)
    noise = [Image.fromarray(dice.integers(0, 256, (320, 320, 3), np.uint8)) for _ in range(3)]
    report = full(
        evaluation=made(1000), images=lambda row: noise[row % 3], seen=[(noise[0], "x")] * 64, history=history(300)
    )
    found = build(report)
    assert len(found) < 3_000_000
    assert 60 < found.count("<img") < 90


@pytest.mark.parametrize("p_value, better", [(0.03, True), (0.049, True), (0.051, False), (0.08, False)])
def test_one_is_better_where_chance_would_do_it_less_than_once_in_twenty(p_value: float, better: bool) -> None:
    page = read(comparison_page(dataclasses.replace(compared(), p_value=p_value))).text
    assert ("A is better on images like these" in page) == better
    assert ("may well be chance" in page) != better


def compared(lift: float = 0.5) -> Comparison:
    return comparison_of(made(), made(lift=lift, seed=5))


def test_a_comparison_says_which_is_better_and_how_surely() -> None:
    comparison = compared()
    page = read(comparison_page(comparison, square, ("large", "small"), "vitrail compare large small flowers"))
    shown = [each.text for each in page.all("b") if "." in each.text]
    top = comparison.a.scores["top1"].value, comparison.b.scores["top1"].value
    assert shown[:2] == [percent(each) for each in top]
    gap = comparison.difference
    assert shown[2] == f"{100 * gap.value:+.1f}"
    assert f"large minus small: between {100 * gap.low:+.1f} and {100 * gap.high:+.1f} (95 % interval)" in page.text
    assert "large is better on images like these" in page.text
    rows = [each.text for each in page.all("tr")]
    assert f"large right{comparison.both_right}{comparison.only_a}" in rows
    assert f"large wrong{comparison.only_b}{comparison.both_wrong}" in rows
    assert "vitrail compare" in page.all("code")[0].text


def test_a_comparison_shows_the_images_on_which_they_differ() -> None:
    comparison = compared()
    page = read(comparison_page(comparison, square))
    assert titles(page)[2:5] == ["Only A is right", "Only B is right", "Both wrong, each in its way"]
    only = next(each for each in comparison.differing if each.right_a and not each.right_b)
    words = (
        f"{only.truth[0]}, A: {only.predicted_a[0]}, {percent(only.probability_a)}, "
        f"B: {only.predicted_b[0]}, {percent(only.probability_b)}"
    )
    assert page.all("img")[0].attributes["alt"] == words
    assert only.name in page.text
    assert f"{comparison.only_a} images; the truth in bold. The first 18 are shown." in page.text


def test_a_difference_that_may_be_chance_is_said_to_be() -> None:
    comparison = comparison_of(made(), made())
    page = read(comparison_page(comparison))
    assert "may well be chance" in page.text
    assert titles(page) == ["In short", "Class by class"]


def test_classes_of_both_with_the_largest_difference_first() -> None:
    comparison = compared()
    pairs = {
        one.name: one.f1 - next(other.f1 for other in comparison.b.per_class if other.name == one.name)
        for one in comparison.a.per_class
    }
    name = max(pairs, key=lambda each: abs(pairs[each]))
    rows = [each.text for each in read(comparison_page(comparison)).all("tr")]
    first = rows[rows.index("classimagesF1 of AF1 of Bdifference in points") + 1]
    assert first.startswith(name)
    assert first.endswith(f"{100 * pairs[name]:+.1f}")


def test_a_comparison_of_hostile_names() -> None:
    names = (HOSTILE, "b", "c", "d", "e", "f", "g")
    comparison = comparison_of(
        made(classes=names, folder=HOSTILE), made(classes=names, lift=0.2, seed=4, folder=HOSTILE)
    )
    found = comparison_page(comparison, square, (HOSTILE, HOSTILE), HOSTILE)
    assert read(found).text.count(HOSTILE) > 20
    assert "<script" not in found.replace(SCRIPT, "").replace("<script></script>", "")


def test_p_values_in_few_digits() -> None:
    assert [likelihood(each) for each in (0.3141, 0.0004, math.nan)] == ["0.314", "under 0.001", "–"]


ODD = re.compile(
    r"named right|off in confidence|in doubt|commonest|middle size|To do it again|least confidence|[Pp]er cent|"
    r"\bsaid \w|\bpictures?\b|\btop1\b|\bece\b|\bmacro_f1\b|\d%"
)


def test_pages_are_in_words_that_everyone_knows() -> None:
    comparison = comparison_of(made(), made(lift=0.2, seed=4))
    for found in (build(full()), build(full(evaluation=None)), comparison_page(comparison, square)):
        page = read(found)
        spoken = [each.attributes.get(name, "") for each in page.elements for name in ("alt", "aria-label")]
        shown = [each.text for each in page.elements if each.tag in ("header", "main")]
        assert not ODD.findall(" ".join((*shown, *spoken)))
    tiles = [each.text for each in whole().all("div", "tile")]
    for name in ("accuracy", "top-5 accuracy", "F1 (mean of classes)", "calibration error", "minimum confidence"):
        assert any(name in each for each in tiles), name
    assert "Reproduce this run" in whole().text


def test_warnings_and_advice_stand_apart() -> None:
    page = read(
        build(full(warnings=["warning: too few steps", "advice: start from weights"], notes=["val: 20 images"]))
    )
    callouts = [each.text for each in page.all("p", "callout")]
    assert callouts[:3] == ["too few steps", "start from weights", "val: 20 images"]
    assert page.text.index("start from weights") < page.text.index("top-5 accuracy") < page.text.index("val: 20 images")
    assert "too few steps" in [each.text for each in page.all("p", "warn")]
    assert "start from weights" not in [each.text for each in page.all("p", "warn")]


def test_one_image_is_one() -> None:
    one = evaluation_of([[2.0, 0.0]], [0], ["a.png"], ["ant", "bee"], source="photos", split="test", resamples=20)
    assert "1 test image from “photos”" in build(Report(title="one", evaluation=one))
    assert "1 test image from “photos”" in comparison_page(comparison_of(one, one))
