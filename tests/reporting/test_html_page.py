"""Pages: one file, nothing fetched, every given name shown as text, readable in both lights."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from evaluation.markup import read
from vitrail.errors import InputError
from vitrail.reporting.html_page import (
    LARGEST,
    Html,
    Section,
    Shown,
    Tile,
    beside,
    breakable,
    callout,
    code,
    counted,
    data_uri,
    facts,
    folded,
    gallery,
    heading,
    meter,
    number,
    page,
    paragraph,
    percent,
    table,
    tabs,
    text,
    tiles,
)
from vitrail.reporting.page_script import SCRIPT

HOSTILE = "\"'></title></style></p><script>alert(1)</script><img src=x onerror=alert(2)>&amp; ${x} <!-- "
GREY = Image.new("L", (8, 8), 90)


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def opened(uri: str) -> Image.Image:
    kind, data = uri.removeprefix("data:image/").split(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    assert image.format == kind.upper()
    return image


def test_a_page_has_its_sections_and_links_to_each() -> None:
    found = page("Flowers", "400 images", [Section("In short", "<p>good</p>"), Section("Data", "", "All of it.")])
    read_page = read(found)
    assert found.startswith("<!doctype html>")
    assert [each.text for each in read_page.all("h1")] == ["Flowers"]
    assert [each.text for each in read_page.all("h2")] == ["In short", "Data"]
    assert [each.text for each in read_page.all("a")] == ["In short", "Data"]
    targets = [each.attributes["href"][1:] for each in read_page.all("a")]
    assert targets == [each.attributes["id"] for each in read_page.all("section")]
    assert [each.text for each in read_page.all("p", "note")] == ["All of it."]
    assert "400 images" in read_page.text
    assert "Vitrail" in read_page.all("header")[0].text


def test_a_page_fetches_nothing_and_runs_its_own_script_alone() -> None:
    found = page("a", "b", [Section("c", gallery([Shown(GREY, "grey")]))])
    assert "http" not in found.replace("http-equiv", "")
    policy = next(each for each in read(found).all("meta") if "content" in each.attributes).attributes["content"]
    assert "default-src 'none'" in policy
    ours = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert re.findall(r"script-src ([^;]*)", policy) == [f"'sha256-{ours}'"]
    assert re.findall(r"<script>(.*?)</script>", found, re.DOTALL) == [SCRIPT]
    assert found.count("<script") == 1
    assert not re.search(r"https?:|import\b|fetch|XMLHttp|eval\(|innerHTML", SCRIPT)


PARTS: dict[str, Callable[[str], str]] = {
    "title": lambda name: page(name, "", []),
    "subtitle": lambda name: page("", name, []),
    "section": lambda name: page("", "", [Section(name, "", name), Section("", "")]),
    "paragraph": paragraph,
    "heading": heading,
    "callout": callout,
    "facts": lambda name: facts([(name, name)]),
    "tiles": lambda name: tiles([Tile(name, name, name)]),
    "headers": lambda name: table([name], [["x"]]),
    "cells": lambda name: table(["a", "b"], [[name, name]]),
    "gallery": lambda name: gallery([Shown(GREY, name)]),
    "tabs": lambda name: tabs("a", [(name, "")]),
    "folded": lambda name: folded(name, ""),
    "code": code,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.fault("W17")
def test_hostile_names_are_only_text(part: str) -> None:
    found = PARTS[part](HOSTILE)
    read_page = read(found)  # refuses scripts, handlers and foreign sources
    plain = HOSTILE.strip()
    texts = [each.text for each in read_page.elements if each.tag != "style"]
    assert any(plain in each for each in texts)
    assert len(read_page.all("img")) == (part == "gallery")


def test_names_that_no_file_could_hold_or_that_turn_the_text_around() -> None:
    found = page("caf\udce9", "\u202eevil\x00\x1b[31m", [])
    assert "caf\ufffd" in found.encode("utf-8").decode("utf-8")
    assert "\ufffdevil\ufffd\ufffd[31m" in found


def test_markup_is_kept_and_text_escaped() -> None:
    assert text(Html("<b>x</b>")) == "<b>x</b>"
    assert text("<b>x</b>") == "&lt;b&gt;x&lt;/b&gt;"
    rows = read(table(["a", "b"], [["<i>", Html("<i>x</i>")]]))
    assert [each.text for each in rows.all("i")] == ["x"]


@pytest.mark.parametrize(
    ("value", "said"),
    [(3, "3"), (12345, "12,345"), (0.5, "0.5"), (1234.5, "1,234"), (0.00012345, "0.000123"), (None, "–")],
)
def test_numbers(value: float | None, said: str) -> None:
    assert number(value) == said
    assert number(math.nan) == "–"
    assert number(-math.inf) == "-∞"


def test_tiles_have_the_tone_of_what_they_say() -> None:
    found = read(tiles([Tile("1", "a"), Tile("2", "b", tone="good"), Tile("3", "c", tone="bad")]))
    assert [each.attributes["class"] for each in found.all("div", "tile")] == ["tile", "tile good", "tile bad"]


def test_columns_of_words_say_how_wide_they_must_be_to_be_read() -> None:
    """By their longest cell: classes need little, sentences much, numbers and bars their own."""
    row = [
        "ant",
        "bee",
        "Apple Granny Smith",
        "the whole network, 51 steps, and then some",
        5,
        Html("<b>long markup</b>"),
    ]
    found = read(table(["a", "b", "c", "d", "e", "f"], [row]))
    kinds = [each.attributes.get("class", "") for each in found.all("th") if each.attributes["scope"] == "col"]
    assert kinds == ["", "", "names", "sentences", "n", ""]


def test_shares_and_counts() -> None:
    assert percent(0.8714) == "87.1 %"
    assert percent(0.8714, 0) == "87 %"
    assert percent(math.nan) == percent(None) == "–"
    assert counted(1, "image") == "1 image"
    assert counted(1200, "image") == "1,200 images"


def test_shares_and_options_stay_on_one_line() -> None:
    found = read(callout("between 84.9 and 89.0 % of them", "good"))
    assert [each.text for each in found.all("span", "w")] == ["89.0 %"]
    assert found.all("p")[0].text == "between 84.9 and 89.0 % of them"
    assert [each.text for each in read(callout("set --batch-size (now 16)")).all("span", "w")] == ["--batch-size"]


def test_a_table_names_its_rows_and_sets_numbers_right() -> None:
    found = read(table(["class", "n", "share", "note"], [["0", 12, "1.5 %", "x"], ["1", 1200, "–", "y"]]))
    heads = {each.text: each.attributes for each in found.all("th") if each.attributes["scope"] == "col"}
    assert [name for name, each in heads.items() if each.get("class") == "n"] == ["n", "share"]
    assert [each.text for each in found.all("th") if each.attributes["scope"] == "row"] == ["0", "1"]
    assert [each.text for each in found.all("td", "n")] == ["12", "1.5 %", "1,200", "–"]


def test_a_long_table_folds_its_end() -> None:
    found = read(table(["a", "b"], [[str(place), place] for place in range(10)], most=4))
    hidden = found.all("details")[0]
    assert "6 more" in hidden.text
    assert [each.text for each in found.all("td")] == [str(place) for place in range(10)]
    assert all(str(place) in hidden.text for place in range(4, 10))
    assert not read(table(["a"], [["x"]] * 4, most=4)).all("details")


def test_rows_that_stay_first_and_words_that_may_be_broken_are_marked() -> None:
    found = read(table(["class", "n"], [["all", 3], ["a", 1], [40 * "b", 2]], most=2, fixed=1))
    assert [each.text for each in found.all("tr", "fixed")] == ["all3"]
    assert [each.text for each in found.all("th", "long")] == [40 * "b"]
    assert len(found.all("div", "table")) == 1  # both parts sort as one
    assert len(found.all("table")) == 2


def test_a_table_refuses_rows_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="a row of 1 cells under 2 headers"):
        table(["a", "b"], [["x", 1], ["y"]])


def test_nothing_to_show_is_nothing() -> None:
    assert table(["a"], []) == gallery([]) == facts([]) == tiles([]) == beside("", "") == ""


def test_tiny_images_are_kept_pixel_for_pixel() -> None:
    image = noise(28, 28)
    found = read(gallery([Shown(image, "Coat\nsaid Shirt, 98.0 %", "bad")])).all
    shown = found("img")[0].attributes
    assert shown["class"] == "tiny"
    assert np.array_equal(np.asarray(opened(shown["src"]).convert("RGB")), np.asarray(image))
    assert shown["alt"] == "Coat, said Shirt, 98.0 %"
    assert found("figure")[0].attributes["class"] == "bad"
    assert found("b")[0].text == "Coat"
    assert found("figcaption")[0].text == "Coatsaid Shirt, 98.0 %"


def test_large_images_are_reduced() -> None:
    smooth = Image.linear_gradient("L").resize((900, 450))
    shown = opened(data_uri(smooth))
    assert shown.size == (480, 240)
    assert np.abs(np.asarray(shown.convert("L"), int) - np.asarray(smooth.resize((480, 240)), int)).mean() < 2
    assert "tiny" not in gallery([Shown(smooth, "x")])


def test_no_image_takes_more_than_its_share_of_the_page() -> None:
    assert len(data_uri(noise(640, 480))) <= LARGEST
    assert len(data_uri(noise(96, 96))) < 1.5 * 96 * 96 * 3


def test_what_does_not_fit_is_reduced_further() -> None:
    """Noise as large as the largest that is shown would take many times its share."""
    found = data_uri(noise(480, 480))
    assert len(found) <= LARGEST
    with Image.open(io.BytesIO(base64.b64decode(found.split(",")[1]))) as shown:
        assert max(shown.size) < 480
    with Image.open(io.BytesIO(base64.b64decode(data_uri(Image.new("RGB", (640, 480))).split(",")[1]))) as shown:
        assert shown.size == (480, 360)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_images_of_every_kind_are_shown(mode: str) -> None:
    image = Image.new(mode, (20, 20)) if mode == "I;16" else GREY.resize((20, 20)).convert(mode)
    assert opened(data_uri(image)).size == (20, 20)


@pytest.mark.parametrize("make", [lambda: callout("x", "red"), lambda: gallery([Shown(GREY, "x", "red")])])  # type: ignore[arg-type]
def test_unknown_tones_are_refused(make: Callable[[], str]) -> None:
    with pytest.raises(InputError, match="tone: expected good, bad, warn or nothing, got 'red'"):
        make()


def test_tabs_show_the_first_and_can_reach_all() -> None:
    found = read(tabs("views", [("Counts", "<p>1</p>"), ("Shares", "<p>2</p>")]))
    inputs = [each.attributes for each in found.all("input")]
    assert ["checked" in each for each in inputs] == [True, False]
    assert {each["name"] for each in inputs} == {"views"}
    assert [each.attributes["for"] for each in found.all("label")] == [each["id"] for each in inputs]
    assert [each.text for each in found.all("div", "tab")] == ["1", "2"]


@pytest.mark.parametrize(("name", "count"), [("a", 0), ("a", 5), ("a b", 2)])
def test_tabs_refuse_what_the_style_cannot_show(name: str, count: int) -> None:
    with pytest.raises(InputError, match="tabs: expected 1 to 4 views and a plain name"):
        tabs(name, [("x", "")] * count)


def test_meters_are_as_long_as_their_share() -> None:
    assert 'style="width:25.0%"' in meter(0.25)
    assert 'style="width:100.0%"' in meter(7.0)
    assert 'style="width:0.0%"' in meter(math.nan)


def test_parts_stand_beside_each_other_in_order() -> None:
    found = read(beside("<p>a</p>", "", "<p>b</p>"))
    assert [each.text for each in found.all("div")][:3] == ["a", "", "b"]


def test_a_long_file_name_breaks_where_its_parts_meet() -> None:
    assert breakable("5/IMG_1225.JPG, 83.8 %") == '5/<wbr>IMG_<wbr>1225.JPG, <span class="w">83.8 %</span>'
    assert breakable("<a folder/of>") == "&lt;a folder/<wbr>of&gt;"
    assert breakable("predicted two_hands") == "predicted two_hands"
    assert breakable(Html("<b>photos/IMG_1225.JPG</b>")) == "<b>photos/IMG_1225.JPG</b>"
    shown = gallery([Shown(Image.new("RGB", (4, 4)), "one/two_three.png")], "large")
    assert '<div class="gallery large">' in shown
    assert "<b>one/<wbr>two_<wbr>three.png</b>" in shown
    assert 'alt="one/two_three.png"' in shown
    assert '<div class="gallery">' in gallery([Shown(Image.new("RGB", (4, 4)), "")])
