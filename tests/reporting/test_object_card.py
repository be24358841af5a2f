"""Cards: what a REPL prints and a notebook shows, in few lines, with nothing that acts."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from vitrail.reporting.object_card import Card, cut, listing


class Tags(HTMLParser):
    """The tags of a piece of HTML, and its text; every tag that opens is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_names_stand_in_a_column_and_rows_without_a_value_are_left_out() -> None:
    card = Card("Thing: one", (("a", "1"), ("nothing", ""), ("longer", "2")))
    assert card.as_text() == "Thing: one\n  a       1\n  longer  2"
    assert "nothing" not in card.as_html()


def test_what_is_printed_has_ten_lines_of_a_hundred_columns_at_most() -> None:
    card = Card("T" * 300, [(f"row{number}", "x" * 300) for number in range(30)])
    lines = card.as_text().splitlines()
    assert len(lines) == 10
    assert {len(line) for line in lines[:-1]} == {100}
    assert all(line.endswith("…") for line in lines[:-1])
    assert lines[-1].startswith("  and   row8, row9, row10")


def test_a_long_value_goes_on_below_as_long_as_there_is_room() -> None:
    """The number at the end of a long line is not lost."""
    words = "of images like them at most " * 6 + "12 %"
    lines = Card("Title", (("long", words), ("short", "x"))).as_text().splitlines()
    assert " ".join(each[9:] for each in lines[1:-1]) == words
    assert lines[-1] == "  short  x"
    assert all(each.startswith(" " * 9) for each in lines[2:-1])
    full = Card("Title", (("long", words), *((str(number), "x") for number in range(8)))).as_text().splitlines()
    assert len(full) == 10
    assert full[1].endswith("…")


def test_wide_letters_take_two_columns() -> None:
    assert cut("漢" * 50, 100) == "漢" * 50
    assert cut("漢" * 51, 100) == "漢" * 49 + "…"
    assert cut("a" * 101, 100) == "a" * 99 + "…"


def test_a_value_stays_on_its_line_and_hides_no_signs() -> None:
    text = Card("x", (("name", "one\ntwo\x1b[31m\u202ethree"),)).as_text()
    assert text == "x\n  name  one two\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}three"


def test_html_is_escaped_closed_and_does_nothing() -> None:
    evil = '</style><script>alert("x")</script><img src=x onerror=y>'
    html = Card(evil, ((evil, evil),), Image.new("RGB", (8, 4)), evil).as_html()
    parsed = Tags(html)
    assert set(parsed.tags) == {"div", "style", "dl", "dt", "dd", "img"}
    assert parsed.tags.count("img") == 1
    assert "<script" not in html
    assert parsed.words.count(evil) == 3  # title, name and value, as text
    assert not re.search(r"https?:|url\(", html)


def test_a_card_has_rules_for_light_and_dark_of_its_own() -> None:
    html = Card("x", ()).as_html()
    assert "prefers-color-scheme:dark" in html
    assert '[data-jp-theme-light="false"] .vitrail-card' in html  # JupyterLab's own choice stands above the system's
    selectors = re.findall(r"[^{}]+(?=\{)", html.partition("<style>")[2].partition("</style>")[0])
    assert all(".vitrail-card" in each or each.startswith("@media") for each in selectors)


def test_an_image_is_a_png_inside_reduced_to_a_card() -> None:
    values = np.random.default_rng(0).integers(0, 255, (400, 800, 3), dtype=np.uint8)
    html = Card("x", (), Image.fromarray(values), "noise").as_html()
    found = re.search(r'<img src="data:image/png;base64,([^"]+)" width="360" alt="noise">', html)
    assert found is not None
    assert Image.open(io.BytesIO(base64.b64decode(found[1]))).size == (360, 180)


def test_a_small_image_is_shown_larger_with_its_own_pixels() -> None:
    image = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    html = Card("x", (), image).as_html()
    found = re.search(r'base64,([^"]+)" width="(\d+)"', html)
    assert found is not None
    assert int(found[2]) == 180
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(found[1])))), np.asarray(image))


@pytest.mark.parametrize(
    "names, words", [((), ""), (("a", "b"), "2: a, b"), (tuple("abcdefghij"), "10: a, b, c, d, e, f, g, h, …")]
)
def test_many_names_are_counted_and_the_first_told(names: tuple[str, ...], words: str) -> None:
    assert listing(names) == words
