"""The same numbers as torchvision, with the same random weights; another size through its own resampling."""

from __future__ import annotations

from functools import partial
from types import ModuleType

import pytest
import torch
from torch import nn

import oracles
from network import renames
from vitrail.network import Positions, Resample, ViT, ViTConfig

CLOSE = 1e-5  # of the largest logit, in fp32
POLICY = Resample(antialias=False, align_corners=True)


@pytest.fixture(scope="module")
def torchvision() -> ModuleType:
    return oracles.torchvision()


def their_vit(size: int, representation: int | None) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        image_size=size,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=128,
        num_classes=10,
        representation_size=representation,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    ).eval()


@pytest.mark.row("P.10")
@pytest.mark.parametrize("representation", [None, 48])
def test_vit(torchvision: ModuleType, representation: int | None) -> None:
    """With and without the layer before the head; larger images as its own function prepares the weights for them."""
    from torchvision.models.vision_transformer import interpolate_embeddings

    theirs = their_vit(32, representation)
    renames.randomise(theirs)
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        width=64,
        depth=2,
        heads=4,
        mlp_width=128,
        classes=10,
        representation_width=representation or 0,
        positions=Positions(resample=POLICY),
    )
    ours = ViT(config).eval()
    renames.to_ours(renames.TORCHVISION, ours, theirs.state_dict())
    larger = their_vit(48, representation)
    larger.load_state_dict(interpolate_embeddings(48, 8, theirs.state_dict()))
    with torch.no_grad():
        for model, size in ((theirs, 32), (larger, 48)):
            pixels = torch.randn(2, 3, size, size)
            assert renames.gap(ours(pixels), model(pixels)) < CLOSE
        renames.randomise(ours)
        theirs.load_state_dict(renames.to_theirs(renames.TORCHVISION, ours, theirs.state_dict()))
        pixels = torch.randn(2, 3, 32, 32)
        assert renames.gap(ours(pixels), theirs(pixels)) < CLOSE
