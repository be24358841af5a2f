"""A network asked for an explanation is left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from insight.small import build
from vitrail.insight import explain_pixels


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(2, 3, 8, 12, generator=torch.Generator().manual_seed(4))


def test_frozen_weights_are_free_again(pixels: Tensor) -> None:
    model = build().train()
    model.norm.weight.requires_grad_(False)  # type: ignore[union-attr]
    for method in ("relevance", "grad-cam", "integrated-gradients", "occlusion", "rollout"):
        explain_pixels(model, pixels, method, 1, check=False)
    assert model.training
    assert not model.norm.weight.requires_grad  # type: ignore[union-attr]
    assert sum(not each.requires_grad for each in model.parameters()) == 1
    assert all(each.grad is None for each in model.parameters())
