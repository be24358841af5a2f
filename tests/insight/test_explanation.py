"""Explanation: what it says of itself, beside the map that it carries."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
from PIL import Image

from vitrail.insight import Explanation
from vitrail.insight.faithfulness import FaithfulnessScores

MAP = np.array([[0.0, 0.25], [0.5, 1.0]])
SCORES = FaithfulnessScores(0.2, 0.7, 0.4, 0.5, 0.3, 0.6)  # a gain of 0.5 less 0.1


def shown_image(html: str) -> Image.Image:
    found = re.search(r'src="data:image/png;base64,([^"]+)"', html)
    assert found is not None
    return Image.open(io.BytesIO(base64.b64decode(found[1])))


def test_it_says_its_target_its_method_and_what_the_map_is_worth() -> None:
    explanation = Explanation(MAP, "rollout", "bee", 0.9731, True, SCORES, shuffled=0.125)
    text = repr(explanation)
    lines = text.splitlines()
    assert lines[0] == "Explanation: bee (97.3 %), by rollout"
    assert re.split(r"\s{2,}", lines[1].strip()) == ["map", "2 x 2 patches, from 0 to 1"]
    first, *others = explanation.verdicts
    assert re.split(r"\s{2,}", lines[2].strip()) == ["faithfulness", first.line.removeprefix("faithfulness: ")]
    assert "strong, +0.40" in lines[2]
    assert "checks" in lines[3]
    assert all(f"{each.name} {each.word}" in lines[3] for each in others[:2])
    assert "no known reason against it" in text


def test_it_says_why_a_map_is_not_to_be_relied_on() -> None:
    outliers = np.array([[True, False], [False, True]])
    text = repr(Explanation(MAP, "rollout", "bee", 3.25, False, warnings=("worse than chance",), outliers=outliers))
    assert text.startswith("Explanation: bee (3.25), by rollout")
    assert "no: worse than chance" in text
    assert "2 of the patches, crossed out" in text
    assert "faithfulness" not in text


def test_a_notebook_shows_the_map_over_the_image() -> None:
    image = Image.fromarray(np.full((20, 40, 3), 200, np.uint8))
    explanation = Explanation(MAP, "rollout", "bee", 0.5, True, image=image, box=(0.0, 0.0, 40.0, 20.0))
    assert np.array_equal(np.asarray(shown_image(explanation._repr_html_())), np.asarray(explanation.overlay()))


def test_a_notebook_shows_the_map_of_pixels_alone() -> None:
    heat = np.asarray(shown_image(Explanation(MAP, "rollout", "bee", 0.5, True)._repr_html_()).convert("L"))
    assert heat.shape == (32, 32)
    assert heat[0, 0] < heat[-1, -1]
