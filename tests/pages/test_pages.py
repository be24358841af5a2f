"""Pages in a browser: readable by everyone, in light and dark and on a phone; tables sort, images open large."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evaluation.reports import HOSTILE, full, made, square
from insight.test_image_tour import small
from pages.browser import Browser
from vitrail.auditing.audit_page import build_page
from vitrail.auditing.auditor import audit
from vitrail.checkpoint import Checkpoint
from vitrail.data.samples import Dataset, Sample
from vitrail.evaluation.comparison import comparison_of
from vitrail.evaluation.report import build, comparison_page
from vitrail.insight import explain
from vitrail.insight.explanation_page import explained_image, gallery_page
from vitrail.insight.image_tour import tour
from vitrail.insight.model_figures import portrait
from vitrail.reporting.html_page import Section, page, table
from vitrail.reporting.page_links import PageLink, link_pages

LONG = ("Tomato_Heart_of_an_Ox_with_a_long_name_and_no_space_at_all_" * 2, "a class of many words " * 5, HOSTILE)


def audited() -> str:
    """An audit of thirty small images, two of them copies."""
    dice = np.random.default_rng(0)
    images = dice.integers(0, 255, (30, 24, 24, 3), dtype=np.uint8)
    images[1] = images[0]
    names = [f"{'long_folder_name_' * 5}/{row:02d}.png" for row in range(30)]
    samples = tuple(Sample(name, (f"class {row % 3}",), ("train", "test")[row % 2]) for row, name in enumerate(names))
    dataset = Dataset("photos", samples, images, tuple(f"class {number}" for number in range(3)))
    return build_page(audit(dataset), dataset)


def compared() -> str:
    """Two networks of which one is better."""
    comparison = comparison_of(made(), made(lift=0.8, seed=4))
    return comparison_page(comparison, square, ("runs/first", "runs/second"), "vitrail compare a b photos")


def report_of(classes: tuple[str, ...]) -> str:
    """A report of other classes, the last of which no image shows."""
    evaluation = made(classes=classes)
    return build(full(evaluation=evaluation, validation=None, images=photo, data=None))


def photo(row: int) -> Image.Image:
    """An image too large to be shown pixel by pixel."""
    return Image.linear_gradient("L").rotate(row).resize((300, 200)).convert("RGB")


def tabled() -> str:
    """Numbers of every kind, in no order."""
    rows = [["class 10", "9", "100.0 %"], ["class 2", "–", "8.5 %"], ["class 100", "1,200", "–"]]
    rows += [["class 1", "10", "10.2 %"], ["class 11", "-3", "9.0 % to 20.0 %"]]
    return page("Numbers", "", [Section("All", table(["name", "count", "share"], rows))])


PAGES = {
    "table": tabled,
    "report": lambda: build(full()),
    "audit": audited,
    "comparison": compared,
    "two": lambda: report_of(("Apple_Granny_Smith", "Banana")),
    "ten": lambda: report_of(tuple(f"class {number}" for number in range(10))),
    "hundred": lambda: report_of(tuple(f"class {number}" for number in range(100))),
    "long": lambda: report_of(LONG),
}

ALL = (*PAGES, "demo", "inspect", "explain")


def explained(checkpoint: Checkpoint) -> str:
    """Two images, one map of which is crossed out and doubted."""
    maps = [explain(checkpoint, photo(0), method) for method in ("relevance", "rollout")]
    crossed = replace(maps[1], outliers=np.eye(*maps[1].map.shape) > 0, warnings=("it hardly depends on the weights",))
    images = [explained_image(name, [maps[0], crossed]) for name in (f"{'folder/' * 12}a.jpg", HOSTILE)]
    return gallery_page("a network", images, "vitrail explain net.safetensors a.jpg")


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every page as a file; those of a network link to each other."""
    folder = tmp_path_factory.mktemp("pages")
    files = {name: folder / f"{name}.html" for name in PAGES}
    for name, file in files.items():
        file.write_text(PAGES[name](), encoding="utf-8", errors="replace")
    checkpoint = small()
    files["demo"] = tour(checkpoint, photo(0), folder / "demo").page
    files["inspect"] = portrait(checkpoint, folder / "inside", [photo(seed) for seed in range(3)]).page
    files["explain"] = folder / "explain.html"
    files["explain"].write_text(explained(checkpoint), encoding="utf-8", errors="replace")
    link_pages([PageLink(name, files[name]) for name in ("demo", "inspect", "explain", "report")])
    return files


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ALL)
def test_nothing_stands_in_the_way_of_anyone(
    browser: Browser, axe: str, pages: dict[str, Path], name: str, dark: bool
) -> None:
    browser.open(pages[name], dark=dark)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert browser.faults(axe) == []


BEYOND = """return [...document.querySelectorAll('main *')]
    .filter((each) => !each.closest('.scroll, svg, dialog, pre') && each.getBoundingClientRect().right > 376)
    .map((each) => each.outerHTML.slice(0, 120))"""
CUT = """return [...document.querySelectorAll('.scroll')]
    .filter((each) => !['auto', 'scroll'].includes(getComputedStyle(each).overflowX)).length"""


@pytest.mark.parametrize("name", ALL)
def test_a_phone_needs_no_sideways_scrolling_but_inside_a_table(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    browser.open(pages[name], width=375)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert browser.run("return document.documentElement.scrollWidth") == 375
    assert browser.run(BEYOND) == []
    assert browser.run(CUT) == 0


def test_a_phone_shows_what_a_map_is_worth_without_scrolling(browser: Browser, pages: dict[str, Path]) -> None:
    """The first four columns; what that means, in sentences, is wide enough to be read where it is scrolled to."""
    browser.open(pages["explain"], width=375)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    cells = "return [...document.querySelector('.table tbody tr').cells].map((each) => each.getBoundingClientRect()"
    assert browser.run(f"{cells}.right)")[3] <= 375
    assert browser.run(f"{cells}.width)")[4] >= 220
    highest = "Math.max(...[...document.querySelectorAll('.table tbody tr')].map((each) => each.offsetHeight))"
    assert browser.run(f"return {highest}") <= 85


COLUMN = """const box = document.querySelectorAll('.table')[arguments[0]];
return [...box.querySelectorAll('tbody tr')].map((row) => row.cells[arguments[1]].textContent)"""
HEADING = "return document.querySelectorAll('.table')[arguments[0]].querySelectorAll('thead th')[arguments[1]]"
TABLES = """return [...document.querySelectorAll('.table')].findIndex((each) =>
each.querySelector('thead').textContent.startsWith(arguments[0]))"""


def test_a_click_on_a_heading_sorts_numbers_as_numbers(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["table"])
    orders = {
        1: ["-3", "9", "10", "1,200", "–"],
        2: ["8.5 %", "9.0 % to 20.0 %", "10.2 %", "100.0 %", "–"],
        0: ["class 1", "class 2", "class 10", "class 11", "class 100"],
    }
    for column, order in orders.items():
        heading = browser.run(HEADING, 0, column)
        assert heading.get_attribute("aria-sort") == "none"
        heading.find_element("css selector", "button").click()
        assert heading.get_attribute("aria-sort") == "ascending"
        assert browser.run(COLUMN, 0, column) == order
    heading.find_element("css selector", "button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert browser.run(COLUMN, 0, 0) == orders[0][::-1]


def test_rows_that_are_folded_away_are_sorted_with_the_others(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hundred"])
    number = browser.run(TABLES, "classimages")
    before = browser.run(COLUMN, number, 0)
    parts = "return document.querySelectorAll('.table')[arguments[0]].querySelectorAll('table').length"
    assert browser.run(parts, number) == 2
    browser.run("arguments[0].querySelector('button').click()", browser.run(HEADING, number, 0))
    after = browser.run(COLUMN, number, 0)
    assert after == sorted(before, key=lambda each: int(each.split()[1]))  # "class 2" before "class 10"
    assert after != before


def test_tables_sort_by_keyboard_and_totals_stay_first(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["report"])
    number = browser.run(TABLES, "classtraining")
    heading = browser.run(HEADING, number, 2)
    browser.run("arguments[0].querySelector('button').focus()", heading)
    browser.press(" ")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert browser.run(COLUMN, number, 0)[0] == "all"
    assert browser.run(COLUMN, number, 2)[1:] == ["10", "20", "30", "40", "50", "60", "90"]
    browser.press("\ue007")  # Enter
    assert heading.get_attribute("aria-sort") == "descending"
    assert browser.run(COLUMN, number, 2)[1:] == ["90", "60", "50", "40", "30", "20", "10"]


def test_an_image_opens_large_and_escape_closes_it(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["two"])
    opener = browser.find("main figure .open")
    small = browser.run("return arguments[0].querySelector('img').getBoundingClientRect().width", opener)
    browser.run("arguments[0].focus()", opener)
    browser.press("\ue007")
    assert browser.run("return document.querySelector('dialog').open")
    assert browser.run("return document.querySelector('dialog').contains(document.activeElement)")
    large = browser.find("dialog img")
    assert large.rect["width"] >= 300 > small
    words = browser.find("dialog p").text
    browser.press("\ue014")  # the right arrow
    assert browser.find("dialog p").text != words
    browser.press("\ue012")  # and back
    assert browser.find("dialog p").text == words
    browser.press("\ue00c")  # Escape
    assert not browser.run("return document.querySelector('dialog').open")
    assert browser.run("return document.activeElement === arguments[0]", opener)


def test_a_large_image_fits_a_phone_and_has_no_faults(browser: Browser, axe: str, pages: dict[str, Path]) -> None:
    browser.open(pages["two"], width=375)
    browser.run("document.querySelector('main figure .open').click()")
    assert browser.run("return document.documentElement.scrollWidth") == 375
    assert browser.find("dialog img").rect["width"] <= 375
    assert browser.faults(axe) == []


@pytest.mark.parametrize("width", [375, 1200])
def test_an_enlarged_figure_is_as_high_as_the_screen_at_most(
    browser: Browser, pages: dict[str, Path], width: int
) -> None:
    """Ten classes: the matrix is there from top to bottom, and the caption is not cut."""
    browser.open(pages["ten"], width=width)
    browser.run("document.querySelector('.enlarge').click()")
    stage, chart = browser.find("dialog .stage").rect, browser.find("dialog svg.plot").rect
    assert chart["y"] >= stage["y"] - 1
    assert chart["y"] + chart["height"] <= stage["y"] + stage["height"] + 1
    assert chart["height"] > 300
    browser.press("\ue00c")
    browser.open(pages["inspect"], width=width)
    browser.run("document.querySelector('.plate .enlarge').click()")
    assert browser.run("const p = document.querySelector('dialog p'); return p.scrollHeight - p.clientHeight") <= 0


def test_what_goes_on_to_the_right_fades_at_the_edge(browser: Browser, pages: dict[str, Path]) -> None:
    """A sheet of images has no shadow behind it that could show."""
    browser.open(pages["demo"], width=375)
    heads = "[...document.querySelectorAll('.plate .scroll')].find((each) => each.scrollWidth > each.clientWidth + 60)"
    edge = f"return getComputedStyle({heads}).maskImage"
    assert "gradient" in browser.run(edge)
    browser.run(f"{heads}.scrollLeft = 9999")
    browser.run("return document.body.offsetWidth")
    script = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    browser.driver.execute_async_script(script)
    assert browser.run(edge) == "none"
    patches = "return document.querySelector('.plate .scroll').scrollWidth"  # a single image
    assert browser.run(patches) <= 375


def test_the_next_image_is_one_of_the_same_section(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["two"])
    worst = """const title = [...document.querySelectorAll('h2')].find((each) => each.textContent === 'Worst errors');
    const own = [...title.closest('section').querySelectorAll('.open')];
    own.at(-1).click(); return own[0].querySelector('img').alt"""
    first = browser.run(worst)
    assert browser.run("return document.querySelector('dialog img').alt") != first
    browser.run("document.querySelectorAll('dialog .keys button')[1].click()")
    assert browser.run("return document.querySelector('dialog img').alt") == first


def test_a_figure_opens_large_and_scrolls(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["inspect"], width=375)
    browser.run("document.querySelector('.plate .enlarge').click()")
    chart = browser.find("dialog svg.plot")
    assert chart.rect["width"] > 375 >= browser.find("dialog").rect["width"]
    assert "Bright: positions that the network takes for similar" in browser.find("dialog p").text
    browser.press("\ue00c")
    assert not browser.run("return document.querySelector('dialog').open")


def test_links_lead_from_page_to_page_and_back(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["report"])
    browser.find("nav.pages a[href='demo/index.html']").click()
    assert browser.run("return document.title").startswith("An image through a vision transformer")
    browser.find("nav.pages a[href='../inside/index.html']").click()
    assert browser.run("return document.title").startswith("Inside a network")


def test_names_that_hold_markup_run_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["long"])
    assert browser.run("return document.querySelectorAll('main script, main img[src=x]').length") == 0
    sneaked = """const script = document.createElement('script'); script.textContent = 'window.ran = true';
    document.body.append(script); return window.ran === true"""
    assert browser.run(sneaked) is False  # the policy knows our script alone
