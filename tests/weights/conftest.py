"""Small networks of the families in files and folders, for the tests of more than one module."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig
from vitrail.weights import convert
from weights.timm_files import SMALL, THEIRS
from weights.transformers_cases import CASES, build, saved


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A small network in timm's names, one file."""
    model = ViT(ViTConfig(**SMALL, classes=10)).eval()
    renames.randomise(model)
    convert(Checkpoint(model, Preprocess(32)), tmp_path / "bare.safetensors", to="timm")
    return tmp_path / "bare.safetensors"


@pytest.fixture(scope="module")
def timm_vit(timm: ModuleType) -> Any:
    """timm's VisionTransformer, small."""
    from timm.models.vision_transformer import VisionTransformer

    return lambda **changes: VisionTransformer(**{**THEIRS, **changes}).eval()


@pytest.fixture(scope="module")
def vit_folder(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ViT with five classes."""
    torch.manual_seed(0)
    return saved(build(transformers, CASES["ViT, classes"]), tmp_path_factory.mktemp("vit") / "vit")
