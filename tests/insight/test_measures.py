"""Numbers behind the figures, against closed forms and loops; the figures and the page themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from insight.small import build
from vitrail.insight import model_figures as portraits
from vitrail.insight.cards import card, film, heads_sheet, save_film
from vitrail.insight.explainer import explain
from vitrail.insight.explanation import Explanation
from vitrail.insight.image_sheets import heat_over, smoothed
from vitrail.insight.measures import (
    attention_distance,
    attention_distances,
    patch_distances,
    principal_colours,
    token_norms,
)
from vitrail.insight.model_figures import portrait
from vitrail.insight.pages import Figure, write_page
from vitrail.insight.plots import cells, dots, histogram, ticks
from vitrail.insight.pruning_run import batches_of
from vitrail.insight.tracing import trace


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


def test_ticks_are_round_numbers() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(3, 3) == [3]


def test_plots_show_their_numbers() -> None:
    rows = np.array([[1.0, 9.0], [5.0, np.nan]])
    drawn = dots(rows, "Title", "across", "up")
    ink = np.asarray(drawn).astype(int)
    blue = np.argwhere((np.abs(ink - (43, 111, 158)).sum(axis=-1)) < 30)
    assert len(blue) > 30
    left = blue[blue[:, 1] < drawn.width / 2]
    assert left[:, 0].max() - left[:, 0].min() > 200  # 1 and 9 stand far apart
    drawn = histogram(np.array([1.0] * 90 + [50.0]), "Title", "norm", [(1.0, "median")])
    assert (np.abs(np.asarray(drawn).astype(int) - (200, 85, 61)).sum(axis=-1) < 30).sum() > 200
    drawn = cells(np.array([[0.0, 1.0], [np.nan, 0.5]]), "Title", "block", "head", side=40)
    colours = np.asarray(drawn)
    assert colours[84 + 20, 96 + 60].tolist() == [253, 240, 170]
    assert colours[84 + 60, 96 + 20].tolist() == [252, 251, 248]


def columns_of(image: Image.Image, colour: tuple[int, int, int], top: int = 82) -> np.ndarray:
    """Columns of a plot, below its title, in which a colour stands."""
    ink = np.asarray(image).astype(int)[top:]
    return np.unique(np.argwhere(np.abs(ink - colour).sum(axis=-1) < 3)[:, 1])


@pytest.mark.parametrize("value", [10.0, 25.0, 40.0])
def test_a_mark_stands_at_its_value(value: float) -> None:
    """The axis goes from 0 to 51, over pixels 84 to 736."""
    drawn = histogram(np.array([1.0] * 9 + [50.0]), "Title", "norm", [(value, "")])
    assert columns_of(drawn, (200, 85, 61)).mean() == pytest.approx(84 + 652 * value / 51, abs=1)


def test_dots_stand_higher_the_larger_they_are() -> None:
    """A ring for each of 2 and 8, a line through their mean in the middle; nothing where there is no number."""
    drawn = np.asarray(dots(np.array([[2.0, 8.0], [5.0, np.nan]]), "Title", "across", "up")).astype(int)
    blue = np.argwhere(np.abs(drawn - (43, 111, 158)).sum(axis=-1) < 3)
    first, second = blue[blue[:, 1] < 410], blue[blue[:, 1] > 410]
    low, high = first[first[:, 0] > first[:, 0].mean()], first[first[:, 0] < first[:, 0].mean()]
    rows = [378 - 296 * value / (8 * 1.06) for value in (2, 8, 5)]
    found = [(each[:, 0].min() + each[:, 0].max()) / 2 for each in (low, high, second)]
    assert found == pytest.approx(rows, abs=1.5)


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


def test_captions_are_only_text(tmp_path: Path) -> None:
    image = Image.new("RGB", (4, 4))
    write_page(tmp_path, "<b>", "<i>", [Figure("a", '<script>"', image)], "<hr>")
    page = (tmp_path / "index.html").read_text()
    assert page.count("&lt;script&gt;&quot;") == 2  # on the page, and for those who cannot see it
    assert "<script" not in page
    assert "<b>" not in page
    assert "<i>" not in page
    assert "<hr>" in page


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

    monkeypatch.setattr(portraits, "dots", keep("dots", dots))
    monkeypatch.setattr(portraits, "histogram", keep("norms", histogram))
    sizes = iter([np.r_[[2.9] * 3, [3.1] * 5, [1.0] * 16]] * 4)
    monkeypatch.setattr(portraits, "token_norms", lambda model, pixels: (np.array([7.0] * len(pixels)), next(sizes)))
    figures = {each.name: each for each in portraits.figures_of_images(loaded, images[:14], "14 images")}
    expected = attention_distances(loaded.model, torch.from_numpy(loaded.preprocess.batch(images[:14])))
    np.testing.assert_allclose(drawn["dots"][0], expected, rtol=1e-5)
    assert drawn["norms"][1][2] == [(1.0, "median"), (3.0, "3 x median"), (7.0, "prefix tokens")]
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
        assert f'src="{each.name}"' in page
        with Image.open(each) as figure:
            assert min(figure.size) > 100
    assert {each.stem for each in found.files} == {"positions", "distance", "norms", "colours", "importance"}
    assert any("stem" in each for each in found.left_out)
