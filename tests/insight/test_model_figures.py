"""Figures of a model: charts of what was measured, and the page of all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from evaluation.markup import read
from insight.small import build
from vitrail.insight import model_figures as portraits
from vitrail.insight.attention_figures import HOW_IT_WORKS
from vitrail.insight.measures import (
    attention_distances,
)
from vitrail.insight.model_figures import distance_chart, norm_chart, portrait
from vitrail.insight.pruning_run import batches_of
from vitrail.reporting.charts import Line


def test_a_ring_for_every_head_stands_higher_the_farther_it_looks() -> None:
    """A ring for each of 2 and 8, a line through their mean in the middle; nothing where there is no number."""
    chart = read(distance_chart(np.array([[2.0, 8.0], [5.0, np.nan]])).html)
    rings = [tuple(float(each.attributes[name]) for name in ("cx", "cy")) for each in chart.all("circle")][:3]
    assert rings[0][0] == rings[1][0] < rings[2][0]
    assert rings[0][1] - rings[2][1] == pytest.approx(rings[2][1] - rings[1][1], abs=0.2)  # 5 is between 2 and 8
    assert rings[0][1] > rings[1][1]
    line = next(each for each in chart.all("path") if "ruby" in each.attributes.get("style", ""))
    heights = [float(each) for each in re.findall(r"[ML][\d.]+ ([\d.]+)", line.attributes["d"])]
    assert heights == pytest.approx([rings[2][1]] * 2, abs=0.2)


@pytest.mark.parametrize("value", [10.0, 25.0, 40.0])
def test_a_mark_stands_at_its_value(value: float) -> None:
    """The axis goes from 0 to 51: a line at the value, a bar from where 1 lies."""
    chart = read(norm_chart(np.array([1.0] * 9 + [50.0]), [Line(value, "a name")]).html)
    dashed = next(each for each in chart.all("path") if "dasharray" in each.attributes.get("style", ""))
    ticks = {each.text: float(each.attributes["x"]) for each in chart.all("text", "tick")}
    at = float(re.match(r"M([\d.]+)", dashed.attributes["d"])[1])  # type: ignore[index]
    assert at == pytest.approx(ticks["0"] + (ticks["40"] - ticks["0"]) * value / 40, abs=0.2)
    assert "a name" in [each.text for each in chart.all("text", "name")]


@pytest.mark.row("4.REG", "P.8")
def test_a_portrait_says_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 18 images the first 16, in batches of 4; means over all of them; sizes beyond three times the median."""
    loaded = vitrail.Checkpoint(build(), vitrail.Preprocess(size=(8, 12), crop=1.0))
    dice = np.random.default_rng(0)
    images = [dice.integers(0, 256, (8, 12, 3), dtype=np.uint8) for _ in range(18)]
    drawn: dict[str, Any] = {}

    def keep(name: str, draw: Any) -> Any:
        def kept(values: Any, *given: Any) -> Any:
            drawn[name] = values, given
            return draw(values, *given)

        return kept

    monkeypatch.setattr(portraits, "distance_chart", keep("distances", distance_chart))
    monkeypatch.setattr(portraits, "norm_chart", keep("norms", norm_chart))
    sizes = iter([np.r_[[2.9] * 3, [3.1] * 5, [1.0] * 16]] * 4)
    monkeypatch.setattr(portraits, "token_norms", lambda model, pixels: (np.array([7.0] * len(pixels)), next(sizes)))
    figures = {each.name: each for each in portraits.figures_of_images(loaded, images[:14], "14 images")}
    expected = attention_distances(loaded.model, torch.from_numpy(loaded.preprocess.batch(images[:14])))
    np.testing.assert_allclose(drawn["distances"][0], expected, rtol=1e-5)
    assert drawn["norms"][1][0] == [(1.0, "median"), (3.0, "3 x median"), (7.0, "prefix tokens")]
    assert f"{500 / 24:.1f} % are larger than 3 times the median" in figures["norms"].caption
    assert "Do not trust attention maps of this network" in figures["norms"].caption
    monkeypatch.setattr(portraits, "token_norms", lambda model, pixels: (np.ones(1), np.linspace(1, 2, 24)))
    [calm] = [each for each in portraits.figures_of_images(loaded, images[:4], "4 images") if each.name == "norms"]
    assert "none are larger than 3 times the median" in calm.caption
    assert "Do not trust" not in calm.caption
    monkeypatch.undo()
    page = portrait(loaded, tmp_path, images).page.read_text()
    assert "Measured on 16 images.</p>" in page
    assert HOW_IT_WORKS in page
    assert "unlike <svg" in page  # what the colours of the positions mean
    unasked = read(portrait(loaded, tmp_path).page.read_text("utf-8")).text
    assert "Measured on 8 drawn test images of stained glass. Give your own with --images." in unasked


@pytest.mark.row("000.28", "P.9")
@pytest.mark.parametrize("merging", [False, True])
def test_a_portrait_is_a_page_with_every_figure(tmp_path: Path, merging: bool) -> None:
    if merging:
        model = build(merge_per_block=1, pool="mean")
        loaded = vitrail.Checkpoint(model, vitrail.Preprocess(size=(8, 12), crop=1.0))
        found = portrait(loaded, tmp_path / "out")
        assert {each.stem for each in found.files} == {"positions", "filters"}
        assert any("merges tokens" in each for each in found.left_out)
        return
    loaded = vitrail.load("vitrail:fashion")
    from vitrail.data import read_data

    data = read_data("vitrail:fashion")
    labelled = batches_of(loaded, data.part("test"))[:2]
    found = portrait(loaded, tmp_path / "out", list(data.images[:4]), labelled, "a <network>")
    page = found.page.read_text()
    assert "a &lt;network&gt;" in page
    for each in found.files:
        if each.suffix == ".png":
            with Image.open(each) as figure:
                assert min(figure.size) > 100
    assert page.count('class="plate"') == 5
    assert {each.stem for each in found.files} == {"positions", "distance", "norms", "colours", "importance"}
    assert any("stem" in each for each in found.left_out)
