"""Sections of a report: what an evaluation found, in words and tables."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from evaluation.markup import read
from evaluation.reports import CLASSES, made, several, square, whole
from vitrail.evaluation.report import Report, build
from vitrail.evaluation.results import Bin, ClassScores, Score
from vitrail.evaluation.scoring import correct_answers, evaluation_of
from vitrail.evaluation.sections import between, f1_interval, rejection, tempered, trust
from vitrail.reporting.html_page import number, percent


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


def test_calibration_in_words() -> None:
    said = " ".join(trust(made()))
    filled = [each for each in made().bins if each.count]
    stated = sum(each.count * each.confidence for each in filled) / 300
    assert f"states {percent(stated)} on average and is right {percent(made().scores['top1'].value)}" in said
    assert "corrected after training (temperature 1.30): before, it was more sure than it should be." in said
    assert all(each in whole().text for each in trust(made()))


@pytest.mark.parametrize(
    ("stated", "count", "kind"),
    [(0.9, 1000, "over-confident"), (0.9, 10, "14.3"), (0.7, 1000, "too modest"), (0.78, 1000, "2.6")],
)
def test_confidence_is_only_judged_beyond_chance(stated: float, count: int, kind: str) -> None:
    bins = (Bin(0.0, 0.5, 0, math.nan, math.nan), Bin(0.5, 1, count, stated, 0.8))
    evaluation = dataclasses.replace(made(), bins=bins)
    shares = f"states {percent(stated)} on average and is right 80.0 % of the time."
    judged, by_chance = f"On the whole it is {kind}: it {shares}", f"up to {kind} points of difference may be chance."
    assert trust(evaluation)[0] in (judged, f"It {shares} With {count:,} answers, {by_chance}")


@pytest.mark.parametrize(
    ("temperature", "words"),
    [(None, "were not corrected"), (1.5, "more sure than"), (0.6, "less sure than"), (1.005, "almost nothing")],
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
    assert "No minimum confidence is set" in unset.note


def test_always_saying_the_commonest_class_is_the_measure() -> None:
    counts = np.bincount(made().targets)
    name = CLASSES[int(counts.argmax())]
    assert f"always answering “{name}” would be right {percent(counts.max() / 300)} of the time" in whole().text


def test_labels_that_were_not_said_have_no_probability() -> None:
    evaluation = several()
    silent = next(each for each in evaluation.worst if not each.predicted)
    assert math.isnan(silent.probability)
    page = read(build(Report(title="x", evaluation=evaluation, images=square)))
    alts = [each.attributes["alt"] for each in page.all("img")]
    assert f"{', '.join(silent.truth)}, predicted nothing, {silent.name}" in alts


@pytest.mark.parametrize("temperature, little", [(1.015, True), (1.03, False), (0.985, True), (0.97, False)])
def test_a_temperature_changes_almost_nothing_within_two_per_cent(temperature: float, little: bool) -> None:
    assert ("almost nothing" in tempered(temperature)) == little


def test_images_without_files_are_called_by_their_number() -> None:
    names = ["photos/56", "56.png"]
    found = evaluation_of(np.eye(2)[[0, 0]], [1, 1], names, ["ant", "bee"], split="test", resamples=0)
    alts = [
        each.attributes["alt"] for each in read(build(Report(title="x", evaluation=found, images=square))).all("img")
    ]
    assert {each.rsplit(", ")[-1] for each in alts} == {"image 56", "56.png"}


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


def test_every_interval_of_the_headline_says_what_it_is() -> None:
    tiles = [each.text for each in read(build(Report(title="one", evaluation=made()))).all("div", "tile")]
    scores = [each for each in tiles if "between" in each]
    assert len(scores) == 4
    assert all("(95 % interval)" in each for each in scores)
    words = " ".join(trust(made()))
    assert "95 % interval: between" in words


def test_without_an_error_no_score_is_certain() -> None:
    sure = evaluation_of(10 * np.eye(4)[np.arange(40) % 4], np.arange(40) % 4, resamples=20)
    low = sure.scores["top1"].low
    assert 0.9 < low < 0.95
    for name in ("macro_f1", "macro_precision", "macro_recall"):
        assert sure.scores[name] == Score(1.0, low, 1.0)
