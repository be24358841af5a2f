"""The settings of a small network in our words and in timm's, and a network of theirs as a bare file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from network import renames

SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 128, "depth": 2, "heads": 2, "mlp_width": 256}
THEIRS: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 128,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 2.0,
    "num_classes": 10,
    "dynamic_img_size": True,
}


def saved(model: nn.Module, path: Path) -> Path:
    """Their random weights in a bare file, as timm's train script or torch users write it."""
    renames.randomise(model)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return path
