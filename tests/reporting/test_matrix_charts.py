"""Charts of cells: each stands in its row and column, as strong as its number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evaluation.markup import read
from reporting.shapes import numbers, opacity, titled
from vitrail.errors import InputError
from vitrail.reporting.image_sheets import colours_of
from vitrail.reporting.matrix_charts import confusion, heat_map
from vitrail.reporting.shapes import text_width

HOSTILE = "<script>alert('1')</script>"


def matrix() -> tuple[Any, list[str]]:
    return np.array([[8, 2, 0], [1, 0, 0], [0, 30, 10]]), ["ant", "bee", HOSTILE]


def cells(normalised: bool) -> dict[str, tuple[float, float, float, str]]:
    """Left, top, strength and number of every cell by what it says."""
    page = read(confusion(*matrix(), normalised).html)
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


@pytest.mark.parametrize("names", [("Apple Granny Smith", "Banana"), ("a", "b"), ("a", "A very long class name")])
def test_no_word_of_a_confusion_reaches_beyond_its_frame(names: tuple[str, str]) -> None:
    """A slanted name of the first class may lean further than that of the last."""
    chart = confusion(np.array([[3, 0], [1, 2]]), names)
    for each in read(chart.html).all("text"):
        wide = text_width(each.text)
        if "transform" in each.attributes:
            left = float(each.attributes["transform"].split("(")[1].split()[0])
            assert left + 0.64 * wide <= chart.width, each.text  # the cosine of 50 degrees
        elif each.attributes["text-anchor"] == "start":
            assert float(each.attributes["x"]) + wide <= chart.width, each.text


def test_a_normalised_confusion_is_strong_where_a_class_is_lost() -> None:
    found = cells(normalised=True)
    assert max(found, key=lambda words: found[words][2]) == "bee, taken for ant: 1 of 1 (100.0 %)"
    assert found[f"{HOSTILE}, right: 10 of 40 (25.0 %)"][3] == "25"


def test_a_class_without_images_has_an_empty_row() -> None:
    found = read(confusion(np.array([[3, 0], [0, 0]]), ["a", "b"], normalised=True).html)
    assert list(titled(found)) == ["a, right: 3 of 3 (100.0 %)"]


@pytest.mark.parametrize(("count", "numbered"), [(30, True), (31, False), (200, False)])
def test_many_classes_are_drawn_without_numbers(count: int, numbered: bool) -> None:
    table = np.random.default_rng(0).integers(1, 50, (count, count))
    found = confusion(table, [f"class {place}" for place in range(count)]).html
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


def test_cells_of_a_heat_map_stand_in_their_rows_with_their_colours() -> None:
    values = np.array([[0.0, 1.0], [np.nan, 0.5]])
    found = read(heat_map(values, "Importance", "block", "head").html)
    squares = titled_squares(found)
    assert list(squares) == ["block 0, head 0: 0", "block 0, head 1: 1", "block 1, head 1: 0.5"]  # NaN stays empty
    (left, top, _), (right, same, high), (_, below, middle) = squares.values()
    assert right - left == below - top == 24
    assert top == same
    assert [high, middle] == [
        f"fill:rgb({','.join(map(str, colours_of(np.array(each)).tolist()))})" for each in (1.0, 0.5)
    ]
    words = [each.text for each in found.all("text", "tick")]
    assert {"block 0", "block 1", "head", "0", "1"} <= set(words)


def titled_squares(page: Any) -> dict[str, tuple[float, float, str]]:
    """Left, top and colour of every cell by what it says."""
    waiting, found = "", {}
    for each in page.elements:
        if each.tag == "title":
            waiting = each.text
        elif each.tag == "rect" and waiting:
            found[waiting] = (*numbers(each, "x", "y"), each.attributes["style"])
            waiting = ""
    return found


def test_few_classes_have_large_cells_and_short_names_stand_upright() -> None:
    two, ten = (confusion(np.eye(count), [str(number) for number in range(count)]) for count in (2, 10))
    sides = [float(read(each.html).all("rect", "axis")[0].attributes["width"]) for each in (two, ten)]
    assert sides == [112.0, 340.0]
    assert "rotate" not in two.html + ten.html
    long = confusion(np.eye(2), ["a long name", "another"])
    assert long.html.count("rotate") == 2
    truth, column = (next(each for each in read(two.html).all("text") if each.text == name) for name in ("truth", "0"))
    assert float(truth.attributes["x"]) + text_width("truth") < float(column.attributes["x"])
