"""Networks of many parts each, pixels for them, and when two sets of answers agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vitrail.network import ConvStem, Positions, Resample, Rotary

# Several parts in each, so that all are covered by few exports.
DINO = Positions(resample=Resample("bicubic", antialias=False, offset=0.1))
NETWORKS: dict[str, dict[str, Any]] = {
    "dino": {"rotary": Rotary("dinov3"), "positions": DINO, "registers": 2, "qk_norm": True, "layer_scale": 0.1},
    "distilled": {
        "pool": "cls+distillation",
        "distillation_token": True,
        "positions": Positions("sincos-2d-moco"),
        "rotary": Rotary("mixed"),
        "mlp": "swiglu",
        "activation": "silu",
        "parallel": True,
    },
    "attention pool": {
        "pool": "map",
        "cls_token": False,
        "stem": ConvStem((8, 16)),
        "patch_size": 2,
        "positions": Positions("learned-2d", at="every"),
        "rotary": Rotary("axial"),
        "qkv_bias": "no-key",
    },
}


def random_pixels(batch: int, height: int = 32, width: int = 32) -> np.ndarray[Any, Any]:
    return torch.randn(batch, 3, height, width).numpy()


def agree(found: Any, expected: Any) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(np.abs(b).max(), 1e-6))
