"""torchvision's files: read with the same numbers, written so that its class loads them strictly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import oracles
from network import renames
from vitrail.checkpoint.safetensors_io import StoredTensor
from vitrail.errors import CheckpointError
from vitrail.network import Resample
from vitrail.weights import convert, load
from vitrail.weights.families.torchvision import describe
from vitrail.weights.reading.contents import WeightContents
from weights.parity import assert_equal, assert_same_bits

THEIRS: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 128,
    "mlp_dim": 192,
    "num_classes": 10,
    "norm_layer": partial(nn.LayerNorm, eps=1e-6),
}


@pytest.fixture(scope="module")
def torchvision() -> ModuleType:
    return oracles.torchvision()


def vit(**changes: Any) -> nn.Module:
    """torchvision's VisionTransformer, small, with random weights that hide nothing."""
    from torchvision.models.vision_transformer import VisionTransformer

    model = VisionTransformer(**{**THEIRS, **changes}).eval()
    renames.randomise(model)
    return model


def saved(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


@pytest.mark.row("P.10")
@pytest.mark.parametrize("changes", [{}, {"representation_size": 48}, {"num_classes": 1000}], ids=str)
def test_there_and_back(torchvision: ModuleType, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Equal logits, larger images too; written back, the same bits, which torchvision loads strictly.

    Its network takes no other size than its own, and its function that resamples positions knows squares alone, so
    that no other shape can be compared.
    """
    from torchvision.models.vision_transformer import interpolate_embeddings

    theirs = vit(**changes)
    path = saved(theirs, tmp_path / "theirs.pth")
    ours = load(path)
    assert ours.provenance.family == "torchvision"
    assert_equal(ours.model, theirs, ((32, 32),))
    for size in (48, 24):
        other = vit(**changes, image_size=size)
        other.load_state_dict(interpolate_embeddings(size, 8, theirs.state_dict()))
        assert_equal(ours.model, other, ((size, size),))
    out = tmp_path / "ours.pth"
    report = convert(path, out, to="torchvision")
    assert report.tensors == report.identical == len(theirs.state_dict())
    written = torch.load(out, weights_only=True)
    assert_same_bits(written, theirs.state_dict())
    fresh = vit(**changes)
    fresh.load_state_dict(written, strict=True)
    assert_equal(ours.model, fresh, ((32, 32),))


def test_what_the_file_leaves_unsaid(torchvision: ModuleType, tmp_path: Path) -> None:
    """Settings and preprocessing as in torchvision's code; ImageNet's names for its 1000 outputs."""
    ours = load(saved(vit(num_classes=1000), tmp_path / "theirs.pth"))
    config = ours.model.config
    assert (config.norm_eps, config.activation, config.pool, config.heads) == (1e-6, "gelu", "cls", 2)
    assert config.positions.resample == Resample("bicubic", antialias=False, align_corners=True)
    assert ours.classes[281] == "tabby"
    assert load(saved(vit(), tmp_path / "ten.pth")).classes == tuple("0123456789")
    said = {setting.name: setting.why for setting in ours.provenance.settings}
    assert "heads of 64" in said["heads"]
    assert said["norm_eps"] == "torchvision's own"


def test_the_preprocessing_of_its_published_weights(torchvision: ModuleType) -> None:
    """Every ViT that torchvision publishes: heads, size, crop, filter and statistics are those of its code.

    Two sets of weights at 224 are scored without a crop, and no tensor tells them from others: the reason says so.
    """
    from torchvision.models import get_model_weights, list_models
    from torchvision.models import vision_transformer as module

    compared: list[str] = []
    for name in list_models(include="vit_*"):
        for entry in get_model_weights(name):
            transforms, size = entry.transforms(), entry.meta["min_size"]
            with torch.device("meta"):
                model = getattr(module, name)(image_size=size[0])
            tensors = {key: StoredTensor(tuple(v.shape), v.dtype, v.clone) for key, v in model.state_dict().items()}
            made = describe(WeightContents(name, "pickle", tensors), {})
            assert made.config.heads == model.encoder.layers[0].num_heads
            assert made.config.image_size == size
            if (name, entry.name) in [(f"vit_{each}_16", "IMAGENET1K_SWAG_LINEAR_V1") for each in "bl"]:
                assert "SWAG linear weights at 224" in made.reasons["preprocess"]
                continue
            pixels = made.preprocess
            assert pixels.size == size == (transforms.crop_size[0],) * 2
            assert int(size[0] / pixels.crop) == transforms.resize_size[0]
            assert pixels.interpolation == transforms.interpolation.value
            assert (list(pixels.mean), list(pixels.std)) == (transforms.mean, transforms.std)
            assert pixels.antialias == transforms.antialias
            compared.append(f"{name} {entry.name}")
    assert len(compared) == 8


def test_names_of_2021(torchvision: ModuleType, tmp_path: Path) -> None:
    """mlp.linear_1 and linear_2 are read, as torchvision reads them, and written as it writes them today."""
    theirs = vit()
    old = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): value
        for name, value in theirs.state_dict().items()
    }
    torch.save(old, tmp_path / "old.pth")
    assert_equal(load(tmp_path / "old.pth").model, theirs, ((32, 32),))
    convert(tmp_path / "old.pth", tmp_path / "new.pth", to="torchvision")
    assert_same_bits(torch.load(tmp_path / "new.pth", weights_only=True), theirs.state_dict())


def test_heads_must_be_known(torchvision: ModuleType, tmp_path: Path) -> None:
    """Heads of 64 are assumed; others are given, and a file that cannot say them is not written."""
    theirs = vit(num_heads=4)
    path = saved(theirs, tmp_path / "theirs.pth")
    assert_equal(load(path, override={"heads": 4}).model, theirs, ((32, 32),))
    with pytest.raises(CheckpointError, match="heads: 4, and it would come back as 2"):
        convert(path, tmp_path / "ours.pth", to="torchvision", override={"heads": 4})
    assert not (tmp_path / "ours.pth").exists()
    odd = saved(vit(hidden_dim=96, num_heads=3), tmp_path / "odd.pth")
    with pytest.raises(CheckpointError, match="override={'heads': N}"):
        load(odd)


def test_without_its_head(torchvision: ModuleType, tmp_path: Path) -> None:
    theirs = vit(representation_size=48)
    ours = load(saved(theirs, tmp_path / "theirs.pth"), leave_out=("head",))
    theirs.heads = nn.Identity()
    assert_equal(ours.model, theirs, ((32, 32),))


@pytest.mark.fault("W9")
def test_what_does_not_fit_is_refused(torchvision: ModuleType, tmp_path: Path) -> None:
    state = vit().state_dict()
    torch.save({name: value for name, value in state.items() if "layer_1.ln_2" not in name}, tmp_path / "less.pth")
    with pytest.raises(CheckpointError, match=r"missing encoder.blocks.1.norm2.weight .*encoder_layer_1.ln_2.weight"):
        load(tmp_path / "less.pth")
    torch.save(state | {"encoder.extra": torch.ones(3)}, tmp_path / "more.pth")
    with pytest.raises(CheckpointError, match=r"not used encoder.extra \[3\]"):
        load(tmp_path / "more.pth")
    from torchvision.models.vision_transformer import ConvStemConfig

    stem = [ConvStemConfig(16, 3, 2), ConvStemConfig(16, 3, 2), ConvStemConfig(16, 3, 2)]
    with pytest.raises(CheckpointError, match="convolutions before the patches"):
        load(saved(vit(conv_stem_configs=stem), tmp_path / "stem.pth"))


def test_what_torchvision_cannot_be_is_not_written(timm: ModuleType, tmp_path: Path) -> None:
    """Grey images, oblong images, networks without a cls token: refused by name, nothing left behind."""
    from timm.models.vision_transformer import VisionTransformer

    small = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 1, "num_heads": 2, "num_classes": 5}
    cases: dict[str, dict[str, Any]] = {
        "1 channels": {"in_chans": 1},
        "image_size \\(32, 64\\)": {"img_size": (32, 64)},
        "patch_size \\(8, 4\\)": {"patch_size": (8, 4), "img_size": 32},
        "without a cls token": {"class_token": False, "global_pool": "avg", "fc_norm": False},
        "no place for encoder.blocks.0.scale1.gamma": {"init_values": 1e-5},
    }
    for number, (match, changes) in enumerate(cases.items()):
        path = tmp_path / f"{number}.pth"
        torch.save(VisionTransformer(**{**small, **changes}).state_dict(), path)
        override = {"image_size": changes["img_size"]} if "img_size" in changes else {}
        with pytest.raises(CheckpointError, match=match):
            convert(path, tmp_path / "out.pth", to="torchvision", override=override)
        assert not (tmp_path / "out.pth").exists()
    torch.save(VisionTransformer(**small).state_dict(), path)
    report = convert(path, tmp_path / "out.pth", to="torchvision")
    assert report.largest_difference == 0
    assert any("align_corners" in each for each in report.not_carried)  # other sizes are resampled otherwise
    model = vit(num_classes=5, num_layers=1, mlp_dim=512)
    model.load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True), strict=True)
    assert_equal(load(path).model, model, ((32, 32),))
