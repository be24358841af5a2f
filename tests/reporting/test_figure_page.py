"""A folder of figures and its page: every figure a file, everything on the page, names only text."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evaluation.markup import read
from vitrail.errors import InputError
from vitrail.reporting.charts import Bar, bars
from vitrail.reporting.figure_page import Figure, write_figure_page
from vitrail.reporting.html_page import Section, table

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (120, 160, 3), dtype=np.uint8))
FIGURES = [Figure("one", "An image.", IMAGE), Figure("two", "A chart.", bars([Bar("a", 0.5)], "share", "Shares"))]


def test_images_and_charts_are_files_and_stand_on_the_page(tmp_path: Path) -> None:
    more = [Section("Numbers", table(["name", "value"], [["depth", 12]]))]
    files = write_figure_page(tmp_path / "new", "Title", "A subtitle.", FIGURES, more)
    assert [each.name for each in files] == ["one.png", "two.svg", "two.png"]
    assert {each.name for each in (tmp_path / "new").iterdir()} == {*(each.name for each in files), "index.html"}
    with Image.open(files[0]) as written:
        assert np.array_equal(np.asarray(written), np.asarray(IMAGE))
    page = read((tmp_path / "new" / "index.html").read_text())
    assert [each.attributes["alt"] for each in page.all("img")] == ["An image."]
    assert next(each.text for each in page.all("figure", "plate")).strip() == "An image."
    assert [each.attributes["aria-label"] for each in page.all("svg", "plot")] == ["Shares: 1 bars"]
    assert [each.text for each in page.all("h2")] == ["Figures", "Numbers"]


def test_without_the_extra_charts_are_svg_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    files = write_figure_page(tmp_path, "Title", "", FIGURES)
    assert [each.name for each in files] == ["one.png", "two.svg"]
    assert "An image." in (tmp_path / "index.html").read_text()


def test_a_scale_stands_with_its_figure_and_a_note_before_all(tmp_path: Path) -> None:
    figures = [FIGURES[0]._replace(scale=("far", "near")), FIGURES[1]]
    write_figure_page(tmp_path, "Title", "", figures, note="What one sees.")
    page = read((tmp_path / "index.html").read_text())
    assert [each.text for each in page.all("ul", "heat")] == ["far  near"]
    assert [each.text for each in page.all("p", "note")] == ["What one sees."]


def test_captions_are_only_text(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4))
    write_figure_page(tmp_path, "<b>", "<i>", [Figure("a", '<script>"', image)])
    page = (tmp_path / "index.html").read_text()
    assert page.count("&lt;script&gt;&quot;") == 2  # on the page, and for those who cannot see it
    assert page.count("<script") == 1  # the page's own
    assert "<b>" not in page
    assert "<i>" not in page


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to .*file"):
        write_figure_page(tmp_path / "file" / "folder", "Title", "", FIGURES)
