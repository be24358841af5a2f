"""The oracles themselves run here, so that a failing comparison speaks of our numbers."""

from __future__ import annotations

from types import ModuleType

import torch


def test_timm_runs_a_vit(timm: ModuleType) -> None:
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    assert sum(each.numel() for each in model.parameters()) == 5_717_416
    with torch.inference_mode():
        logits = model(torch.rand(2, 3, 224, 224))
    assert logits.shape == (2, 1000)
    assert logits.isfinite().all()


def test_transformers_runs_a_vit(transformers: ModuleType) -> None:
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
    )
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    with torch.inference_mode():
        tokens = model(torch.rand(2, 3, 32, 32)).last_hidden_state
    assert tokens.shape == (2, 17, 16)
    assert tokens.isfinite().all()
