"""A small network whose every parameter is random: three blocks, and patches of 4 pixels, 2 by 3 of them."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.network import ViT, ViTConfig

BOTH = {"distillation_token": True, "pool": "cls+distillation"}
POOLS: dict[str, dict[str, Any]] = {
    "cls": {},
    "mean": {"pool": "mean"},
    "mean, norm after": {"pool": "mean", "final_norm": "pooled"},
    "mean, no prefix": {"pool": "mean", "cls_token": False},
    "map": {"pool": "map"},
    "cls+distillation": BOTH,
    "cls+mean": {"pool": "cls+mean"},
    "registers": {"registers": 3},
    "registers, mean": {"registers": 2, "pool": "mean"},
    "pruned": {"kept_heads": ((0, 2), (1,), (0, 1, 3))},
}


def build(**changes: Any) -> ViT:
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 3, "heads": 4, "mlp_width": 24, "classes": 5}
    torch.manual_seed(4)
    model = ViT(ViTConfig(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.25)
    return model
