"""Small networks and images for the tests of packed runtimes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vitrail import Checkpoint, Preprocess, ViT, ViTConfig
from vitrail.data.samples import Dataset, Sample
from vitrail.network import Positions, Rotary
from vitrail.packed import packed_attention, packed_vit

SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": 48,
    "depth": 3,
    "heads": 4,
    "mlp_width": 96,
    "classes": 5,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers, mean": {"registers": 3, "pool": "mean", "final_norm": "pooled"},
    "rotary": {"positions": Positions("none"), "rotary": Rotary()},
    "attention pool": {"pool": "map", "cls_token": False},
    "layer scale, no key bias": {"layer_scale": 0.3, "qkv_bias": "no-key"},
    "no biases": {"qkv_bias": "none", "patch_bias": False},
    "swiglu": {"mlp": "swiglu", "activation": "silu"},
    "quick gelu": {"activation": "quick_gelu"},
    "tanh gelu": {"activation": "gelu_tanh"},
    "relu": {"activation": "relu"},
    "silu": {"activation": "silu"},
    "qk norm": {"qk_norm": True},
    "parallel": {"parallel": True},
    "merging": {"merge_per_block": 2},
    "merging by tokens": {"merge_per_block": 2, "merge_by": "tokens"},
    "merging now and then": {"merge_per_block": 4, "merge_by": "tokens", "merge_from": 1, "merge_every": 2, "depth": 5},
    "merging by tokens, mean": {"merge_per_block": 2, "merge_by": "tokens", "pool": "mean", "registers": 1},
    "pruned": {"kept_heads": ((0, 2), (1,), (0, 1, 3))},
    "distillation": {"distillation_token": True, "pool": "cls+distillation"},
    "axial": {"axial": True},
    "relative": {"positions": Positions("relative")},
    "batch norm": {"norm": "batch"},
    "patch norms": {"patch_norms": True},
}


def network(seed: int = 0, **changes: Any) -> ViT:
    """A small network whose every parameter matters."""
    torch.manual_seed(seed)
    model = ViT(ViTConfig(**SMALL | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def checkpoint(seed: int = 0, preprocess: Preprocess | None = None, **changes: Any) -> Checkpoint:
    return Checkpoint(
        network(seed, **changes), preprocess or Preprocess(size=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    )


def make_images(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Smooth random colour images, uint8 (n, 32, 32, 3)."""
    dice = np.random.default_rng(seed)
    coarse = dice.integers(0, 256, (count, 4, 4, 3))
    fine = coarse.repeat(8, axis=1).repeat(8, axis=2) + dice.integers(-20, 21, (count, 32, 32, 3))
    return np.clip(fine, 0, 255).astype(np.uint8)


def labelled(runtime: Checkpoint, count: int = 96, seed: int = 0, **splits: int) -> Dataset:
    """Images with the network's own answers for labels: it is right about all of them."""
    images = make_images(count, seed)
    logits, _ = runtime.run(runtime.preprocess.batch(list(images)))
    marks = [name for name, each in splits.items() for _ in range(each)] or [""] * count
    samples = tuple(
        Sample(str(row), (runtime.classes[int(label)],), mark)
        for row, (label, mark) in enumerate(zip(logits.argmax(axis=1), marks, strict=True))
    )
    return Dataset("made", samples, images, runtime.classes)


def attending(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Attention of packed networks by "products" in bf16, or by "torch" alone."""
    for module in (packed_vit, packed_attention):
        monkeypatch.setattr(module, "prefers_products", lambda dtype: way == "products" and dtype == torch.bfloat16)
