"""Tiny checkpoints to export."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.checkpoint import Checkpoint
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig

SIZES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": 32,
    "depth": 1,
    "heads": 4,
    "mlp_width": 64,
    "classes": 5,
}
NAMES = tuple("abcde")


def checkpoint(preprocess: Preprocess | None = None, seed: int = 0, **changes: Any) -> Checkpoint:
    """A network whose every parameter counts, with all that a checkpoint may carry."""
    torch.manual_seed(seed)
    model = ViT(ViTConfig(**SIZES | changes)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.2)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    classes = NAMES if model.config.classes else ()
    return Checkpoint(model, preprocess or Preprocess(size=32), classes, temperature=1.7, reject=0.05)
