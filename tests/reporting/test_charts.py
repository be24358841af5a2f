"""Charts: what is drawn stands where its value says."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from evaluation.markup import Element, Page, read
from vitrail.errors import InputError
from vitrail.evaluation.results import Bin
from vitrail.reporting.axes import Scale, cut, inside, plain, room, short, ticks
from vitrail.reporting.charts import Bar, Series, bars, confusion, curves, histogram, reliability, strip

HOSTILE = "<script>alert('1')</script>"


def numbers(element: Element, *names: str) -> tuple[float, ...]:
    return tuple(float(element.attributes[name]) for name in names)


def opacity(element: Element) -> float:
    return float(re.search(r"fill-opacity:([\d.]+)", element.attributes["style"]).group(1))  # type: ignore[union-attr]


def titled(page: Page) -> dict[str, list[Element]]:
    """The shapes of each group by the group's title."""
    found: dict[str, list[Element]] = {}
    waiting: list[Element] = []
    for element in page.elements:
        if element.tag == "title":
            waiting = found.setdefault(element.text, [])
        elif element.tag in ("rect", "path", "text"):
            waiting.append(element)
        elif element.tag == "g":
            waiting = []
    return found


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
    assert inside(0.05, 1.0) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert inside(1, 12, 6) == [2, 4, 6, 8, 10, 12]


def test_a_scale_is_a_straight_line() -> None:
    down = Scale(0, 10, 200, 20)
    assert [down(value) for value in (0, 5, 10)] == [200, 110, 20]
    assert Scale(3, 3, 0, 10)(3) == 5


def test_words_on_axes_are_short() -> None:
    assert [plain(value) for value in (0.0, 0.0002, 2.5e-6, 12000, 3e9)] == ["0", "0.0002", "2.5e-6", "12,000", "3e9"]
    assert [short(value) for value in (7, 9999, 12345, 3_400_000)] == ["7", "9999", "12k", "3M"]
    assert cut("a class with a long name", 10) == "a class w…"
    assert cut(" two\nlines ", 20) == "two lines"
    assert cut("日本語日本語", 7) == "日本語…"
    assert cut("", 9) == "(no name)"
    assert room("日本") == room("abcd")


def test_points_of_a_curve_stand_where_their_values_say() -> None:
    values = [2.0, 1.0, 0.5, 1.5]
    found = read(curves([Series("val", list(enumerate(values)), dots=True)], "epoch", "loss"))
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
    found = read(curves(series, "x", "y", in_percent=True))
    assert [each.text for each in found.all("li")] == ["a", "b"]
    assert "75.0 %" in found.all("title")[1].text
    assert "40 %" in [each.text for each in found.all("text", "tick")]


def test_a_curve_is_lifted_where_there_is_no_number() -> None:
    points = [(0, 1.0), (1, math.nan), (2, 2.0), (3, math.inf), (4, 1.0), (5, 3.0)]
    found = read(curves([Series("a", points, dots=True)], "x", "y"))
    line = next(each for each in found.all("path") if "stroke:var(--blue)" in each.attributes.get("style", ""))
    assert re.findall("[ML]", line.attributes["d"]) == ["M", "M", "M", "L"]
    assert len(found.all("circle")) == 4


def test_curves_without_numbers_are_nothing() -> None:
    assert curves([], "x", "y") == curves([Series("a", [(0, math.nan)])], "x", "y") == ""
    kept = read(curves([Series("a", [(0, math.nan)]), Series("b", [(0, 1.0)], dots=True)], "x", "y"))
    assert not kept.all("li")
    assert len(kept.all("circle")) == 1


def test_long_curves_keep_their_shape_in_few_points() -> None:
    long = [(place, 5.0 if place < 5000 else 1.0) for place in range(10_000)]
    found = curves([Series("a", long)], "step", "loss", from_zero=True)
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
    found = read(reliability(BINS))
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
    found = read(reliability([Bin(0.1 * n, 0.1 * (n + 1), count, 0.5, 0.5) for n, count in enumerate((6, 9, 10, 15))]))
    bars = [next(each for each in part if each.tag == "rect") for part in titled(found).values()]
    faint, solid = opacity(bars[0]), opacity(bars[3])
    assert faint < solid
    assert [opacity(each) for each in bars] == [faint, faint, solid, solid]


def test_reliability_says_its_numbers() -> None:
    words = list(titled(read(reliability(BINS))))
    assert words[1] == "40 answers between 50 % and 75 %: stated 60.0 % on average, right 75.0 %"
    assert reliability(BINS[:1]) == ""


def matrix() -> tuple[Any, list[str]]:
    return np.array([[8, 2, 0], [1, 0, 0], [0, 30, 10]]), ["ant", "bee", HOSTILE]


def cells(normalised: bool) -> dict[str, tuple[float, float, float, str]]:
    """Left, top, strength and number of every cell by what it says."""
    page = read(confusion(*matrix(), normalised))
    found = {}
    for words, shapes in titled(page).items():
        square, label = shapes[:2]
        found[words] = (*numbers(square, "x", "y"), opacity(square), label.text)
    return found


def test_cells_of_a_confusion_stand_in_the_row_of_the_truth() -> None:
    found = cells(normalised=False)
    right = found["ant, right: 8 of 10 (80.0 %)"]
    taken = found["ant, taken for bee: 2 of 10 (20.0 %)"]
    below = found["bee, taken for ant: 1 of 1 (100.0 %)"]
    assert taken[0] > right[0]
    assert taken[1] == right[1] < below[1]
    assert below[0] == right[0]
    assert [right[3], taken[3], below[3]] == ["8", "2", "1"]
    assert len(found) == 5  # zeros stay empty
    brightest = max(found, key=lambda words: found[words][2])
    assert brightest == f"{HOSTILE}, taken for bee: 30 of 40 (75.0 %)"


def test_a_normalised_confusion_is_strong_where_a_class_is_lost() -> None:
    found = cells(normalised=True)
    assert max(found, key=lambda words: found[words][2]) == "bee, taken for ant: 1 of 1 (100.0 %)"
    assert found[f"{HOSTILE}, right: 10 of 40 (25.0 %)"][3] == "25"


def test_a_class_without_images_has_an_empty_row() -> None:
    found = read(confusion(np.array([[3, 0], [0, 0]]), ["a", "b"], normalised=True))
    assert list(titled(found)) == ["a, right: 3 of 3 (100.0 %)"]


@pytest.mark.parametrize(("count", "numbered"), [(30, True), (31, False), (200, False)])
def test_many_classes_are_drawn_without_numbers(count: int, numbered: bool) -> None:
    table = np.random.default_rng(0).integers(1, 50, (count, count))
    found = confusion(table, [f"class {place}" for place in range(count)])
    page = read(found)
    assert bool(page.all("title")) == numbered
    if not numbered:
        squares = sum(each.attributes["d"].count("z") for each in page.all("path"))
        assert squares == count * count
    assert len(found) < 1_500_000
    labels = [each.text for each in page.all("text") if each.text.startswith("class ")]
    assert "class 0" in labels
    assert len(labels) <= 2 * 66


def test_a_confusion_of_other_classes_is_refused() -> None:
    with pytest.raises(InputError, match="expected a matrix of 2 x 2 for 2 classes, got \\(3, 3\\)"):
        confusion(np.zeros((3, 3)), ["a", "b"])


def test_bars_are_as_long_as_their_values_and_show_their_intervals() -> None:
    found = read(bars([Bar("a", 0.4, 0.3, 0.6), Bar(HOSTILE, 0.8), Bar("none", math.nan)], "F1"))
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
    assert bars([], "F1") == ""


def test_a_histogram_stacks_its_groups_and_leaves_out_what_is_no_number() -> None:
    found = read(histogram([("right", [0.1, 0.2, 0.9, 0.9, 0.9]), ("wrong", [0.9, math.nan])], 0, 1, "x", bins=2))
    shapes = found.all("rect")
    words = [each.text for each in found.all("title")]
    assert words == ["right: 2 from 0 to 0.5", "right: 3 from 0.5 to 1", "wrong: 1 from 0.5 to 1"]
    tops, heights = zip(*(numbers(each, "y", "height") for each in shapes), strict=True)
    assert heights[0] / heights[2] == pytest.approx(2, abs=0.02)
    assert heights[1] / heights[2] == pytest.approx(3, abs=0.02)
    assert tops[2] + heights[2] == pytest.approx(tops[1], abs=0.15)  # wrong stands on right
    assert histogram([("a", [])], 0, 1, "x") == histogram([], 0, 1, "x") == ""


def test_a_strip_shares_its_length() -> None:
    found = read(strip([("reading", 1.0, "amber"), ("computing", 3.0, "blue")], "time"))
    widths = [numbers(each, "width")[0] for each in found.all("rect")]
    assert (widths[1] + 2) / (widths[0] + 2) == pytest.approx(3, abs=0.01)
    assert [each.text for each in found.all("li")] == ["reading: 25 %", "computing: 75 %"]
    assert strip([("a", 0.0, "blue")], "time") == ""


def test_every_chart_says_what_it_is_to_those_who_cannot_see_it() -> None:
    drawn = [
        curves([Series("a", [(0, 1)])], "x", "loss"),
        reliability(BINS),
        confusion(*matrix()),
        bars([Bar("a", 1)], "F1"),
        histogram([("a", [0.5])], 0, 1, "x"),
    ]
    for each in drawn:
        plot = read(each).all("svg", "plot")[0].attributes
        assert plot["role"] == "img"
        assert len(plot["aria-label"]) > 5
        assert "var(--" in each
        assert not re.search(r"(fill|stroke):#", each)  # colours follow the light
