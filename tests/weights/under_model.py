"""Small networks of DeiT and MAE in files of theirs, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.network.config import Resample
from vitrail.weights import convert, load
from weights.originals import SMALL, Mae
from weights.parity import assert_equal, assert_same_bits

PLAIN = Resample(antialias=False)


FIXED = ("pos_embed", "decoder_pos_embed")


def random(kind: type[nn.Module], **changes: Any) -> Any:
    """A small network of theirs in which nothing is zero or one, but the fixed positions of MAE."""
    model = kind(**{**SMALL, **changes}).eval()
    renames.randomise(model, keep=FIXED if kind is Mae else ())
    return model


def saved(content: Any, path: Path, **beside: Any) -> Path:
    """The weights under "model", as both programs write them."""
    torch.save({"model": content.state_dict() if isinstance(content, nn.Module) else content, **beside}, path)
    return path


def assert_there_and_back(theirs: Any, family: str, folder: Path) -> Checkpoint:
    """Equal answers at three sizes; written back the same bits under "model", which their class loads strictly."""
    path = saved(theirs, folder / "theirs.pth")
    ours = load(path)
    assert ours.provenance.family == family
    assert ours.model.config.positions.resample == PLAIN
    assert ours.model.config.norm_eps == 1e-6
    assert ours.preprocess.mean == (0.485, 0.456, 0.406)
    assert_equal(ours.model, theirs)
    report = convert(path, folder / "ours.pth", to=family)
    assert report.not_carried == ()
    assert report.preprocess_carried
    content = torch.load(folder / "ours.pth", weights_only=True)
    assert list(content) == ["model"]
    assert_same_bits(content["model"], theirs.state_dict())
    renames.randomise(theirs)
    theirs.load_state_dict(content["model"], strict=True)
    assert_equal(ours.model, theirs)
    return ours
