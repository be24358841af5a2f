"""The report: every number it shows is the evaluation's, parts without data are absent, the file stays small."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evaluation.markup import Page, read
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ImageError
from vitrail.evaluation.comparison import Comparison, comparison_of
from vitrail.evaluation.report import Report, build, comparison_page, likelihood
from vitrail.evaluation.results import Bin, ClassScores, Evaluation, Score
from vitrail.evaluation.scoring import correct_answers, evaluation_of
from vitrail.evaluation.sections import between, f1_interval, rejection, tempered, trust
from vitrail.evaluation.training_sections import (
    DataFacts,
    count_data,
    course,
    duration,
    learning,
    steps_per_epoch,
    times,
)
from vitrail.reporting.html_page import number, percent

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
CLASSES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


@cache
def made(
    count: int = 300,
    classes: tuple[str, ...] = CLASSES,
    lift: float = 2.0,
    reject: float | None = 0.5,
    seed: int = 0,
    folder: str = "photos",
) -> Evaluation:
    dice = np.random.default_rng(seed)
    targets = np.random.default_rng(1).integers(0, len(classes), count)
    logits = dice.normal(size=(count, len(classes)))
    logits[np.arange(count), targets] += lift
    logits[np.arange(count), (targets + 1) % len(classes)] += 0.8
    names = [f"{folder}/{place:04d}.png" for place in range(count)]
    return evaluation_of(
        logits, targets, names, classes, "single-label", 1.3, None, reject, "flowers", "test", resamples=20
    )


@cache
def several() -> Evaluation:
    dice = np.random.default_rng(0)
    targets = (dice.random((120, 4)) < 0.4).astype(int)
    logits = dice.normal(size=(120, 4)) + 3 * (targets - 0.5)
    names = [f"{place}.png" for place in range(120)]
    return evaluation_of(
        logits, targets, names, CLASSES[:4], "multi-label", None, [0.4] * 4, None, "scenes", "test", resamples=20
    )


def square(row: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (row % 256, row // 256, 77))


def history(epochs: int = 6, rise: float = 0.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        rows += [
            {"event": "step", "epoch": epoch, "step": 10 * epoch - 5, "loss": 2 / epoch, "lr": 1e-3 / epoch},
            {
                "event": "epoch",
                "epoch": epoch,
                "step": 10 * epoch,
                "loss": 1.8 / epoch,
                "val_loss": 2 / min(epoch, 3) + rise * max(0, epoch - 3),
                "val_top1": 1 - 0.5 / epoch,
                "val_macro_f1": 0.9 - 0.5 / epoch,
                "score": 1 - 0.5 / epoch,
                "best": epoch <= 4,
            },
        ]
    return rows


def full(**changes: Any) -> Report:
    facts: dict[str, Any] = {
        "title": "flowers-3",
        "command": "vitrail train flowers --epochs 6 --seed 3",
        "summary": [("parameters", "2,679,370")],
        "history": history(),
        "times": [{"epoch": 1, "data_seconds": 2.0, "compute_seconds": 8.0, "images_per_second": 600.0}],
        "stages": [("nearest neighbours", Score(0.5, 0.4, 0.6), "20 of them"), ("linear probe", 0.62, "")],
        "evaluation": made(),
        "validation": made(seed=3),
        "images": square,
        "seen": [(square(place), CLASSES[place % 7]) for place in range(9)],
        "data": DataFacts("flowers", CLASSES, {"train": [90] * 7, "test": [10, 60, 50, 40, 30, 20, 90]}, {"hidden": 2}),
        "environment": [("torch", "2.13.0")],
        "warnings": ["The batch is small."],
    }
    return Report(**(facts | changes))


def titles(page: Page) -> list[str]:
    return [each.text for each in page.all("h2")]


@cache
def whole() -> Page:
    return read(build(full()))


def test_a_whole_report_has_every_part_in_order() -> None:
    assert titles(whole()) == [
        "In short",
        "Step by step",
        "How it learned",
        "Class by class",
        "Confusions",
        "Worst errors",
        "Can its confidence be trusted?",
        "When it may decline",
        "What the model sees",
        "The data",
        "Time",
        "To do it again",
    ]
    assert whole().all("h1")[0].text == "flowers-3"
    assert "300 test images of flowers" in whole().text


def test_the_headline_says_the_interval_in_words() -> None:
    score = made().scores["top1"]
    tile = whole().all("div", "tile")[0].text
    assert percent(score.value) in tile
    words = f"between {100 * score.low:.1f} and {100 * score.high:.1f} % on new images like these (95 % interval)"
    assert words in tile


def test_every_score_is_shown_with_its_interval() -> None:
    rows = [each.text for each in whole().all("tr")]
    for name, score in made().scores.items():
        show = number if name == "loss" else percent
        said = f"{show(score.value)}{show(score.low)} to {show(score.high)}"
        assert any(said in row for row in rows), name
    for score in made(seed=3).scores.values():  # and those of the validation images beside them
        assert any(percent(score.value) in row or number(score.value) in row for row in rows)


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
    assert [each.text for each in whole().all("label")] == ["Counts", "Per cent of each true class"]


def test_confused_pairs_come_with_their_images() -> None:
    evaluation = made()
    pair = evaluation.most_confused[0]
    heading = f"{pair.truth}, taken for {pair.predicted}"
    assert heading in [each.text for each in whole().all("h3")]
    asked, given = CLASSES.index(pair.truth), CLASSES.index(pair.predicted)
    rows = np.flatnonzero((evaluation.targets == asked) & (evaluation.probabilities.argmax(1) == given))
    surest = max(rows.tolist(), key=lambda row: float(evaluation.probabilities[row, given]))
    alt = f"{percent(evaluation.probabilities[surest, given])}, {surest:04d}.png"
    assert alt in [each.attributes["alt"] for each in whole().all("img")]


def test_the_worst_errors_come_with_truth_answer_and_probability() -> None:
    alts = [each.attributes["alt"] for each in whole().all("img")]
    shown = [
        f"{each.truth[0]}, said {each.predicted[0]}, {percent(each.probability)}, {each.name.split('/')[1]}"
        for each in made().worst[:24]
    ]
    assert [each for each in alts if ", said " in each] == shown
    assert made().worst[0].name in whole().text  # the whole path is in the list below


def test_calibration_in_words() -> None:
    said = " ".join(trust(made()))
    filled = [each for each in made().bins if each.count]
    stated = sum(each.count * each.confidence for each in filled) / 300
    assert f"it states {percent(stated)} on average and is right {percent(made().scores['top1'].value)}" in said
    assert "A temperature of 1.30 was fitted after training: the network by itself was too sure" in said
    assert all(each in whole().text for each in trust(made()))


@pytest.mark.parametrize(
    ("stated", "count", "kind"),
    [(0.9, 1000, "over-confident"), (0.9, 10, "about right"), (0.7, 1000, "too modest"), (0.81, 1000, "about right")],
)
def test_confidence_is_only_judged_beyond_chance(stated: float, count: int, kind: str) -> None:
    bins = (Bin(0.0, 0.5, 0, math.nan, math.nan), Bin(0.5, 1, count, stated, 0.8))
    evaluation = dataclasses.replace(made(), bins=bins)
    assert trust(evaluation)[0].startswith(f"On the whole it is {kind}: it states {percent(stated)}")


@pytest.mark.parametrize(
    ("temperature", "words"),
    [(None, "No temperature"), (1.5, "too sure"), (0.6, "too modest"), (1.005, "almost nothing")],
)
def test_temperatures_in_words(temperature: float | None, words: str) -> None:
    assert words in tempered(temperature)


def test_rejection_counts_the_surest_first() -> None:
    evaluation = made()
    section = rejection(evaluation)
    assert section is not None
    page = read(section.body_html)
    right, sure = correct_answers(evaluation), evaluation.probabilities.max(axis=1)
    half = np.sort(sure)[::-1][149]
    assert f"50 %{percent(right[sure >= half].mean())}{percent(half)}" in [each.text for each in page.all("tr")]
    assert evaluation.answered_top1 is not None
    assert [each.text for each in page.all("b")] == [
        percent(evaluation.answered),
        percent(evaluation.answered_top1),
        "50.0 %",
    ]
    unset = rejection(made(reject=None))
    assert unset is not None
    assert "No threshold is set" in unset.note


def test_always_saying_the_commonest_class_is_the_measure() -> None:
    counts = np.bincount(made().targets)
    name = CLASSES[int(counts.argmax())]
    assert f"always answering “{name}” would be right {percent(counts.max() / 300)} of the time" in whole().text


def test_parts_without_data_are_absent() -> None:
    page = read(build(Report(title="empty")))
    assert titles(page) == ["In short"]
    assert not page.all("svg", "plot")
    some = read(build(Report(title="x", history=history(), command="vitrail train x")))
    assert titles(some) == ["In short", "How it learned", "To do it again"]
    assert "vitrail train x" in some.all("code")[0].text


def test_without_test_images_the_validation_is_shown_and_named() -> None:
    page = read(build(full(evaluation=None, validation=dataclasses.replace(made(seed=3), split="val"))))
    assert "300 validation images of flowers" in page.text
    assert "by which the network was chosen" in page.text
    assert percent(made(seed=3).scores["top1"].value) in page.all("div", "tile")[0].text
    assert "by which the network was chosen" not in whole().text


def test_images_that_were_trained_on_say_so() -> None:
    """And nothing is expected of new ones."""
    page = read(build(full(evaluation=dataclasses.replace(made(), split="train"), validation=None)))
    assert "The network was trained on these very images" in page.all("p", "bad")[0].text
    assert "on new images like these" not in page.text
    assert "The network was trained on these very images" not in whole().text


def test_several_labels_have_no_confusion() -> None:
    evaluation = several()
    page = read(build(full(evaluation=evaluation, validation=None, stages=())))
    assert not {"Confusions", "When it may decline"} & set(titles(page))
    assert {"Class by class", "Worst errors", "Can its confidence be trusted?"} <= set(titles(page))
    for name in ("mean_ap", "macro_f1", "exact", "ece"):
        assert any(percent(evaluation.scores[name].value) in each.text for each in page.all("div", "tile")), name
    assert "said from" in [each.text for each in page.all("th")]
    assert "0.4" in [each.text for each in page.all("td", "n")]


def test_labels_that_were_not_said_have_no_probability() -> None:
    evaluation = several()
    silent = next(each for each in evaluation.worst if not each.predicted)
    assert math.isnan(silent.probability)
    page = read(build(Report(title="x", evaluation=evaluation, images=square)))
    alts = [each.attributes["alt"] for each in page.all("img")]
    assert f"{', '.join(silent.truth)}, said nothing, {silent.name}" in alts


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
    assert "<script" not in found
    assert page.text.count(HOSTILE) > 20
    found.encode("utf-8")


def test_images_that_are_gone_are_listed_by_name() -> None:
    def gone(row: int) -> Image.Image | None:
        if row % 2:
            raise ImageError(f"{row} cannot be read")
        return None

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


def test_history_with_holes() -> None:
    rows = [
        {"event": "step", "step": 5, "epoch": 1, "loss": math.nan, "lr": None},
        {"event": "epoch", "step": 10, "epoch": 1, "loss": math.inf, "val_loss": None, "val_top1": 0.25},
        {"event": "epoch", "step": 20, "epoch": 2, "loss": 1.0, "val_loss": math.nan, "val_top1": 0.5},
        {"event": "unknown"},
    ]
    section = learning(rows)
    assert section is not None
    points = [each.text for each in read(section.body_html).all("title")]
    assert points == [
        "training, epoch 2: 1",
        "validation: first answer right (top-1), epoch 1: 25.0 %",
        "validation: first answer right (top-1), epoch 2: 50.0 %",
    ]
    assert learning([]) is None
    assert learning([{"event": "epoch", "epoch": 1, "loss": math.nan}]) is None


def test_curves_show_every_epoch() -> None:
    words = [each.text for each in whole().all("title")]
    for epoch in range(1, 7):
        assert f"training, epoch {epoch}: {1.8 / epoch:.3g}" in words
        assert f"validation: first answer right (top-1), epoch {epoch}: {percent(1 - 0.5 / epoch)}" in words


def test_scores_that_are_no_shares_are_not_drawn_as_such() -> None:
    rows = [{"event": "epoch", "step": 10, "epoch": 1, "loss": 2.0, "score": -2.0, "val_ece": 0.1}]
    section = learning(rows)
    assert section is not None
    assert "Scores" not in section.body_html


def test_the_course_in_words() -> None:
    assert course(history())[0] == "The best epoch was 4 of 6, with a validation score of 87.5 %; it is kept."
    assert len(course(history())) == 1
    assert "lowest at epoch 3 and rises afterwards: the network begins to learn" in course(history(rise=0.2))[1]
    assert "still falling at the end" in course(history(3))[1]
    both = [{**row, "loss": row["epoch"]} for row in history(rise=0.2)]
    assert "so does the training loss" in course(both)[1]
    assert "went back 2 times" in course([*history(), {"event": "rollback"}, {"event": "rollback"}])[-1]
    assert course([]) == []


@pytest.mark.parametrize("rise, rises", [(1.05, False), (1.09, False), (1.11, True), (1.2, True)])
def test_a_validation_loss_rises_from_a_tenth_on(rise: float, rises: bool) -> None:
    rows = [{"event": "epoch", "epoch": n, "loss": 1 / n, "val_loss": loss} for n, loss in enumerate((2, 1, rise), 1)]
    assert [each for each in course(rows) if "lowest at epoch 2 and rises afterwards" in each] == course(rows)
    assert len(course(rows)) == rises


@pytest.mark.parametrize("last, falls", [(0.9, True), (0.97, True), (0.99, False), (1.0, False)])
def test_a_validation_loss_still_falls_by_two_per_cent_an_epoch(last: float, falls: bool) -> None:
    rows = [{"event": "epoch", "epoch": n, "loss": 1 / n, "val_loss": loss} for n, loss in enumerate((2, 1, last), 1)]
    assert any("still falling at the end" in each for each in course(rows)) == falls


@pytest.mark.parametrize("data, tone", [(2.0, "good"), (2.9, "good"), (3.1, "warn"), (4.5, "warn")])
def test_waiting_for_images_matters_from_three_tenths_on(data: float, tone: str) -> None:
    section = times([{"data_seconds": data, "compute_seconds": 10 - data}])
    assert section is not None
    assert len(read(section.body_html).all("p", tone)) == 1


@pytest.mark.parametrize("most, told", [(30, False), (49, False), (50, True), (80, True)])
def test_classes_are_uneven_from_five_times_on(most: int, told: bool) -> None:
    page = read(build(Report(title="x", data=DataFacts("here", ("a", "b"), {"train": [10, most]}))))
    assert ("Uneven: the largest class has" in page.text) == told


@pytest.mark.parametrize("temperature, little", [(1.015, True), (1.03, False), (0.985, True), (0.97, False)])
def test_a_temperature_changes_almost_nothing_within_two_per_cent(temperature: float, little: bool) -> None:
    assert ("almost nothing" in tempered(temperature)) == little


@pytest.mark.parametrize("p_value, better", [(0.03, True), (0.049, True), (0.051, False), (0.08, False)])
def test_one_is_better_where_chance_would_do_it_less_than_once_in_twenty(p_value: float, better: bool) -> None:
    page = read(comparison_page(dataclasses.replace(compared(), p_value=p_value))).text
    assert ("A is better on images like these" in page) == better
    assert ("may well be chance" in page) != better


def test_steps_per_epoch() -> None:
    assert steps_per_epoch(history()[1::2]) == 10
    assert steps_per_epoch([{"step": 94}]) == 94
    assert steps_per_epoch([{"epoch": 1}]) == 0


@pytest.mark.parametrize(
    ("data", "words", "tone"), [(6.0, "waits for images 60 % of the time", "warn"), (1.0, "only 20 %", "good")]
)
def test_time_and_what_would_help(data: float, words: str, tone: str) -> None:
    section = times([{"data_seconds": data, "compute_seconds": 4.0, "images_per_second": 250.0}, {"epoch": 2}])
    assert section is not None
    page = read(section.body_html)
    assert words in page.all("p", tone)[0].text
    assert "250 images a second" in page.text
    assert times([]) is None
    assert times([{"data_seconds": math.nan}]) is None


def test_durations() -> None:
    assert [duration(each) for each in (8.44, 200, 7500)] == ["8.4 s", "3 min 20 s", "2 h 05 min"]


def test_data_is_counted_by_split_and_class() -> None:
    samples = (
        Sample("a.png", ("ant",), "train"),
        Sample("b.png", ("bee", "ant"), "train"),
        Sample("c.png", ("bee",), "test"),
        Sample("d.png", ("bee",)),
    )
    dataset = Dataset("x", samples, np.zeros((4, 2, 2), np.uint8), ("ant", "bee"), "multi-label", {"hidden": 3})
    found = count_data(dataset, [("e.png", "cut off")])
    assert found.counts == {"train": [2, 1], "test": [0, 1], "": [0, 1]}
    page = read(build(Report(title="x", data=found)))
    rows = [each.text for each in page.all("tr")]
    assert rows[:4] == ["classtrainingtestwithout a split", "all311", "ant200", "bee111"]
    assert {"hidden3", "e.pngcut off"} <= set(rows)
    assert "No test images of ant." in page.text


def test_uneven_classes_are_said() -> None:
    words = "the largest class has 9 times as many test images as the smallest, ant"
    assert words in whole().text
    assert "training images as the smallest" not in whole().text


def test_stages_have_their_interval_where_they_have_one() -> None:
    rows = [each.text for each in whole().all("tr")]
    assert "nearest neighbours50.0 %40.0 % to 60.0 %20 of them" in rows
    assert "linear probe62.0 %–" in rows
    assert "nearest neighbours: 50.0 %, 40.0 % to 60.0 %" in [each.text for each in whole().all("title")]


def test_intervals_in_words() -> None:
    assert between(Score(0.87, 0.8491, 0.8899)) == "between 84.9 and 89.0 %"
    assert between(Score(0.87, math.nan, math.nan)) == "too few images for an interval"


def test_the_interval_of_f1_holds_it_as_often_as_it_says() -> None:
    dice = np.random.default_rng(0)
    shares = np.array([0.12, 0.05, 0.06, 0.77])  # hits, misses, false alarms, all else
    truth = 2 * shares[0] / (2 * shares[0] + shares[1] + shares[2])
    held = 0
    for hits, misses, alarms, _ in dice.multinomial(300, shares, 2000).tolist():
        scores = ClassScores("a", hits + misses, hits / (hits + alarms), hits / (hits + misses), 0.0, 0.0, None)
        low, high = f1_interval(scores)
        held += low <= truth <= high
    assert 0.935 < held / 2000 < 0.965


def test_the_interval_of_f1_is_never_a_point() -> None:
    low, high = f1_interval(ClassScores("a", 10, 0.0, 0.0, 0.0, 0.0, None))
    assert low == 0 < high < 0.6
    low, high = f1_interval(ClassScores("a", 10, 1.0, 1.0, 1.0, 1.0, None))
    assert 0.8 < low < high == 1


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
    assert "<script" not in found


def test_p_values_in_few_digits() -> None:
    assert [likelihood(each) for each in (0.3141, 0.0004, math.nan)] == ["0.314", "under 0.001", "–"]
