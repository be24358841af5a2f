"""What colours and crosses mean: on a page, and below an image."""

from __future__ import annotations

import re

import numpy as np
import pytest

from evaluation.markup import read
from vitrail.reporting.heat_legend import CROSSED, FRAMED, legend_html, legend_strip
from vitrail.reporting.image_sheets import colours_of


def test_the_scale_of_a_page_goes_from_the_lowest_colour_to_the_highest() -> None:
    found = legend_html("<least>", "most")
    page = read(found)
    assert "<least>" in page.text
    fills = [tuple(map(int, re.findall(r"\d+", each.attributes["fill"]))) for each in page.all("rect")]
    assert fills[0] == tuple(colours_of(np.array(0.0)))
    assert fills[-1] == tuple(colours_of(np.array(1.0)))
    brightness = [sum(each) for each in fills]
    assert brightness == sorted(brightness)


def test_crosses_are_explained_where_there_are_some() -> None:
    assert CROSSED in read(legend_html("a", "b", crosses=True)).text
    assert CROSSED not in legend_html("a", "b")
    assert legend_strip(900, "a", "b", crosses=True).height > legend_strip(900, "a", "b").height


@pytest.mark.parametrize("width", [420, 640, 950])
def test_what_a_cross_means_is_not_cut_at_the_edge(width: int) -> None:
    strip = np.asarray(legend_strip(width, "a", "b", crosses=True))
    assert (strip[:, -16:] == strip[-1, -1]).all()  # nothing is drawn in the margin
    below = (strip[32:, 38:] != strip[-1, -1]).any(axis=(1, 2))
    lines = np.diff(below.astype(int), prepend=0) == 1  # rows where ink begins
    assert lines.sum() >= (2 if width < 950 else 1)


def test_the_strip_has_the_colours_in_their_order() -> None:
    row = np.asarray(legend_strip(500, "least", "most"))[16].astype(int)
    dark = np.abs(row - colours_of(np.array(0.0))).sum(axis=1).argmin()
    bright = np.abs(row - colours_of(np.array(1.0))).sum(axis=1).argmin()
    assert 195 <= bright - dark <= 200


def test_the_frame_is_explained_where_there_is_one() -> None:
    assert FRAMED not in legend_html("least", "most", crosses=True)
    assert FRAMED in read(legend_html("least", "most", frames=True)).text
