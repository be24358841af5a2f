"""Every architecture of timm: told rightly from names, shapes and config.json, or refused; never guessed wrong."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from vitrail.checkpoint.safetensors_io import StoredTensor
from vitrail.errors import CheckpointError
from vitrail.network import ViTConfig
from vitrail.weights import FAMILIES
from vitrail.weights.loading import recognise
from vitrail.weights.reading.contents import WeightContents

ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu", "SwiGLU": "silu"}
POOLS = {"token": "cls", "avg": "mean", "map": "map"}
LARGER = ("_336", "_378", "_384", "_448", "_512", "_560")
# Bare files of these cannot be told from others of the same names and shapes; config.json tells.
ALIKE = {
    "vit_base_patch16_gap_224": "as many values as ViT-B without a cls token, in 16 heads",
    "test_vit": "heads of 32",
    "test_vit2": "heads of 32",
    "vit_base_patch16_lingbot": "DINOv3 pooled otherwise",
    "vit_giant_patch16_lingbot": "DINOv3 pooled otherwise",
    "vit_large_patch16_lingbot": "DINOv3 pooled otherwise",
    "vit_small_patch16_lingbot": "DINOv3 pooled otherwise",
}


def contents(model: nn.Module, sidecars: dict[str, Any]) -> WeightContents:
    """A file of the model's tensors, as far as names and shapes go."""
    tensors = {
        name: StoredTensor(tuple(value.shape), value.dtype, lambda: pytest.fail("nothing may be read"))
        for name, value in model.state_dict().items()
    }
    return WeightContents("a file", "safetensors", tensors, sidecars=sidecars)


def described(file: WeightContents) -> ViTConfig | None:
    """What is made of a file; None where it is refused. Every tensor must be in the table, as loading asks."""
    from vitrail.network.surgery import build_empty
    from vitrail.weights.pairing import expected, pair

    try:
        family = recognise(file, {})
        description = family.describe(file, {})
        pair(family, description, expected(description, build_empty(description.config)), file)
    except (CheckpointError, ValueError):
        return None
    assert family.name in FAMILIES
    return description.config


@pytest.fixture(scope="module")
def models(timm: ModuleType) -> dict[str, nn.Module]:
    """timm's vision transformers without memory, one block each."""
    found: dict[str, nn.Module] = {}
    patterns = ("vit_*", "deit*", "test_vit*", "naflexvit*", "eva02_tiny*", "eva_giant_patch14_224", "beit_base*224")
    with torch.device("meta"):
        for name in [name for pattern in patterns for name in timm.list_models(pattern)]:
            if name.endswith(LARGER) and "siglip" not in name:
                continue  # as the one at 224, but for the size
            try:
                eva = any(word in name for word in ("dinov3", "rope", "_pe_", "lingbot", "eva", "beit"))
                model = timm.create_model(name, depth=1, **({} if eva else {"weight_init": "skip"}))
            except (TypeError, RuntimeError, AssertionError, NotImplementedError):
                continue  # no depth to choose, or not without memory
            if hasattr(getattr(model, "blocks", [None])[0], "attn"):
                found[name] = model
    return found


def truths(model: Any, config: ViTConfig) -> Iterator[tuple[str, Any, Any]]:
    """Settings that no tensor says: (name, timm's, ours)."""
    block = model.blocks[0]
    yield "heads", block.attn.num_heads, config.heads
    kinds = {type(each).__name__ for each in block.mlp.modules()} & set(ACTIVATIONS)
    yield "activation", {ACTIVATIONS[kind] for kind in kinds}, {config.activation}
    yield "norm_eps", block.norm1.eps, config.norm_eps
    if config.pool != "cls+distillation":
        yield "pool", POOLS.get(model.global_pool, model.global_pool), config.pool
    yield "rotary", getattr(model, "rope", None) is not None, config.rotary is not None
    if config.rotary is None and hasattr(model, "patch_embed"):
        yield "grid", tuple(model.patch_embed.grid_size), config.grid


@pytest.mark.parametrize("bare", [False, True])
def test_every_architecture_is_told_rightly_or_refused(models: dict[str, nn.Module], bare: bool) -> None:
    wrong, read = [], 0
    for name, model in models.items():
        folder = {"architecture": name, "global_pool": model.global_pool, "num_features": model.num_features}
        config = described(contents(model, {} if bare else {"config.json": folder}))
        if config is None or (bare and name in ALIKE):
            continue
        read += 1
        wrong += [
            f"{name}: {what} is {theirs}, not {ours}" for what, theirs, ours in truths(model, config) if theirs != ours
        ]
    assert wrong == []
    assert read > (90 if bare else 100), f"only {read} of {len(models)} are read"
