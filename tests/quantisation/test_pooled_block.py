"""A last block for the tokens that the pool reads: the same answers, and nothing computed that nobody reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vitrail.network import Positions, Rotary, ViT, ViTConfig, rebuild
from vitrail.quantisation.pooled_block import pool_only


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"registers": 2},
        {"pool": "cls+distillation", "distillation_token": True},
        {"axial": True},
        {"positions": Positions("relative")},
        {"positions": Positions("none"), "rotary": Rotary()},
        {"merge_per_block": 2},
        {"parallel": True},
        {"norm": "batch"},
        {"layer_scale": 0.3, "qk_norm": True},
        {"final_norm": "pooled", "pool": "mean"},
        {"pool": "cls+mean"},
        {"pool": "map", "cls_token": False},
    ],
    ids=str,
)
def test_what_no_pool_reads_is_not_computed_and_the_answer_stays(changes: dict[str, Any]) -> None:
    config = ViTConfig(image_size=32, patch_size=8, width=32, depth=3, heads=4, mlp_width=64, classes=7, **changes)
    torch.manual_seed(0)
    model = ViT(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    pixels = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    mask = torch.tensor([1.0, 0.0, 0.5, 1.0])
    seen: list[int] = []
    model.encoder.blocks[-1].mlp.up.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    with torch.no_grad():
        full = torch.stack([model(pixels), model(pixels, mask)])
        shorter = pool_only(rebuild(model, config))
        shorter.encoder.blocks[-1].mlp.up.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
        brief = torch.stack([shorter(pixels), shorter(pixels, mask)])
    assert torch.allclose(brief, full, rtol=1e-10, atol=1e-12)
    of_pool = {"cls": 1, "cls+distillation": 2}.get(config.pool)
    assert seen[2:] == ([of_pool] * 2 if of_pool else seen[:2])
    assert seen[0] > 2
