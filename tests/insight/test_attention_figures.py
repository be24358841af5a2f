"""Figures of a network: what is drawn is what the network holds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from network import renames
from vitrail.insight.attention_figures import (
    attention_sheet,
    looks,
    patch_filters,
    position_similarity,
    reader,
    sincos_heat_map,
)
from vitrail.insight.tracing import LaidOutTrace, trace_with_layouts
from vitrail.network import ConvStem, ViT, ViTConfig
from vitrail.network.positions import sincos_2d
from vitrail.reporting.image_sheets import PAPER, coloured, overlay

CONFIG = ViTConfig(image_size=(32, 48), patch_size=8, width=16, depth=2, heads=4, mlp_width=32, classes=3, registers=2)
GRID = (4, 6)
LEFT, TOP = 16, 52  # where a sheet without names begins


def grey(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L"), int)


def traced(model: ViT) -> LaidOutTrace:
    with torch.no_grad():
        return trace_with_layouts(model.eval(), torch.randn(1, 3, 32, 48))


def random(**changes: object) -> ViT:
    model = ViT(dataclasses.replace(CONFIG, **changes))
    renames.randomise(model)
    return model


@pytest.mark.row("000.28")
@pytest.mark.parametrize("grid", [(5, 5), (3, 7)])
def test_each_tile_of_the_similarity_peaks_at_its_own_patch(grid: tuple[int, int]) -> None:
    """Read back from the image: of tile i, cell i is the brightest."""
    rows, columns = grid
    cell, gap = 5, 3
    page = grey(position_similarity(torch.randn(rows * columns, 24), grid, cell))
    white = grey(coloured(np.ones((1, 1))))[0, 0]
    for row in range(rows):
        for column in range(columns):
            left = LEFT + column * (columns * cell + gap)
            top = TOP + row * (rows * cell + gap)
            tile = page[top : top + rows * cell, left : left + columns * cell][cell // 2 :: cell, cell // 2 :: cell]
            assert tile.shape == grid
            assert np.unravel_index(tile.argmax(), grid) == (row, column)
            assert tile[row, column] == white
            assert (np.delete(tile.ravel(), row * columns + column) < white).all()


def test_positions_of_one_row_are_alike_where_the_table_says_so() -> None:
    """Sine-cosine positions fall off with distance, and the image shows it."""
    page = grey(position_similarity(sincos_2d((5, 5), 32), (5, 5), cell=5))
    tile = page[TOP + 2 * 28 : TOP + 2 * 28 + 25, LEFT + 2 * 28 : LEFT + 2 * 28 + 25][2::5, 2::5]
    assert (np.diff(tile[2, :3]) > 0).all()
    assert (np.diff(tile[2, 2:]) < 0).all()
    assert (tile == tile.T).all()


@pytest.mark.row("4.SIN")
def test_the_heat_map_shows_the_table() -> None:
    """Read back from the image: a row for every patch, a column for every value, in four parts."""
    grid, width, cell = (3, 4), 16, 6
    page = np.asarray(sincos_heat_map(grid, width, cell))
    expected = np.asarray(coloured((sincos_2d(grid, width).numpy() + 1) / 2))
    top, part = TOP + 24, width // 4 * cell
    found = [
        page[top : top + 12 * cell, LEFT + number * (part + 6) :][cell // 2 :: cell, cell // 2 : part : cell]
        for number in range(4)
    ]
    assert np.array_equal(np.concatenate(found, axis=1), expected)
    assert expected[0, width // 4].tolist() == expected[0, -1].tolist()  # the first patch: cosines are 1


def test_looks_is_the_row_of_the_token() -> None:
    model = random()
    seen = traced(model)
    first = looks(seen, 0, GRID)
    assert first.shape == (4, *GRID)
    assert torch.equal(first.flatten(1), seen.trace.attention[0][0, :, 0, 3:])
    patch = looks(seen, -1, GRID, 7)
    assert torch.equal(patch.flatten(1), seen.trace.attention[1][0, :, 10, 3:])


def test_looks_without_a_cls_token_is_what_the_pool_reads() -> None:
    model = random(pool="mean", cls_token=False, registers=0)
    seen = traced(model)
    found = looks(seen, 1, GRID)
    assert torch.allclose(found.flatten(1), seen.trace.attention[1][0].mean(dim=1), atol=1e-6)
    assert reader(model.config) == "the pooled tokens look"


def test_the_sheet_of_attention_has_a_tile_for_every_block_and_head() -> None:
    model, image = random(), Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8))
    seen = traced(model)
    page = attention_sheet(seen, model.config, GRID, image)
    small = image.resize((132, 88), Image.Resampling.LANCZOS)
    left = page.width - 16 - 5 * 138
    for block in range(2):
        maps = seen.trace.attention[block][0, :, 0, 3:].reshape(4, *GRID)
        for head, values in enumerate((*maps, maps.mean(dim=0))):
            box = (left + head * 138, 76 + block * 94, left + head * 138 + 132, 76 + block * 94 + 88)
            assert np.array_equal(np.asarray(page.crop(box)), np.asarray(overlay(small, values.numpy())))


def test_heads_keep_their_numbers_when_others_are_cut() -> None:
    model = vitrail.prune_heads(random(), {0: [1, 3]})
    image = Image.new("RGB", (96, 64), (90, 90, 90))
    page = attention_sheet(traced(model), model.config, GRID, image)
    left = page.width - 16 - 5 * 138
    empty = [
        page.crop((left + head * 138, 76, left + head * 138 + 132, 76 + 88)).getcolors() == [(132 * 88, PAPER)]
        for head in range(5)
    ]
    assert empty == [False, True, False, True, False]


@pytest.mark.row("P.9")
def test_filters_are_the_principal_components() -> None:
    """A kernel made of two patterns has these two as its first components, up to sign."""
    model = ViT(dataclasses.replace(CONFIG, image_size=(32, 48)))
    dice = torch.Generator().manual_seed(0)
    patterns = torch.linalg.qr(torch.randn(3 * 64, 2, generator=dice)).Q.T  # (2, C*P*P)
    mix = torch.randn(16, 2, generator=dice) * torch.tensor([5.0, 1.0])
    with torch.no_grad():
        model.patches.projection.weight.copy_((mix @ patterns).reshape(model.patches.projection.weight.shape))
    page = np.asarray(patch_filters(model, count=2, columns=2, cell=3), float)
    tiles = [page[TOP + 1 : TOP + 24 : 3, LEFT + n * 30 + 1 : LEFT + n * 30 + 24 : 3] for n in range(2)]
    drawn = np.stack([tile.transpose(2, 0, 1).ravel() for tile in tiles])
    drawn -= drawn.mean(axis=1, keepdims=True)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    plane = torch.cat((patterns, torch.ones(1, 192) / 192**0.5)).numpy()  # drawing shifts by a constant
    basis = np.linalg.qr(plane.T)[0]
    assert np.linalg.norm(drawn @ basis, axis=1) == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.row("P.9")
@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_each_tile_is_a_component_and_not_a_filter(order: str) -> None:
    """Of a kernel of 16 filters, all alike in one part: read back from the page, against numpy's decomposition."""
    model = ViT(CONFIG)
    dice = np.random.default_rng(3)
    filters = (dice.normal(size=(16, 192)) * np.geomspace(3, 0.3, 192) + 4 * dice.normal(size=192)).astype(np.float32)
    with torch.no_grad():
        model.patches.projection.weight.copy_(torch.from_numpy(filters).reshape(model.patches.projection.weight.shape))
    seen = filters.reshape(16, 3, 8, 8)[:, :: -1 if order == "BGR" else 1].reshape(16, 192).astype(np.float64)
    components = np.linalg.svd(seen - seen.mean(axis=0), full_matrices=False)[2][:14]
    assert components @ components.T == pytest.approx(np.eye(14), abs=1e-9)
    page = np.asarray(patch_filters(model, cell=3, order=order), float)
    rows, columns = np.divmod(np.arange(14), 7)
    tiles = [
        page[TOP + row * 30 + 1 : TOP + row * 30 + 24 : 3, LEFT + column * 30 + 1 : LEFT + column * 30 + 24 : 3]
        for row, column in zip(rows, columns, strict=True)
    ]
    drawn = np.stack([tile.transpose(2, 0, 1).ravel() for tile in tiles])  # (14, C*P*P), 0 to 255

    def stretched(values: np.ndarray) -> np.ndarray:
        return 255 * (values - values.min()) / np.ptp(values)

    for number, tile in enumerate(drawn):
        gaps = [np.abs(tile - stretched(sign * components[number])).max() for sign in (1, -1)]
        assert min(gaps) < 1.5, number
        assert min(np.abs(tile - stretched(each)).max() for each in (*seen, *-seen)) > 20


def test_as_many_components_as_asked_for_in_rows() -> None:
    page = np.asarray(patch_filters(random(), count=5, columns=2, cell=3), float)
    left = [page[TOP + row * 30 : TOP + row * 30 + 24, LEFT : LEFT + 24].std() for row in range(3)]
    right = [page[TOP + row * 30 : TOP + row * 30 + 24, LEFT + 30 : LEFT + 54].std() for row in range(3)]
    assert [each > 10 for each in (*left, *right)] == [True, True, True, True, True, False]


@pytest.mark.parametrize("changes", [{"channels": 1}, {"stem": ConvStem((4, 8)), "patch_size": (2, 2)}])
def test_filters_of_other_channels_are_drawn_in_grey(changes: dict[str, object]) -> None:
    model = ViT(dataclasses.replace(CONFIG, **changes))
    side = 9 * model.config.patch_size[0]
    tile = np.asarray(patch_filters(model))[TOP : TOP + side, LEFT : LEFT + side].astype(int)
    assert (tile.max(axis=-1) == tile.min(axis=-1)).all()
    assert tile.max() == 255
