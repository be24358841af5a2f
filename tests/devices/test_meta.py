"""Shapes alone, on torch's device that holds no numbers: every preset goes forward, is traced, and is trained a step.

A tensor that is made on the CPU in the middle of that would be refused.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vitrail
from vitrail.network import ViTConfig
from vitrail.network.presets import PRESETS
from vitrail.network.surgery import build_empty

META = torch.device("meta")
SMALL = {name: replace(config, depth=1) for name, config in PRESETS.items()}


def pixels_for(config: ViTConfig, count: int = 2) -> torch.Tensor:
    return torch.empty(count, config.channels, *config.image_size, device=META)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_forward_is_traced_and_trained(name: str) -> None:
    config = SMALL[name]
    model = build_empty(config).eval()
    trace = vitrail.trace(model, pixels_for(config))
    tokens = config.prefix + config.grid[0] * config.grid[1]
    assert trace.tokens.shape == (2, tokens, config.width)
    assert [each.shape for each in trace.hidden] == [(2, tokens, config.width)] * (config.depth + 1)
    assert {each.shape for each in trace.attention} == {(2, config.heads, tokens, tokens)}
    if config.classes:
        assert trace.logits.shape == (2, config.classes)
    every = [trace.tokens, trace.pooled, trace.logits, *trace.hidden, *trace.attention]
    assert {each.device for each in every} == {META}

    logits = model.train()(pixels_for(config))
    assert logits.shape == trace.logits.shape
    logits.square().mean().backward()
    untouched = {name for name, each in model.named_parameters() if each.requires_grad and each.grad is None}
    assert untouched == set()
    torch.optim.AdamW(model.parameters()).step()


def test_merging_and_masks_need_no_numbers() -> None:
    config = replace(SMALL["vit-s16"], merge_per_block=8)
    model = build_empty(config).eval()
    assert model(pixels_for(config), head_mask=torch.ones(config.heads)).shape == (2, 1000)
    larger = torch.empty(1, 3, 288, 224, device=META)
    assert build_empty(SMALL["vit-s16"])(larger).shape == (1, 1000)
