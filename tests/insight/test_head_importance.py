"""Importance of heads and channels against one image at a time; channels cut; pruning end to end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitrail
from insight.small import build
from vitrail.errors import InputError
from vitrail.insight import importance, prune_channels, prune_heads, trace


@pytest.fixture
def batches() -> list[tuple[Tensor, Tensor]]:
    dice = torch.Generator().manual_seed(3)
    return [(torch.randn(4, 3, 8, 12, generator=dice), torch.randint(5, (4,), generator=dice)) for _ in range(2)]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "pruned": {"kept_heads": ((0, 2), (1,), (0, 1, 3))},
    "swiglu, registers": {"mlp": "swiglu", "activation": "silu", "registers": 2, "pool": "mean"},
    "parallel": {"parallel": True, "pool": "map"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_by_gradient_is_the_mean_slope_of_a_gate(batches: list[tuple[Tensor, Tensor]], kind: str) -> None:
    model = build(**KINDS[kind])
    config = model.config
    expected = np.zeros((config.depth, config.heads))
    for pixels, targets in batches:
        for row in range(len(pixels)):
            mask = torch.ones(config.depth, config.heads, requires_grad=True)
            loss = F.cross_entropy(model(pixels[row : row + 1], head_mask=mask), targets[row : row + 1])
            [slope] = torch.autograd.grad(loss, mask)
            expected += slope.abs().double().numpy() / 8
    found = importance(model, batches)
    for block in range(config.depth):
        for head in range(config.heads):
            if head in config.heads_of(block):
                assert found.heads[block, head] == pytest.approx(expected[block, head], rel=1e-3, abs=1e-6)
            else:
                assert np.isnan(found.heads[block, head])
    assert found.images == 8
    assert found.channels.shape == (3, 0)


@pytest.mark.parametrize("kind", ["plain", "swiglu, registers"])
def test_channels_by_gradient(batches: list[tuple[Tensor, Tensor]], kind: str) -> None:
    model = build(**KINDS[kind])
    found = importance(model, batches, channels=True).channels
    assert found.shape == (3, 24)
    for block, channel in ((0, 3), (2, 17)):
        total = 0.0
        for pixels, targets in batches:
            for row in range(len(pixels)):
                gate = torch.ones(24, requires_grad=True)
                watch = model.encoder.blocks[block].mlp.down.register_forward_pre_hook(
                    lambda _, given, gate=gate: (given[0] * gate,)
                )
                loss = F.cross_entropy(model(pixels[row : row + 1]), targets[row : row + 1])
                watch.remove()
                total += abs(float(torch.autograd.grad(loss, gate)[0][channel])) / 8
        assert found[block, channel] == pytest.approx(total, rel=1e-3, abs=1e-6)


def test_by_ablation_is_what_the_loss_rises(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = build(**KINDS["pruned"])
    found = importance(model, batches, "ablation").heads

    def loss(without: tuple[int, int] | None) -> float:
        mask = torch.ones(3, 4)
        if without is not None:
            mask[without] = 0
        with torch.no_grad():
            each = [F.cross_entropy(model(pixels, mask), targets, reduction="sum") for pixels, targets in batches]
        return float(sum(each)) / 8

    for block in range(3):
        for head in model.config.heads_of(block):
            assert found[block, head] == pytest.approx(loss((block, head)) - loss(None), abs=1e-5)


def test_several_labels_have_importance_too(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = build()
    several = [(pixels, F.one_hot(targets, 5).float()) for pixels, targets in batches]
    assert np.isfinite(importance(model, several).heads).all()


def test_mistakes_are_named(batches: list[tuple[Tensor, Tensor]]) -> None:
    with pytest.raises(InputError, match="there are none"):
        importance(build(), [])
    with pytest.raises(InputError, match="no classes"):
        importance(build(classes=0), batches)
    with pytest.raises(vitrail.VitrailError, match="way 'taylor' is unknown"):
        importance(build(), batches, "taylor")


@pytest.mark.parametrize("kind", ["plain", "swiglu, registers"])
def test_a_cut_channel_is_a_silent_channel(batches: list[tuple[Tensor, Tensor]], kind: str) -> None:
    model = build(**KINDS[kind])
    cut = {block: [block, 5, 23 - block] for block in range(3)}
    smaller = prune_channels(model, cut)
    assert smaller.config == replace(model.config, mlp_width=21)
    for block, channels in cut.items():
        gate = torch.ones(24)
        gate[channels] = 0
        model.encoder.blocks[block].mlp.down.register_forward_pre_hook(lambda _, given, gate=gate: (given[0] * gate,))
    pixels = batches[0][0]
    for one, other in zip(trace(smaller, pixels).hidden, trace(model, pixels).hidden, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_channels_that_cannot_go_are_named() -> None:
    model = build()
    for cut, said in (
        ({0: [1]}, "as many of every block, got from 0 to 1"),
        ({block: range(24) for block in range(3)}, "leave the MLPs empty"),
        ({block: [24] for block in range(3)}, "channel to prune from block 0"),
        ({3: [1]}, "block to prune"),
        ([1], "expected {block"),
    ):
        with pytest.raises(InputError, match=said):
            prune_channels(model, cut)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="attention pooling"):
        prune_channels(build(pool="map"), {block: [1] for block in range(3)})


@pytest.mark.row("000.15", "000.10")
def test_cut_equals_masked_on_every_block(batches: list[tuple[Tensor, Tensor]]) -> None:
    model, pixels = build(), batches[0][0]
    gone = {0: [1], 1: [0, 2, 3], 2: [2]}
    mask = torch.ones(3, 4)
    for block, heads in gone.items():
        mask[block, heads] = 0
    cut, masked = trace(prune_heads(model, gone), pixels), trace(model, pixels, head_mask=mask)
    for one, other in zip(cut.hidden, masked.hidden, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cut.logits, masked.logits, atol=1e-6, rtol=1e-6)


def test_more_mistakes_of_importance_and_channels(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = build()
    with pytest.raises(InputError, match="classes from 0 to 4"):
        importance(model, [(batches[0][0], torch.full((4,), 7))])
    with pytest.raises(InputError, match="pass its .model"):
        importance(vitrail.load("vitrail:fashion"), batches)  # type: ignore[arg-type]
    for cut in ({"a": [1]}, {0.5: [1]}, {0: 3}):
        with pytest.raises(InputError):
            prune_channels(model, cut)  # type: ignore[arg-type]


def test_an_mlp_in_pieces_gives_the_same_importance(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = build()
    whole = importance(model, batches, channels=True)
    model.encoder.mlp_chunk = 3
    pieces = importance(model, batches, channels=True)
    np.testing.assert_allclose(pieces.heads, whole.heads, atol=1e-6)
    np.testing.assert_allclose(pieces.channels, whole.channels, atol=1e-6)
    assert model.encoder.mlp_chunk == 3
