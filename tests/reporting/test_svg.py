"""Charts as files: the SVG holds everything, the PNG shows it, words included, on machines without a typeface."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import InputError, MissingExtraError
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Bar, Series, bars, curves
from vitrail.reporting.image_sheets import TileSheet
from vitrail.reporting.style import LIGHT
from vitrail.reporting.svg import Chart, Key, chart_row, image_chart, png_bytes, save_chart, sheet_chart

BARS = bars([Bar("ant", 0.5), Bar("<bee>", 1.0)], "share", "Shares & more")
LINES = curves([Series("a", [(0, 1), (1, 3)]), Series("b", [(0, 2), (1, 1)])], Axis("x"), Axis("y"), "Two lines")


def pixels(chart: Chart) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(png_bytes(chart.svg()))) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def rgb(name: str) -> tuple[int, ...]:
    return tuple(int(LIGHT[name][start : start + 2], 16) for start in (1, 3, 5))


def near(page: np.ndarray[Any, Any], colour: tuple[int, ...], by: int = 2) -> np.ndarray[Any, Any]:
    return np.argwhere((np.abs(page - colour) <= by).all(axis=-1))


def test_a_file_holds_title_legend_and_colours_of_its_own() -> None:
    markup = LINES.svg()
    root = ElementTree.fromstring(markup)
    words = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words[0] == "Two lines"
    assert words[-2:] == ["a", "b"]  # the legend
    assert "var(" not in markup
    assert LIGHT["blue"] in markup
    assert "Shares &amp; more" in BARS.svg()
    assert "&lt;bee&gt;" in BARS.svg()


def test_bars_of_a_png_are_as_long_as_their_values() -> None:
    page = pixels(BARS)
    blended = tuple(round(0.55 * ink + 0.45 * paper) for ink, paper in zip(rgb("blue"), rgb("paper"), strict=True))
    rows = [int(count) for count in (np.abs(page - blended) <= 2).all(axis=-1).sum(axis=1)]
    lengths = sorted({max(rows[: len(rows) // 2 - 12]), max(rows)})
    assert len(near(page, blended)) > 1000
    assert lengths[0] / lengths[1] == pytest.approx(0.5, abs=0.02)
    assert page[0, 0].tolist() == list(rgb("paper"))


def test_words_show_on_a_machine_without_a_typeface(monkeypatch: pytest.MonkeyPatch) -> None:
    """resvg alone leaves every word out there: the one from Pillow is handed over, and no other is looked for."""
    import resvg_py

    asked: list[dict[str, Any]] = []
    draw = resvg_py.svg_to_bytes

    def noted(**options: Any) -> bytes:
        asked.append(options)
        return draw(**options | {"skip_system_fonts": True})

    monkeypatch.setattr(resvg_py, "svg_to_bytes", noted)
    chart = Chart("", "words", 200, 40, ('<text x="10" y="25">Words, 12.5 %</text>',))
    assert len(near(pixels(chart), rgb("ink"), 60)) > 100
    assert asked[0]["skip_system_fonts"]
    bare = draw(svg_string=chart.svg(), skip_system_fonts=True)
    assert len(np.unique(np.asarray(Image.open(io.BytesIO(bare)).convert("RGB")).reshape(-1, 3), axis=0)) == 1
    pixels(Chart("", "words", 200, 40, ('<text x="10" y="25">日本語</text>',)))
    assert not asked[1]["skip_system_fonts"]  # the system may have what Pillow's lacks


def test_the_same_chart_gives_the_same_bytes(tmp_path: Path) -> None:
    one, other = (save_chart(BARS, tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert one == other


def test_a_row_of_charts_stands_side_by_side() -> None:
    image = Image.new("RGB", (30, 15), (9, 200, 30))
    row = chart_row([image_chart(image, "An image", 120), Chart(), BARS])
    assert row.width == pytest.approx(120 + 28 + BARS.framed().width)
    page = pixels(row)
    spot = near(page, (9, 200, 30))
    assert np.ptp(spot, axis=0).tolist() == pytest.approx([119, 239], abs=1)  # twice 60 x 120
    blended = tuple(round(0.55 * ink + 0.45 * paper) for ink, paper in zip(rgb("blue"), rgb("paper"), strict=True))
    assert near(page, blended)[:, 1].min() > spot[:, 1].max()
    assert not chart_row([Chart(), Chart()])


def test_a_legend_that_is_too_long_takes_more_lines() -> None:
    keys = tuple(Key(f"a rather long name {number}", "blue") for number in range(4))
    short, long = (Chart("", "w", 380, 100, ("<g/>",), legend).framed() for legend in (keys[:1], keys))
    assert short.height == 100 + 22
    assert long.height == short.height + 19  # two names a line


@pytest.mark.parametrize("suffix, start", [(".svg", b"<svg "), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_kinds_of_files(tmp_path: Path, suffix: str, start: bytes) -> None:
    assert save_chart(BARS, tmp_path / f"chart{suffix}").read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"expected FILE.png, .svg or .pdf, got 'chart.jpg'"):
        save_chart(BARS, tmp_path / "chart.jpg")


def test_without_the_extra_it_is_named_and_svg_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'vitrail\[figures\]'"):
        save_chart(BARS, tmp_path / "chart.png")
    assert not list(tmp_path.iterdir())
    assert save_chart(BARS, tmp_path / "chart.svg").is_file()


def test_a_sheet_of_tiles_is_drawn_tile_by_tile_in_the_colours_of_the_page() -> None:
    """Names are words of the page, tiles are images, and nothing is behind them."""
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8))
    flat = Image.new("RGB", (96, 64), (9, 90, 9))
    sheet = TileSheet([[photo, flat], [flat, photo]], "Looks", ("block 0", "block 1"), ("head 0", "mean"), gap=6)
    chart = sheet_chart(sheet)
    drawn = "".join(chart.elements)
    kinds = re.findall(r"data:image/(\w+);", drawn)
    assert kinds == ["jpeg", "png", "png", "jpeg"]  # whichever is smaller
    places = [tuple(map(float, each)) for each in re.findall(r'<image x="([\d.]+)" y="([\d.]+)"', drawn)]
    assert [(x - places[0][0], y - places[0][1]) for x, y in places] == [(0, 0), (102, 0), (0, 70), (102, 70)]
    assert re.findall(r">([^<>]+)</text>", drawn) == ["head 0", "mean", "block 0", "block 1"]
    assert "<rect" not in drawn
    assert (chart.width, chart.height) == (places[-1][0] + 96, places[-1][1] + 64)
    assert "Looks" in chart.html
    assert sheet.image().size[0] > 200


@pytest.mark.parametrize("columns", [(), tuple(f"head {number}" for number in range(8))])
def test_a_sheet_without_words_shrinks_to_a_phone(columns: tuple[str, ...]) -> None:
    """Eight tiles of 80: a sheet with words scrolls before these are too small to read."""
    tiles = [[Image.new("RGB", (80, 80))] * 8]
    html = sheet_chart(TileSheet(tiles, "Tiles", columns=columns)).html
    assert ("min-width:0px" in html) == (not columns)


@pytest.mark.parametrize("width, least", [(440.0, 0), (560.0, 476), (1000.0, 850)])
def test_a_wide_chart_scrolls_on_a_phone_before_its_words_are_too_small(width: float, least: int) -> None:
    axes = Axis("x"), Axis("y")
    assert f"min-width:{least}px" in curves([Series("a", [(0, 1), (1, 3)])], *axes, size=(width, 300.0)).html
