"""Numbers behind the figures, against closed forms and loops; the figures and the page themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import vitrail
from insight.small import build
from vitrail.insight.measures import (
    attention_distance,
    attention_distances,
    patch_distances,
    principal_colours,
    token_norms,
)
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
