"""Names and numbers that fit on a chart: short, and about how wide they are."""

from __future__ import annotations

import unicodedata

from vitrail.reporting.html_page import printable


def tick_label(value: float) -> str:
    """A number on an axis, short."""
    if value and not 1e-4 <= abs(value) < 1e6:
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def percent_label(value: float) -> str:
    """A share on an axis."""
    return f"{100 * value:.3g} %"


def short_count(count: int) -> str:
    """A count in at most four signs: 9,999 -> 9999, 12,345 -> 12k."""
    if count < 10_000:
        return str(count)
    return f"{count // 1000}k" if count < 1_000_000 else f"{count // 1_000_000}M"


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
