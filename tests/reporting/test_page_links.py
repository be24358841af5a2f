"""Links between pages: relative, so that the folder may move; set anew without a trace of the old."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluation.markup import read
from vitrail.errors import InputError
from vitrail.reporting.html_page import LINKS, page
from vitrail.reporting.page_links import PageLink, link_pages


def written(*files: Path) -> list[PageLink]:
    links = []
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page(LINKS, "<b>", []), "utf-8")  # a title that looks like the place for links
        links.append(PageLink(f"to <{file.parent.name}>", file))
    return links


def test_every_page_leads_to_every_other(tmp_path: Path) -> None:
    links = written(tmp_path / "a" / "index.html", tmp_path / "a" / "run 1" / "report.html", tmp_path / "b" / "x.html")
    link_pages(links)
    for title, file in links:
        found = read(file.read_text("utf-8"))
        ways = {each.text: each.attributes["href"] for each in found.all("a")}
        assert set(ways) == {each.title for each in links} - {title}
        for other, target in links:
            if target != file:
                assert (file.parent / ways[other].replace("%20", " ")).resolve() == target.resolve()
        assert [each.text for each in found.all("span") if "aria-current" in each.attributes] == [title]
    before = links[0].page.read_text("utf-8")
    link_pages(links)
    assert links[0].page.read_text("utf-8") == before
    link_pages(links[:2])
    assert len(read(links[0].page.read_text("utf-8")).all("a")) == 1


def test_one_alone_may_be_changed(tmp_path: Path) -> None:
    links = written(tmp_path / "a" / "index.html", tmp_path / "b" / "report.html")
    before = links[1].page.read_bytes()
    link_pages(links, only=links[0].page)
    assert links[1].page.read_bytes() == before
    assert len(read(links[0].page.read_text("utf-8")).all("a")) == 1


def test_a_page_that_is_gone_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot link the pages of"):
        link_pages([PageLink("a", tmp_path / "none.html")])
