"""`make docs`: built without a warning, the site has every public name, verb and recipe, and asks no other site."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

import vitrail
from pages.browser import Browser
from vitrail.cli.application import VERBS
from vitrail.training import RECIPES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert (built.returncode, built.stdout) == (0, ""), built.stderr
    return folder


class Resources(HTMLParser):
    """What a page loads: the addresses of its links to styles and icons, of its scripts, images and frames."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loads = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
        self.addresses += [value or "" for name, value in attrs if name == loads.get(tag)]


def resources(page: str) -> list[str]:
    parser = Resources()
    parser.feed(page)
    return parser.addresses


def test_every_public_name_has_its_entry(site: Path) -> None:
    pages = [(site / "reference" / name).read_text("utf-8") for name in ("python.html", "classes.html")]
    entries = set(re.findall(r'<h2 id="vitrail\.(\w+)"', "".join(pages)))
    assert entries == set(vitrail.__all__)
    assert 'id="vitrail.Prediction.probabilities"' in pages[1]  # fields too, with and without words of their own


def test_every_verb_and_every_recipe_has_its_entry(site: Path) -> None:
    verbs = (site / "reference" / "command-line.html").read_text("utf-8")
    assert set(re.findall(r'<h2 id="([\w-]+)"', verbs)) == set(VERBS)
    assert "--from CHECKPOINT" in verbs
    assert verbs.count("-h, --help") == len(VERBS) + 1  # as a terminal shows it
    recipes = (site / "reference" / "recipes.html").read_text("utf-8")
    assert [name for name in RECIPES if f"<code>{name}</code>" not in recipes] == []


def test_a_notebook_shows_what_its_cells_show(site: Path) -> None:
    names = ("look-inside", "your-own-images")
    pages = {name: (site / "notebooks" / f"{name}.html").read_text("utf-8") for name in names}
    assert pages["look-inside"].count("faithfulness: strong") == 4
    assert 'aria-label="Run: runs/photos-1"' in pages["your-own-images"]
    assert ": Pullover, taken for Coat (" in pages["your-own-images"]
    shown = {name: re.findall(rf'src="({name}-\d\.png)"', page) for name, page in pages.items()}
    assert {name: len(images) for name, images in shown.items()} == {"look-inside": 4, "your-own-images": 2}


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    loaded = {address for page in pages for address in resources(page.read_text("utf-8"))}
    assert [address for address in loaded if re.match(r"(\w+:)?//", address)] == []
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert [hit for text in styles for hit in re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)]*", text)] == []


def test_what_the_pages_load_is_there(site: Path) -> None:
    missing = [
        f"{page.relative_to(site)}: {address}"
        for page in site.rglob("*.html")
        if page.name != "404.html"  # is served from anywhere
        for address in resources(page.read_text("utf-8"))
        if not (page.parent / address.partition("#")[0].partition("?")[0]).exists()
    ]
    assert missing == []


def test_search_finds_no_map_of_files(site: Path) -> None:
    """Lists that hold every word would stand above what people look for."""
    entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    places = {each["location"]: each.get("boost", 1) for each in entries}
    assert places["decisions.html"] < places["insight.html"] == 1 < places["glossary.html"]
    assert "how-to/explain.html#believe-it-or-not" in places
    assert not {place for place in places if place.startswith(("contributing.html#the-map", "capabilities.html"))}


def test_search_works_from_a_disk(browser: Browser, site: Path) -> None:
    page = site / "reference" / "python.html"
    assert "A look inside" in found(browser, page, "rollout")
    assert found(browser, page, "not confident enough").splitlines()[1] == "When something is odd"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["tutorial.html", "how-to/python.html", "reference/python.html"])
def test_nothing_stands_in_the_way_of_anyone(browser: Browser, axe: str, site: Path, name: str, dark: bool) -> None:
    """Links are told by more than their colour, and the words of code stand out from their ground."""
    browser.open(site / name, dark=dark)
    assert browser.faults(axe) == []


def found(browser: Browser, page: Path, words: str) -> str:
    """What a search shows: how many documents match, then their titles and texts."""
    browser.open(page)
    browser.find("input.md-search__input").send_keys(words)
    shown = ""
    for _ in range(100):
        shown = str(browser.find(".md-search-result").text)
        if "matching" in shown:
            break
        time.sleep(0.1)
    return shown


def test_a_resource_from_elsewhere_is_found() -> None:
    page = '<link href="a.css"><script src="https://example.org/x.js"></script><a href="https://example.org">x</a>'
    assert resources(page) == ["a.css", "https://example.org/x.js"]
