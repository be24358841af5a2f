"""Charts: what is drawn stands where its value says."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from evaluation.markup import read
from reporting.shapes import numbers, opacity, titled
from vitrail.evaluation.results import Bin
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Bar, Line, Point, Series, bars, curves, histogram, reliability, strip
from vitrail.reporting.matrix_charts import confusion
from vitrail.reporting.shapes import text_width

X, Y, UNIT = Axis("x"), Axis("y"), Axis("x", low=0.0, high=1.0)
HOSTILE = "<script>alert('1')</script>"


def test_a_share_that_never_changes_stands_among_all_that_are_possible() -> None:
    found = curves([Series("a", [(1, 1.0), (2, 1.0)])], Axis("x"), Axis("y", percent=True)).html
    assert ">100 %<" in found
    assert ">200 %<" not in found


def test_points_of_a_curve_stand_where_their_values_say() -> None:
    values = [2.0, 1.0, 0.5, 1.5]
    found = read(curves([Series("val", list(enumerate(values)), dots=True)], Axis("epoch"), Axis("loss")).html)
    x, y = zip(*(numbers(each, "cx", "cy") for each in found.all("circle")), strict=True)
    assert np.diff(x) == pytest.approx([x[1] - x[0]] * 3, abs=0.15)
    assert np.argsort(y).tolist() == np.argsort([-each for each in values]).tolist()  # higher is nearer the top
    assert (y[1] - y[0]) / (y[2] - y[1]) == pytest.approx(2, abs=0.02)
    labels = {each.text: numbers(each, "y")[0] for each in found.all("text", "tick")}
    assert y[3] + 4 == pytest.approx(labels["1.5"], abs=0.15)  # beside its tick, whose words hang 4 lower
    assert [each.text for each in found.all("title")] == [f"val, epoch {n}: {v:g}" for n, v in enumerate(values)]
    assert {"loss", "epoch"} <= set(labels)


def test_curves_of_shares_say_per_cent_and_have_a_legend() -> None:
    series = [Series("a", [(0, 0.5), (1, 0.75)], dots=True), Series("b", [(0, 0.1)])]
    found = read(curves(series, Axis("x"), Axis("y", percent=True)).html)
    assert [each.text for each in found.all("li")] == ["a", "b"]
    assert "75.0 %" in found.all("title")[1].text
    assert "40 %" in [each.text for each in found.all("text", "tick")]


def test_a_curve_is_lifted_where_there_is_no_number() -> None:
    points = [(0, 1.0), (1, math.nan), (2, 2.0), (3, math.inf), (4, 1.0), (5, 3.0)]
    found = read(curves([Series("a", points, dots=True)], X, Y).html)
    line = next(each for each in found.all("path") if "stroke:var(--blue)" in each.attributes.get("style", ""))
    assert re.findall("[ML]", line.attributes["d"]) == ["M", "M", "M", "L"]
    assert len(found.all("circle")) == 4


def test_curves_without_numbers_are_nothing() -> None:
    for empty in (curves([], X, Y), curves([Series("a", [(0, math.nan)])], X, Y)):
        assert not empty
        assert empty.html == ""
    kept = read(curves([Series("a", [(0, math.nan)]), Series("b", [(0, 1.0)], dots=True)], X, Y).html)
    assert not kept.all("li")
    assert len(kept.all("circle")) == 1


def test_long_curves_keep_their_shape_in_few_points() -> None:
    long = [(place, 5.0 if place < 5000 else 1.0) for place in range(10_000)]
    found = curves([Series("a", long)], Axis("step"), Axis("loss", from_zero=True)).html
    assert len(found) < 8_000
    path = next(each for each in read(found).all("path") if "blue" in each.attributes.get("style", ""))
    heights = [float(each) for each in re.findall(r"[ML][\d.]+ ([\d.]+)", path.attributes["d"])]
    assert heights == sorted(heights)
    assert {heights.count(each) for each in (heights[0], heights[-1])} <= {119, 120}  # half of 240 each, one may mix


BINS = [
    Bin(0.0, 0.25, 0, math.nan, math.nan),
    Bin(0.25, 0.5, 4, 0.4, 0.25),
    Bin(0.5, 0.75, 40, 0.6, 0.75),
    Bin(0.75, 1.0, 80, 0.95, 0.9),
]


def test_reliability_bars_are_as_high_as_the_share_that_is_right() -> None:
    found = read(reliability(BINS).html)
    shapes = [[each for each in part if each.tag == "rect"] for part in titled(found).values()]
    assert len(shapes) == 3  # a bin without answers has no bar
    heights = [numbers(part[0], "height")[0] for part in shapes]
    assert heights[1] / heights[0] == pytest.approx(3, abs=0.02)
    assert heights[2] / heights[0] == pytest.approx(3.6, abs=0.02)
    lefts = [numbers(part[0], "x")[0] for part in shapes]
    assert lefts[1] - lefts[0] == pytest.approx(lefts[2] - lefts[1], abs=0.15)
    gaps = [numbers(part[1], "height")[0] for part in shapes]  # from what is right to what was stated
    assert gaps[0] / heights[0] == pytest.approx(0.15 / 0.25, abs=0.01)
    assert gaps[2] / heights[2] == pytest.approx(0.05 / 0.9, abs=0.01)
    counts = [numbers(part[2], "height")[0] for part in shapes]
    assert counts[2] / counts[1] == pytest.approx(2, abs=0.02)
    assert opacity(shapes[0][0]) < opacity(shapes[1][0])  # four answers say little


def test_bins_of_fewer_than_ten_answers_are_faint() -> None:
    found = read(
        reliability([Bin(0.1 * n, 0.1 * (n + 1), count, 0.5, 0.5) for n, count in enumerate((6, 9, 10, 15))]).html
    )
    bars = [next(each for each in part if each.tag == "rect") for part in titled(found).values()]
    faint, solid = opacity(bars[0]), opacity(bars[3])
    assert faint < solid
    assert [opacity(each) for each in bars] == [faint, faint, solid, solid]


@pytest.mark.parametrize("count, told", [(9, True), (10, False)])
def test_pale_bars_have_a_place_in_the_legend(count: int, told: bool) -> None:
    names = [each.text for each in read(reliability([Bin(0.5, 1.0, count, 0.7, 0.7)]).html).all("li")]
    assert names == ["right", *["right, of fewer than 10 answers"] * told, "distance from what it stated"]


def test_a_legend_shows_lines_as_lines() -> None:
    """As thin as a line is drawn, and pale where it is."""
    both = [Series("a", [(0, 1.0), (1, 2.0)]), Series("b", [(0, 2.0), (1, 1.0)], thin=True)]
    keys = re.findall(r'<li>.*?style="([^"]*)"', curves(both, X, Y).html)
    assert ["stroke-width:2" in each for each in keys] == [True, True]
    assert ["stroke-opacity:1" in each for each in keys] == [True, False]


def test_reliability_says_its_numbers() -> None:
    words = list(titled(read(reliability(BINS).html)))
    assert words[1] == "40 answers between 50 % and 75 %: stated 60.0 % on average, right 75.0 %"
    assert not reliability(BINS[:1])
    [one] = [each for each in titled(read(reliability([Bin(0.5, 1.0, 1, 0.7, 1.0)]).html)) if "answer" in each]
    assert one.startswith("1 answer between 50 % and 100 %")


def test_bars_are_as_long_as_their_values_and_show_their_intervals() -> None:
    found = read(bars([Bar("a", 0.4, 0.3, 0.6), Bar(HOSTILE, 0.8), Bar("none", math.nan)], "F1").html)
    shapes = titled(found)
    assert list(shapes) == ["a: 40.0 %, 30.0 % to 60.0 %", f"{HOSTILE}: 80.0 %"]
    first, second = shapes.values()
    widths = [next(numbers(each, "width")[0] for each in part if each.tag == "rect") for part in (first, second)]
    assert widths[1] / widths[0] == pytest.approx(2, abs=0.01)
    left = next(numbers(each, "x")[0] for each in first if each.tag == "rect")
    line = next(each.attributes["d"] for each in first if each.tag == "path")
    low, high = (float(each) for each in re.match(r"M([\d.]+) \S+H([\d.]+)", line).groups())  # type: ignore[union-attr]
    assert (low - left) / widths[0] == pytest.approx(0.75, abs=0.01)
    assert (high - left) / widths[0] == pytest.approx(1.5, abs=0.01)
    assert not [each for each in second if each.tag == "path"]
    assert not bars([], "F1")


def test_a_histogram_stacks_its_groups_and_leaves_out_what_is_no_number() -> None:
    found = read(histogram([("right", [0.1, 0.2, 0.9, 0.9, 0.9]), ("wrong", [0.9, math.nan])], UNIT, bins=2).html)
    shapes = found.all("rect")
    words = [each.text for each in found.all("title")]
    assert words == ["right: 2 from 0 to 0.5", "right: 3 from 0.5 to 1", "wrong: 1 from 0.5 to 1"]
    tops, heights = zip(*(numbers(each, "y", "height") for each in shapes), strict=True)
    assert heights[0] / heights[2] == pytest.approx(2, abs=0.02)
    assert heights[1] / heights[2] == pytest.approx(3, abs=0.02)
    assert tops[2] + heights[2] == pytest.approx(tops[1], abs=0.15)  # wrong stands on right
    assert not histogram([("a", [])], UNIT)
    assert not histogram([], UNIT)


def test_a_strip_shares_its_length() -> None:
    found = read(strip([("reading", 1.0, "amber"), ("computing", 3.0, "blue")], "time").html)
    widths = [numbers(each, "width")[0] for each in found.all("rect")]
    assert (widths[1] + 2) / (widths[0] + 2) == pytest.approx(3, abs=0.01)
    assert [each.text for each in found.all("li")] == ["reading: 25 %", "computing: 75 %"]
    assert not strip([("a", 0.0, "blue")], "time")


def test_every_chart_says_what_it_is_to_those_who_cannot_see_it() -> None:
    drawn = [
        curves([Series("a", [(0, 1)])], X, Axis("loss")),
        reliability(BINS),
        confusion(np.array([[3, 1], [0, 2]]), ["a", "b"]),
        bars([Bar("a", 1)], "F1"),
        histogram([("a", [0.5])], UNIT),
    ]
    for each in drawn:
        plot = read(each.html).all("svg", "plot")[0].attributes
        assert plot["role"] == "img"
        assert len(plot["aria-label"]) > 5
        assert "var(--" in each.html
        assert not re.search(r"(fill|stroke):#", each.html)  # colours follow the light


def test_points_stand_where_their_values_say_and_away_from_the_axis() -> None:
    points = [Point(10.0, 1.0, name="low"), Point(20.0, 2.0, mark="square"), Point(30.0, 3.0, filled=False)]
    found = read(curves([], X, Y, points=points).html)
    (x0, y0), (x2, y2) = (numbers(each, "cx", "cy") for each in found.all("circle"))
    [square] = found.all("rect")
    x1, y1 = (
        numbers(square, side)[0] + numbers(square, length)[0] / 2 for side, length in (("x", "width"), ("y", "height"))
    )
    assert (x1 - x0, y0 - y1) == pytest.approx((x2 - x1, y1 - y2), abs=0.2)
    axis = min(
        float(each.attributes["x"]) for each in found.all("text", "tick") if each.attributes.get("text-anchor") == "end"
    )
    assert x0 - axis > 12
    assert [each.text for each in found.all("text", "name")] == ["low"]
    assert [("fill:none" in each.attributes["style"]) for each in found.all("circle")] == [False, True]


def test_counts_by_powers_of_ten_show_one_beside_many() -> None:
    values = [0.1] * 1000 + [0.9]
    found = read(histogram([("patches", values)], UNIT, bins=4, of="patches", log_counts=True).html)
    heights = [numbers(each, "height")[0] for each in found.all("rect")]
    assert heights[0] / heights[1] == pytest.approx(math.log10(1000 / 0.8) / math.log10(1 / 0.8), rel=0.05)
    assert {"1", "10", "100", "1,000", "patches (logarithmic scale)"} <= {
        each.text for each in found.all("text", "tick")
    }


def test_a_single_point_has_its_number_below_it() -> None:
    page = read(curves([Series("validation", [(17 / 84, 0.5)], dots=True)], Axis("epoch"), Axis("accuracy")).html)
    assert "0.202" in [each.text for each in page.all("text", "tick")]


def test_names_of_lines_stand_above_the_bars_and_meet_no_line() -> None:
    lines = [Line(17.0, "prefix tokens"), Line(23.0, "median"), Line(69.0, "3 x median")]
    chart = histogram([("", np.full(30, 23.0))], Axis("norm", low=0.0, high=70.0), lines=lines, size=(560.0, 300.0))
    page = read(chart.html)
    dashed = [each for each in page.all("path") if "dasharray" in each.attributes.get("style", "")]
    at = [float(each.attributes["d"].removeprefix("M").split()[0]) for each in dashed]
    names = page.all("text", "name")
    assert [each.attributes["text-anchor"] for each in names] == ["end", "start", "end"]
    for name, line in zip(names, at, strict=True):
        x, y = float(name.attributes["x"]), float(name.attributes["y"])
        reach = text_width(name.text) * (-1 if name.attributes["text-anchor"] == "end" else 1)
        assert not [each for each in at if each != line and min(x, x + reach) < each < max(x, x + reach)]
        assert y < min(float(each.attributes["y"]) for each in page.all("rect"))


def test_names_of_lines_that_stand_close_go_below_each_other() -> None:
    lines = [Line(30.0 + each, "a name of some length") for each in range(3)]
    page = read(histogram([("", [30.0])], Axis("norm", low=0.0, high=70.0), lines=lines, size=(560.0, 300.0)).html)
    places = [(each.attributes["text-anchor"], each.attributes["y"]) for each in page.all("text", "name")]
    assert len(set(places)) == 3
