"""Numbers behind the figures, against closed forms and loops; the figures and the page themselves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from insight.small import build
from vitrail.insight.cards import card, film, heads_sheet, save_film
from vitrail.insight.explaining import explain
from vitrail.insight.measures import (
    attention_distance,
    attention_distances,
    patch_distances,
    principal_colours,
    token_norms,
)
from vitrail.insight.pictures import heat_over, smoothed
from vitrail.insight.plots import cells, dots, histogram, ticks
from vitrail.insight.portrait import portrait
from vitrail.insight.slimming import batches_of
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
            for picture in range(2):
                for query in range(6):
                    row = seen.attention[block][picture, place, 2 + query, 2:].tolist()
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


def test_a_box_with_a_margin_by_the_picture_itself() -> None:
    """A bright square in the middle of what is seen is in the middle of the box."""
    preprocess = vitrail.Preprocess(size=224, crop=0.9)
    left, top, right, bottom = preprocess.box(300, 451)
    image = np.zeros((300, 451, 3), np.uint8)
    image[round(top) : round(bottom), round(left) : round(right)] = 255
    seen = np.asarray(preprocess.view(image))
    assert seen[3:-3, 3:-3].min() == 255
    image = 255 - image
    assert np.asarray(preprocess.view(image))[3:-3, 3:-3].max() == 0


def test_heat_lies_inside_the_box() -> None:
    image = Image.new("RGB", (100, 50), (90, 90, 90))
    drawn = np.asarray(heat_over(image, np.array([[0.0, 1.0], [0.0, 0.0]]), (25, 0, 75, 50))).astype(int)
    assert drawn[12, 62].sum() > drawn[38, 37].sum() + 200  # the hot quarter
    assert drawn[25, 5].sum() < drawn[38, 37].sum()  # not seen: darker still
    padded = np.asarray(heat_over(image, np.eye(2), (0, -25, 100, 75)))
    assert padded.shape == (50, 100, 3)


@pytest.mark.row("VE.3", "001.15")
def test_card_heads_and_film(tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    picture = Image.fromarray(dice.integers(0, 255, (30, 90, 3), dtype=np.uint8))
    model = build(registers=1)
    loaded = vitrail.Checkpoint(model, vitrail.Preprocess(size=(8, 12), crop=1.0))
    found = [explain(loaded, picture, method) for method in ("relevance", "rollout", "occlusion")]
    drawn = card(found)
    assert drawn.width > 4 * 300
    frames = film(loaded, picture)
    assert len(frames) == 3
    save_film(frames, str(tmp_path / "film.gif"))
    with Image.open(tmp_path / "film.gif") as moving:
        assert moving.n_frames == 3
        assert moving.info["loop"] == 0
    grid = heads_sheet(loaded, picture, 4)
    assert grid.height > 3 * 80


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
