"""What tests of charts read from their markup."""

from __future__ import annotations

import re

from evaluation.markup import Element, Page


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
