"""A strict reader of our pages: tags balanced, nothing fetched, nothing run, everything reachable."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import NamedTuple

from vitrail.reporting.page_script import SCRIPT

BESIDE = re.compile(r"(\.\./)*[\w%-][\w%./-]*\.html")  # another page, by a path from this one
SOURCE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+=*")
VOID = {"meta", "img", "input", "br", "wbr"}
KNOWN = {
    *("html", "head", "title", "style", "body", "header", "main", "footer", "nav", "section", "div", "span", "small"),
    *("h1", "h2", "h3", "p", "b", "i", "ul", "li", "a", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tr"),
    *("script", "th", "td", "figure", "figcaption", "details", "summary", "pre", "code", "label"),
    *("svg", "g", "path", "rect", "circle", "polygon", "text", "image", "defs", "pattern"),
}


class Element(NamedTuple):
    tag: str
    attributes: dict[str, str]
    text: str  # all of it, inner elements included


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str], list[str]]] = []
        self.elements: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in KNOWN | VOID, f"unknown element {tag}"
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} repeats an attribute: {names}"
        kept = {name: value or "" for name, value in attrs}
        if tag in VOID:
            self.elements.append(Element(tag, kept, ""))
        else:
            self.open.append((tag, kept, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        opened, attributes, words = self.open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"
        self.elements.append(Element(tag, attributes, "".join(words)))

    def handle_data(self, data: str) -> None:
        for _, _, words in self.open:
            words.append(data)


class Page(NamedTuple):
    elements: list[Element]
    text: str  # as a person reads it

    def all(self, tag: str, kind: str = "") -> list[Element]:
        return [
            each
            for each in self.elements
            if each.tag == tag and (not kind or kind in each.attributes.get("class", "").split())
        ]


def read(html: str) -> Page:
    """The elements of a page or a part of one, in the order they end; refuses what a page of ours may not hold."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open, f"left open: {[tag for tag, _, _ in reader.open]}"
    for tag, attributes, words in reader.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} has {name}={value}"
            assert "url(" not in value.replace("url(#panes)", ""), f"{tag} fetches {value}"
        if tag == "image":
            assert SOURCE.fullmatch(attributes.pop("href")), "an image of a chart from elsewhere"
        link = attributes.get("href", "#")
        assert link.startswith("#") or BESIDE.fullmatch(link), f"a link leads out: {attributes}"
        assert "src" not in attributes or SOURCE.fullmatch(attributes["src"]), "an image from elsewhere"
        assert tag != "img" or attributes.get("alt"), "an image without words"
        assert tag != "th" or attributes.get("scope") in ("row", "col"), "a header of nothing"
        if tag == "script":
            assert words == SCRIPT, "a script that is not ours"
        if tag == "style":
            assert not re.search(r"url\(|@import|</", words), "the style fetches something"
    ids = [each.attributes["id"] for each in reader.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids)), f"ids are not unique: {ids}"
    for each in reader.elements:
        assert each.attributes.get("for", ids[0] if ids else None) in (*ids, None), f"a label of nothing: {each}"
        link = each.attributes.get("href", "#")
        assert BESIDE.fullmatch(link) or link[1:] in ("", *ids), f"a link to nothing: {each}"
    shown = [each.text.replace(SCRIPT, "") for each in reader.elements if each.tag == "body"]
    text = shown[0] if shown else "".join(each.text for each in reader.elements)
    return Page(reader.elements, " ".join(text.split()))
