"""Small networks of DINO, DINOv2 and DINOv3 in files of theirs, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.network.vit import ViT
from vitrail.weights import convert, load
from weights import originals
from weights.originals import SMALL
from weights.parity import assert_equal, assert_same_bits

KEY = slice(128, 256)  # the third of a fused bias that is masked out, for SMALL's width


def random(kind: type[nn.Module], **changes: Any) -> Any:
    """A small network of theirs in which nothing is zero or one, but what DINOv3 masks out."""
    model = kind(**{**SMALL, **changes}).eval()
    renames.randomise(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, originals.Fused):
                module.bias[KEY] = 0
    return model


def saved(content: Any, path: Path) -> Path:
    torch.save(content.state_dict() if isinstance(content, nn.Module) else content, path)
    return path


def tokens_of(model: ViT) -> Any:
    return lambda pixels: model.normed(model.encode(pixels).tokens)


def all_of(theirs: Any) -> Any:
    return lambda pixels: theirs.norm(theirs.walk(pixels)[-1])


def assert_there_and_back(theirs: Any, family: str, folder: Path) -> Checkpoint:
    """All tokens equal at three sizes; written back the same bits, which their own class loads strictly."""
    path = saved(theirs, folder / "theirs.pth")
    ours = load(path)
    assert ours.provenance.family == family
    assert_equal(tokens_of(ours.model), all_of(theirs))
    assert_equal(ours.model, theirs)
    report = convert(path, folder / "ours.pth", to=family)
    assert report.not_carried == ()
    assert report.preprocess_carried
    written = torch.load(folder / "ours.pth", weights_only=True)
    assert_same_bits(written, theirs.state_dict())
    renames.randomise(theirs)
    theirs.load_state_dict(written, strict=True)
    assert_equal(ours.model, theirs)
    return ours
