"""Sections of a report that tell how a network came to be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.markup import read
from evaluation.reports import history, whole
from vitrail.data.samples import Dataset, Sample
from vitrail.evaluation.report import Report, build
from vitrail.evaluation.results import Score
from vitrail.evaluation.training_sections import (
    DataFacts,
    count_data,
    course,
    duration,
    learning,
    learning_charts,
    stages,
    steps_per_epoch,
    times,
)
from vitrail.reporting.html_page import percent


def test_history_with_holes() -> None:
    rows = [
        {"event": "step", "step": 5, "epoch": 1, "loss": math.nan, "lr": None},
        {"event": "epoch", "step": 10, "epoch": 1, "loss": math.inf, "val_loss": None, "val_score": 0.25},
        {"event": "epoch", "step": 20, "epoch": 2, "loss": 1.0, "val_loss": math.nan, "val_score": 0.5},
        {"event": "unknown"},
    ]
    section = learning(rows)
    assert section is not None
    points = [each.text for each in read(section.body_html).all("title")]
    assert points == [
        "training, epoch 2: 1",
        "validation: accuracy, epoch 1: 25.0 %",
        "validation: accuracy, epoch 2: 50.0 %",
    ]
    assert learning([]) is None
    assert learning([{"event": "epoch", "epoch": 1, "loss": math.nan}]) is None


def test_curves_show_every_epoch() -> None:
    words = [each.text for each in whole().all("title")]
    for epoch in range(1, 7):
        assert f"training, epoch {epoch}: {1.8 / epoch:.3g}" in words
        assert f"validation: accuracy, epoch {epoch}: {percent(1 - 0.5 / epoch)}" in words


def test_a_run_without_validation_has_no_score_to_draw() -> None:
    section = learning([{"event": "epoch", "step": 10, "epoch": 1, "loss": 2.0}])
    assert section is not None
    assert "higher is better" not in section.body_html


def test_scores_are_called_by_what_they_are() -> None:
    for task, name in (("single-label", "accuracy"), ("multi-label", "mean average precision")):
        section = learning(history(), task)
        assert section is not None
        page = read(section.body_html)
        assert f"{name.capitalize()}: higher is better" in page.text
        assert f"The best epoch was 4 of 6, with {name} 87.5 % on validation images; it is kept." in page.text


@pytest.mark.parametrize("per_epoch", [0, 10])
def test_epochs_stand_at_their_numbers_where_the_last_is_cut_short(per_epoch: int) -> None:
    rows = [{"event": "epoch", "epoch": n, "step": min(10 * n, 54), "loss": 1 / n} for n in range(1, 7)]
    words = [each.text for each in read(learning_charts(rows, per_epoch=per_epoch).loss.html).all("title")]
    assert words == [f"training, epoch {at}: {1 / n:.3g}" for n, at in enumerate((1, 2, 3, 4, 5, 5.4), 1)]


def test_an_only_epoch_that_is_cut_short_is_drawn_as_long_as_it_was() -> None:
    row = {"event": "epoch", "epoch": 1, "step": 2, "loss": 0.5}
    assert "training, epoch 0.2: 0.5" in learning_charts([row], per_epoch=10).loss.html


def test_a_loss_that_falls_promises_nothing_where_the_score_does_not_rise() -> None:
    rows = [{**row, "best": row["epoch"] == 2} for row in history(3)]
    assert course(rows)[1] == (
        "The validation loss was still falling at the end, but accuracy rose no more: more epochs may not help."
    )
    assert "rose no more" not in " ".join(course(history(3)))


def test_the_curves_of_a_run_begin_at_its_start_and_end_together() -> None:
    """Ten steps of an only epoch: a point of loss and score at its end, the learning rate at its middle."""
    for chart in learning_charts(history(1)):
        found = read(chart.html)
        ticks = {each.text: float(each.attributes["x"]) for each in found.all("text") if each.text in ("0", "1")}
        assert ticks["1"] - ticks["0"] > 300
        circles = [float(each.attributes["cx"]) for each in found.all("circle")]
        assert circles == [ticks["1"]] * len(circles)


def test_the_course_in_words() -> None:
    assert course(history())[0] == "The best epoch was 4 of 6, with accuracy 87.5 % on validation images; it is kept."
    assert len(course(history())) == 1
    assert "lowest at epoch 3 and rises afterwards: the network begins to learn" in course(history(rise=0.2))[1]
    assert "still falling at the end" in course(history(3))[1]
    both = [{**row, "loss": row["epoch"]} for row in history(rise=0.2)]
    assert "so does the training loss" in course(both)[1]
    easier = [{**row, "loss": 100 - row["epoch"]} for row in history(rise=0.2)]
    assert len(course(easier)) == 1  # images that it never saw are easier for it than those that it learns
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


def test_steps_per_epoch() -> None:
    assert steps_per_epoch(history()[1::2]) == 10
    assert steps_per_epoch([{"epoch": 1, "step": 94}]) == 94
    assert steps_per_epoch([{"epoch": 3, "step": 30}, {"epoch": 4, "step": 31}]) == 10
    assert steps_per_epoch([{"epoch": 1}]) == 0


@pytest.mark.parametrize(
    ("data", "words", "tone"),
    [
        (6.0, "waits for images 60 % of the time", "warn"),
        (1.0, "only 20 %", "good"),
        (0.01, "next to none of the time", "good"),
    ],
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


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (Score(0.9, 0.85, 0.94), Score(0.8, 0.75, 0.84), "A smaller learning rate may help"),
        (Score(0.9, 0.85, 0.94), Score(0.88, 0.83, 0.92), "That may be chance"),
        (Score(0.9, 0.85, 0.94), 0.8, "That may be chance"),
        (Score(0.8, 0.75, 0.84), Score(0.9, 0.85, 0.94), ""),
        (Score(0.9, 0.85, 0.94), Score(0.9, 0.85, 0.94), ""),
    ],
)
def test_a_last_method_that_fell_behind_says_so(before: Score, after: Score | float, words: str) -> None:
    section = stages([("k-NN", 0.5, ""), ("linear probe", before, ""), ("fine-tuned", after, "")])
    assert section is not None
    told = [each.text for each in read(section.body_html).all("p", "warn")]
    assert len(told) == bool(words)
    if words:
        value = after.value if isinstance(after, Score) else after
        assert f"did better here: linear probe 90.0 %, fine-tuned {percent(value)}. {words}" in told[0]


def test_stages_have_their_interval_where_they_have_one() -> None:
    rows = [each.text for each in whole().all("tr")]
    assert "nearest neighbours50.0 %40.0 % to 60.0 %" in rows
    assert ("nearest neighbours", "20 of them") in zip(
        (each.text for each in whole().all("dt")), (each.text for each in whole().all("dd")), strict=True
    )
    assert "linear probe62.0 %–" in rows
    assert "nearest neighbours: 50.0 %, 40.0 % to 60.0 %" in [each.text for each in whole().all("title")]
