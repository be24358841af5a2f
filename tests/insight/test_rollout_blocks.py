"""Rollout through the first blocks: a map for each, and the last of them the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from insight.small import build
from vitrail.errors import InputError
from vitrail.insight import Rollout, explain, explain_pixels


@pytest.mark.row("001.15")
def test_a_map_for_each_block_and_a_final_one_laid_over_the_image() -> None:
    """As ViT-pytorch shows attention: mean heads, the identity added, rows that sum to 1, multiplied up to a block."""
    model = build(depth=3, pool="cls")
    pixels = torch.randn(1, 3, 8, 12)
    attention = [each[0].detach().mean(dim=0).double().numpy() for each in vitrail.trace(model, pixels).attention]
    product = np.eye(len(attention[0]))
    maps = []
    for count, weights in enumerate(attention, start=1):
        step = weights + np.eye(len(weights))
        step /= step.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(step.sum(axis=1), 1)
        product = step @ product
        found = explain_pixels(model, pixels, method=Rollout(discard=0.0, blocks=count), target=0)[0].map
        np.testing.assert_allclose(found.ravel(), product[0, 1:], atol=1e-6)
        maps.append(found)
    final = explain_pixels(model, pixels, method=Rollout(discard=0.0), target=0)[0].map
    np.testing.assert_array_equal(maps[-1], final)
    assert len({each.tobytes() for each in maps}) == 3
    checkpoint = vitrail.Checkpoint(model, vitrail.Preprocess(size=(8, 12), crop=1.0))
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8))
    laid = [explain(checkpoint, photo, Rollout(discard=0.0, blocks=count)).overlay() for count in (1, 2, 3)]
    assert {each.size for each in laid} == {laid[0].size}
    assert len({each.tobytes() for each in laid}) == 3


def test_with_merged_tokens_the_maps_still_sum_to_what_the_prefix_leaves() -> None:
    model = build(depth=3, merge_per_block=1, pool="mean")
    pixels = torch.randn(2, 3, 8, 12)
    for count in (1, 2, 3):
        for found in explain_pixels(model, pixels, method=Rollout(discard=0.0, blocks=count), target=0):
            assert 0.5 < found.map.sum() <= 1 + 1e-6


def test_more_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="blocks: expected a whole number from 1 to 2, got 3"):
        explain_pixels(build(depth=2), torch.randn(1, 3, 8, 12), method=Rollout(blocks=3), target=0)
