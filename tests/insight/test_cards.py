"""Cards, heads and films of an explanation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from insight.small import build
from vitrail.insight.cards import card, film, heads_sheet, save_film
from vitrail.insight.explainer import explain
from vitrail.insight.explanation import Explanation


def test_a_card_tells_what_is_not_to_be_relied_on() -> None:
    image = Image.new("RGB", (30, 30), (90, 90, 90))
    first = Explanation(np.eye(2), "rollout", "ant", 0.5, True, image=image, box=(0, 0, 30, 30))
    doubted = replace(first, warnings=("the map is flat", "word " * 60))
    assert card([doubted]).height - card([first]).height == 20 * (1 + 3)  # a line, and three of a long one


@pytest.mark.row("VE.3")
def test_card_heads_and_film(tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    image = Image.fromarray(dice.integers(0, 255, (30, 90, 3), dtype=np.uint8))
    model = build(registers=1)
    loaded = vitrail.Checkpoint(model, vitrail.Preprocess(size=(8, 12), crop=1.0))
    found = [explain(loaded, image, method) for method in ("relevance", "rollout", "occlusion")]
    drawn = card(found)
    assert drawn.width > 4 * 300
    frames = film(loaded, image)
    assert len(frames) == 3
    save_film(frames, str(tmp_path / "film.gif"))
    with Image.open(tmp_path / "film.gif") as moving:
        assert moving.n_frames == 3
        assert moving.info["loop"] == 0
        assert moving.info["duration"] == 700  # milliseconds a frame
    grid = heads_sheet(loaded, image, 4)
    assert grid.height > 3 * 80
