"""The style of pages: phones, the dark, and words that stand out."""

from __future__ import annotations

import re

import pytest

from vitrail.reporting import style
from vitrail.reporting.html_page import (
    page,
)


def test_a_phone_gets_its_width_and_the_dark_its_colours() -> None:
    found = page("a", "b", [])
    assert '<meta name="viewport" content="width=device-width,initial-scale=1">' in found
    assert "prefers-color-scheme:dark" in found
    assert "@media print" in found
    assert "max-width:560px" in found


@pytest.mark.parametrize("colours", [style._LIGHT, style._DARK], ids=["light", "dark"])
def test_every_colour_of_words_stands_out_from_what_is_behind_it(colours: str) -> None:
    known = dict(re.findall(r"--(\w+):(#\w+)", colours))
    for name in ("ink", "soft", "blue", "ruby", "amber", "green", "violet", "teal"):
        for behind in ("paper", "card"):
            light, dark = sorted((luminance(known[name]), luminance(known[behind])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{name} on {behind}"


def luminance(colour: str) -> float:
    if len(colour) == 4:
        colour = "#" + "".join(2 * each for each in colour[1:])
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
