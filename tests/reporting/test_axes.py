"""Axes: ticks are round, values stand where the scale says, words are short."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.markup import read
from reporting.shapes import numbers
from vitrail.errors import InputError
from vitrail.reporting.axes import Axis, AxisScale, log_ticks, short_count, tick_label, ticks, ticks_inside
from vitrail.reporting.charts import Line, Point, Series, curves
from vitrail.reporting.shapes import cut_text, text_width

X, Y = Axis("x"), Axis("y")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.13, 2.4, [0, 0.5, 1.0, 1.5, 2.0, 2.5]),
        (-3, 7, [-4, -2, 0, 2, 4, 6, 8]),
        (0, 1e-3, [0, 2e-4, 4e-4, 6e-4, 8e-4, 1e-3]),
        (3, 3, [0, 2, 4, 6]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-2, -2, [-4, -3, -2, -1, 0]),
    ],
)
def test_ticks_are_round_and_span_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == expected


@pytest.mark.parametrize("values", [(math.nan, 1), (0, math.inf), (2, 1)])
def test_ticks_refuse_what_has_no_span(values: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="ticks: expected finite numbers, the lower first"):
        ticks(*values)


def test_ticks_inside_a_range_leave_its_ends_in() -> None:
    assert ticks_inside(0.05, 1.0) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks_inside(1, 12, 6) == [2, 4, 6, 8, 10, 12]


def test_a_scale_is_a_straight_line() -> None:
    down = AxisScale(0, 10, 200, 20)
    assert [down(value) for value in (0, 5, 10)] == [200, 110, 20]
    assert AxisScale(3, 3, 0, 10)(3) == 5


def test_words_on_axes_are_short() -> None:
    assert [tick_label(value) for value in (0.0, 0.0002, 2.5e-6, 12000, 3e9)] == [
        "0",
        "0.0002",
        "2.5e-6",
        "12,000",
        "3e9",
    ]
    assert [short_count(value) for value in (7, 9999, 12345, 3_400_000)] == ["7", "9999", "12k", "3M"]
    assert cut_text("a class with a long name", 10) == "a class w…"
    assert cut_text(" two\nlines ", 20) == "two lines"
    assert cut_text("日本語日本語", 7) == "日本語…"
    assert cut_text("", 9) == "(no name)"
    assert text_width("日本") == text_width("abcd")


def test_a_logarithmic_axis_gives_every_power_of_ten_the_same_room() -> None:
    series = [Series("a", [(10.0**power, 1.0) for power in range(-4, 1)], dots=True)]
    found = read(curves(series, Axis("rate", log=True), Y, lines=[Line(1e-2, "here"), Line(0.9, "at the end")]).html)
    x = [numbers(each, "cx")[0] for each in found.all("circle")]
    assert np.diff(x) == pytest.approx([x[1] - x[0]] * 4, abs=0.15)
    names = {each.text: each.attributes for each in found.all("text", "name")}
    assert float(names["here"]["x"]) == pytest.approx(x[2] + 6, abs=0.15)
    assert [names[each]["text-anchor"] for each in ("here", "at the end")] == ["start", "end"]  # both inside
    assert log_ticks(1e-4, 1.0) == [1e-4, 1e-3, 1e-2, 0.1, 1.0]
    assert log_ticks(3, 60) == [5, 10, 20, 50]
    with pytest.raises(InputError, match="expected positive numbers, the lower first, got 0 and 1"):
        log_ticks(0, 1)


def test_an_axis_of_names_has_a_row_for_each() -> None:
    points = [Point(1.0, 0), Point(2.0, 1), Point(3.0, 2)]
    found = read(curves([], X, Axis("", names=("a", "<b>", "c")), points=points).html)
    labels = {
        each.text: numbers(each, "y")[0] - 4 for each in found.all("text", "tick") if each.text in ("a", "<b>", "c")
    }
    assert list(labels.values()) == pytest.approx([numbers(each, "cy")[0] for each in found.all("circle")], abs=0.15)
