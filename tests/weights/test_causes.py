"""Why the same weights give another result elsewhere: six causes, each found out or refused, never used in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from network import renames
from vitrail.checkpoint import Checkpoint, Setting
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network import Positions, Resample, ViT, ViTConfig
from vitrail.weights import convert, load

SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 128, "depth": 2, "heads": 2, "mlp_width": 256}


def network(**changes: Any) -> Checkpoint:
    """A small network with random weights, as a checkpoint."""
    model = ViT(ViTConfig(**{**SMALL, "classes": 10, **changes})).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(32))


def why(ckpt: Checkpoint, name: str) -> Setting:
    return next(each for each in ckpt.provenance.settings if each.name == name)


def test_activation(tmp_path: Path) -> None:
    """A target whose files imply another activation refuses the network, by name, and leaves nothing behind."""
    with pytest.raises(CheckpointError, match="activation: quick_gelu"):
        convert(network(activation="quick_gelu"), tmp_path / "out.npz", to="google")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CheckpointError, match="activation: gelu"):
        convert(network(), tmp_path / "out.npz", to="google")  # Google's code computes the tanh form
    report = convert(network(activation="gelu_tanh"), tmp_path / "out.npz", to="google")
    assert report.relative_difference == 0


def test_norm_eps(tmp_path: Path) -> None:
    """transformers' 1e-12 goes into its config.json and comes back; timm, which has no place for it, refuses."""
    ckpt = network(norm_eps=1e-12)
    convert(ckpt, tmp_path / "hf", to="transformers")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["layer_norm_eps"] == 1e-12
    assert load(tmp_path / "hf").model.config.norm_eps == 1e-12
    with pytest.raises(CheckpointError, match="norm_eps: 1e-12"):
        convert(tmp_path / "hf", tmp_path / "timm", to="timm")
    assert not (tmp_path / "timm").exists()
    convert(tmp_path / "hf", tmp_path / "timm", to="timm", override={"norm_eps": 1e-6})
    assert load(tmp_path / "timm").model.config.norm_eps == 1e-6


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 3e-5])
def test_norm_eps_in_force_is_the_folder_s(tmp_path: Path, eps: float) -> None:
    """Not the one that its model type takes for granted, and not ours: the answers are the same."""
    ckpt = network(norm_eps=eps)
    convert(ckpt, tmp_path / "hf", to="transformers")
    back = load(tmp_path / "hf")
    assert back.model.config.norm_eps == eps
    assert why(back, "norm_eps") == Setting("norm_eps", f"{eps}", "the folder's config.json")
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(back.model(pixels), ckpt.model(pixels))


def test_layer_scale(tmp_path: Path) -> None:
    """A file half of whose LayerScale is gone, and a target without any, are refused."""
    ckpt = network(layer_scale=1e-5)
    convert(ckpt, tmp_path / "timm", to="timm")
    tensors = load_file(tmp_path / "timm" / "model.safetensors")
    del tensors["blocks.1.ls1.gamma"]
    save_file(tensors, tmp_path / "half.safetensors")
    with pytest.raises(CheckpointError, match="missing encoder.blocks.1.scale1.gamma"):
        load(tmp_path / "half.safetensors")
    with pytest.raises(CheckpointError, match="scale1.gamma"):
        convert(ckpt, tmp_path / "out.pth", to="torchvision")


def test_position_resampling(tmp_path: Path) -> None:
    """Native answers are equal, others are not: the report says so, and the family's own way is shown on loading."""
    ckpt = network()
    report = convert(ckpt, tmp_path / "hf", to="transformers", override=None)
    assert any(each.startswith("resample") for each in report.not_carried)
    back = load(tmp_path / "hf")
    assert back.model.config.positions.resample == Resample(antialias=False)
    assert why(back, "resample").value == "bicubic"
    pixels = torch.randn(2, 3, 32, 32)
    assert torch.equal(ckpt.model(pixels), back.model(pixels))
    small = torch.randn(2, 3, 16, 16)
    assert renames.gap(back.model(small), ckpt.model(small)) > 1e-3
    as_ours = load(tmp_path / "hf", override={"resample": {"antialias": True}})
    assert torch.equal(as_ours.model(small), ckpt.model(small))


def test_pooling(tmp_path: Path) -> None:
    """A pool that the target would not use is refused by name."""
    with pytest.raises(CheckpointError, match="pool: mean"):
        convert(network(pool="mean"), tmp_path / "out.pth", to="torchvision")
    pooled = network(pool="map", cls_token=False, positions=Positions(prefix=False))
    with pytest.raises(CheckpointError, match="cls|pool"):
        convert(pooled, tmp_path / "out.pth", to="torchvision")


def test_preprocessing(tmp_path: Path) -> None:
    """It goes with the folder; where a bare file cannot carry it, the report says so; what is assumed is called so."""
    model = network().model
    ckpt = Checkpoint(model, Preprocess(32, crop=1.0, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)))
    for family in ("timm", "transformers"):
        assert convert(ckpt, tmp_path / family, to=family).preprocess_carried
        assert load(tmp_path / family).preprocess == ckpt.preprocess
    assert not convert(ckpt, tmp_path / "bare.safetensors", to="timm").preprocess_carried
    assert why(load(tmp_path / "bare.safetensors"), "preprocess").why.startswith("assumed")


def test_the_real_network_answers_worse_with_wrong_statistics(fixtures: Path) -> None:
    """The statistics are part of the checkpoint because they matter: another mean, another answer."""
    from skimage import data

    path = fixtures / "vit_tiny_patch16_224_in1k.safetensors"
    right, wrong = load(path), load(path, override={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)})
    images = [data.chelsea(), data.coffee()]
    first = right.run(right.preprocess.batch(images))[0]
    second = wrong.run(wrong.preprocess.batch(images))[0]
    assert abs(first - second).max() > 0.5
    assert why(wrong, "preprocess").why == "given"
