"""DINO from its own files: the same numbers at any size, written back bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitrail.errors import CheckpointError
from vitrail.network.config import Resample
from vitrail.weights import load
from weights.dino_files import assert_there_and_back, random, saved
from weights.originals import Dino, DinoHead
from weights.parity import assert_equal


def test_dino(tmp_path: Path) -> None:
    ours = assert_there_and_back(random(Dino), "dino", tmp_path)
    assert ours.model.config.positions.resample == Resample(antialias=False, offset=0.1)
    assert (ours.preprocess.mean, ours.preprocess.crop) == ((0.485, 0.456, 0.406), 0.875)


def training_file(folder: Path) -> tuple[Any, Any, Path]:
    """Student and teacher with their heads, as DINO's training writes them."""
    student, teacher = random(Dino), random(Dino)
    head = DinoHead(128)

    def together(model: nn.Module, prefix: str) -> dict[str, Tensor]:
        parts = {"backbone.": model.state_dict(), "head.": head.state_dict()}
        return {prefix + part + name: value for part, state in parts.items() for name, value in state.items()}

    content = {"student": together(student, "module."), "teacher": together(teacher, ""), "epoch": 3}
    return student, teacher, saved(content, folder / "checkpoint.pth")


def test_a_training_file_of_dino(tmp_path: Path) -> None:
    """The teacher is taken unless the student is asked for; the projection is only left out by name."""
    student, teacher, path = training_file(tmp_path)
    with pytest.raises(CheckpointError, match=r"not used head\.mlp.*leave_out=\('projection',\)"):
        load(path)
    ours = load(path, leave_out=("projection",))
    assert ours.provenance.family == "dino"
    assert_equal(ours.model, teacher)
    assert_equal(load(path, override={"take": "student"}, leave_out=("projection",)).model, student)
    left = [row.theirs[0] for row in ours.provenance.mapping if row.how == "left out"]
    assert sorted(left) == sorted(f"head.{name}" for name in DinoHead(128).state_dict())


def test_a_head_of_classes_or_another_container_is_not_dino(tmp_path: Path) -> None:
    """The same names with a head, or in a safetensors file, are timm's, who resamples another way."""
    from safetensors.torch import save_file

    state = dict(random(Dino).state_dict())
    assert load(saved(state, tmp_path / "bare.pth")).provenance.family == "dino"
    headed = state | {"head.weight": torch.randn(10, 128), "head.bias": torch.randn(10)}
    assert load(saved(headed, tmp_path / "headed.pth")).provenance.family == "timm"
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "bare.safetensors")
    other = load(tmp_path / "bare.safetensors")
    assert (other.provenance.family, other.model.config.positions.resample) == ("timm", Resample())
    said = load(tmp_path / "bare.safetensors", override={"family": "dino"})
    assert said.model.config.positions.resample.offset == 0.1
