"""Shapes of a drawing, as SVG elements: words and about how wide they are, rectangles, marks."""

from __future__ import annotations

import unicodedata
from typing import Literal

from vitrail.reporting.html_page import printable, text

Colour = Literal["blue", "ruby", "amber", "green", "violet", "teal", "soft", "ink"]
Mark = Literal["dot", "square", "triangle"]


def label(words: str, x: float, y: float, anchor: str = "start", kind: str = "tick", more: str = "") -> str:
    """Words at a place, which is their start, middle or end; tick, name or plain, with `more` attributes."""
    return f'<text class="{kind}" text-anchor="{anchor}"{more} x="{x:.1f}" y="{y:.1f}">{text(words)}</text>'


def rect(x: float, y: float, width: float, height: float, style: str, title: str = "", rounded: float = 0) -> str:
    """A rectangle; its title shows where somebody points at it."""
    inner = f"<title>{text(title)}</title>" if title else ""
    size = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {size} rx="{rounded:g}" style="{style}">{inner}</rect>'


def mark_shape(mark: Mark, x: float, y: float, colour: Colour, filled: bool = True, radius: float = 4.0) -> str:
    """A point of a chart, or its key in a legend."""
    fill = f"var(--{colour})" if filled else "none"
    style = f"fill:{fill};stroke:var(--{colour});stroke-width:1.6"
    if mark == "dot":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" style="{style}"/>'
    if mark == "square":
        side = 1.8 * radius
        return rect(x - side / 2, y - side / 2, side, side, style)
    high, half = 1.1 * radius, 1.15 * radius
    return f'<path d="M{x:.1f} {y - high:.1f}L{x + half:.1f} {y + high:.1f}H{x - half:.1f}Z" style="{style}"/>'


def cut_text(name: str, most: int) -> str:
    """A name on one line, cut where it is wider than so many letters."""
    line = " ".join(printable(name).split()) or "(no name)"
    if sum(map(_letters, line)) <= most:
        return line
    wide, kept = 1, ""  # the dots take one
    for sign in line:
        wide += _letters(sign)
        if wide > most:
            break
        kept += sign
    return f"{kept}…"


def text_width(words: str, size: float = 12.0) -> float:
    """About how wide words are in a sans-serif face."""
    return 0.6 * size * sum(map(_letters, words))


def _letters(sign: str) -> int:
    """How many letters wide a sign is."""
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
