"""Numbers behind the figures, against closed forms and loops; the figures and the page themselves."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from evaluation.markup import read
from insight.small import build
from vitrail.insight import model_figures as portraits
from vitrail.insight.cards import card, film, heads_sheet, save_film
from vitrail.insight.explainer import explain
from vitrail.insight.explanation import Explanation
from vitrail.insight.measures import (
    attention_distance,
    attention_distances,
    patch_distances,
    principal_colours,
    token_norms,
)
from vitrail.insight.model_figures import distance_chart, norm_chart, portrait
from vitrail.insight.pruning_run import batches_of
from vitrail.insight.tracing import trace
from vitrail.reporting.charts import Line
from vitrail.reporting.image_sheets import heat_over, smoothed


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(8))


@pytest.mark.row("P.8")
@pytest.mark.parametrize("grid, cell, prefix", [((4, 4), (16, 16), 1), ((3, 7), (14, 7), 5), ((2, 2), (8, 8), 0)])
def test_uniform_attention_looks_as_far_as_the_mean_of_all_pairs(
    grid: tuple[int, int], cell: tuple[int, int], prefix: int
) -> None:
    h, w = grid
    pairs = [
        math.hypot((a - c) * cell[0], (b - d) * cell[1])
        for a in range(h)
        for b in range(w)
        for c in range(h)
        for d in range(w)
    ]
    tokens = prefix + h * w
    weights = torch.full((2, 3, tokens, tokens), 1 / tokens)
    found = attention_distance(weights, patch_distances(grid, cell), prefix)
    np.testing.assert_allclose(found, [sum(pairs) / len(pairs)] * 3, rtol=1e-6)
    itself = torch.eye(tokens).expand(1, 1, -1, -1)
    assert float(attention_distance(itself, patch_distances(grid, cell), prefix)) == 0


@pytest.mark.row("P.8")
def test_distances_of_a_network_by_loops(pixels: Tensor) -> None:
    model = build(registers=1, kept_heads=((0, 2), (1,), (0, 1, 3)))
    found = attention_distances(model, pixels)
    seen = trace(model, pixels)
    for block in range(3):
        for place, head in enumerate(model.config.heads_of(block)):
            total = 0.0
            for image in range(2):
                for query in range(6):
                    row = seen.attention[block][image, place, 2 + query, 2:].tolist()
                    for key, weight in enumerate(row):
                        away = math.hypot(4 * (query // 3 - key // 3), 4 * (query % 3 - key % 3))
                        total += weight / sum(row) * away / 12
            assert found[block, head] == pytest.approx(total, rel=1e-5)
    assert np.isnan(found[1, 0])


@pytest.mark.row("4.REG")
def test_norms_are_of_tokens_after_the_last_block(pixels: Tensor) -> None:
    model = build(registers=2)
    prefix, patches = token_norms(model, pixels)
    hidden = trace(model, pixels).hidden[-1].detach()
    np.testing.assert_allclose(prefix, hidden[:, :3].norm(dim=-1).flatten(), rtol=1e-5)
    np.testing.assert_allclose(patches, hidden[:, 3:].norm(dim=-1).flatten(), rtol=1e-5)


@pytest.mark.row("4.DINO")
def test_colours_are_the_principal_components() -> None:
    from sklearn.decomposition import PCA

    dice = torch.Generator().manual_seed(0)
    patches = torch.randn(3, 10, 8, generator=dice) * torch.tensor([9.0, 5, 3, 1, 1, 1, 1, 1])
    found = principal_colours(patches)
    assert found.shape == (3, 10, 3)
    assert found.min() >= 0
    assert found.max() <= 1
    theirs = PCA(3).fit_transform(patches.reshape(30, 8).numpy())
    for number in range(3):
        likeness = np.corrcoef(found.reshape(30, 3)[:, number], theirs[:, number])[0, 1]
        assert abs(likeness) > 0.99
    torch.testing.assert_close(torch.from_numpy(principal_colours(patches)), torch.from_numpy(found))


def test_colours_are_of_what_differs_and_their_sign_is_no_chance() -> None:
    """What all patches share is left out; each direction points to where its numbers add up to more than nothing."""
    dice = torch.Generator().manual_seed(1)
    patches = torch.randn(1, 40, 6, generator=dice, dtype=torch.float64) * torch.tensor([9.0, 5, 3, 0.1, 0.1, 0.1])
    patches += torch.tensor([0.0, 0.0, 0.0, 50.0, -20.0, 5.0])
    flat = patches[0] - patches[0].mean(dim=0)
    directions = torch.linalg.svd(flat, full_matrices=False)[2][:3]
    directions = directions * directions.sum(dim=1, keepdim=True).sign()
    found = principal_colours(patches)[0]
    for colour, values in zip(found.T, (flat @ directions.T).T.numpy(), strict=True):
        low, high = np.quantile(values, [0.01, 0.99])
        np.testing.assert_allclose(colour, np.clip((values - low) / (high - low), 0, 1), atol=1e-9)


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


def test_a_patch_without_a_say_looks_like_those_around_it() -> None:
    values = np.array([[9.0, 1.0, 1.0], [2.0, 3.0, 1.0]])
    without = np.zeros((2, 3), bool)
    without[0, 0] = True
    found = smoothed(values, without)
    assert found[0, 0] == pytest.approx(2.0)
    assert (found[~without] == values[~without]).all()
    assert smoothed(values, np.ones((2, 3), bool)).max() == 0


@pytest.mark.parametrize(
    "resize, size, expected",
    [
        ("crop", (50, 100), (25, 0, 75, 50)),
        ("crop", (100, 50), (0, 25, 50, 75)),
        ("squash", (50, 100), (0, 0, 100, 50)),
        ("pad", (50, 100), (0, -25, 100, 75)),
    ],
)
def test_the_box_is_what_the_network_sees(
    resize: str, size: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    preprocess = vitrail.Preprocess(size=20, resize=resize, crop=1.0)  # type: ignore[arg-type]
    np.testing.assert_allclose(preprocess.box(*size), expected, atol=1e-9)


def test_a_box_with_a_margin_by_the_image_itself() -> None:
    """A bright square in the middle of what is seen is in the middle of the box."""
    preprocess = vitrail.Preprocess(size=224, crop=0.9)
    left, top, right, bottom = preprocess.box(300, 451)
    image = np.zeros((300, 451, 3), np.uint8)
    image[round(top) : round(bottom), round(left) : round(right)] = 255
    seen = np.asarray(preprocess.visible_image(image))
    assert seen[3:-3, 3:-3].min() == 255
    image = 255 - image
    assert np.asarray(preprocess.visible_image(image))[3:-3, 3:-3].max() == 0


@pytest.mark.row("VE.3")
def test_heat_lies_inside_the_box() -> None:
    image = Image.new("RGB", (100, 50), (90, 90, 90))
    drawn = np.asarray(heat_over(image, np.array([[0.0, 1.0], [0.0, 0.0]]), (25, 0, 75, 50))).astype(int)
    assert drawn[12, 62].sum() > drawn[38, 37].sum() + 200  # the hot quarter
    assert drawn[25, 5].sum() < drawn[38, 37].sum()  # not seen: darker still
    padded = np.asarray(heat_over(image, np.eye(2), (0, -25, 100, 75)))
    assert padded.shape == (50, 100, 3)


def test_a_map_of_a_frame_is_cut_to_the_image() -> None:
    """Bars above and below: what is hot in the middle of the frame is hot in the middle of the image."""
    image = Image.new("RGB", (100, 50), (90, 90, 90))
    values = np.zeros((4, 4))
    values[2, 3] = 1.0
    drawn = np.asarray(heat_over(image, values, (0, -25, 100, 75))).astype(int).sum(axis=-1)
    assert np.unravel_index(drawn.argmax(), drawn.shape)[0] in range(30, 46)
    assert drawn[37, 87] > drawn[12, 87] + 200
    assert drawn[37, 87] > drawn[37, 12] + 200


def test_a_crossed_out_patch_does_not_outshine_the_others() -> None:
    """A value a hundred times the others, of a patch without a say: what it hid is seen, and a cross is on it."""
    image = Image.new("RGB", (80, 80), (90, 90, 90))
    values = np.array([[100.0, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2 + [[0.0, 0.0, 0.0, 1.0]])
    without = values == 100
    plain = np.asarray(heat_over(image, values, (0, 0, 80, 80))).astype(int).sum(axis=-1)
    calm = np.asarray(heat_over(image, values, (0, 0, 80, 80), without)).astype(int).sum(axis=-1)
    assert calm[70, 70] > plain[70, 70] + 150
    assert plain[18, 3] > calm[18, 3] + 50  # beside the cross, which is light itself
    assert calm[10, 10] == 3 * 252 - 5  # the cross, of paper


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
    assert f"{5 / 24:.1%} are larger than 3 times the median" in figures["norms"].caption
    monkeypatch.undo()
    page = portrait(loaded, tmp_path, images).page.read_text()
    assert "Measured on 16 images." in page


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
