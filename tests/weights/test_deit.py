"""DeiT and DeiT-III from their own files: the same numbers at any size, written back bit for bit."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network import preset
from vitrail.network.config import Resample
from vitrail.network.vit import ViT
from vitrail.weights import convert, load
from weights.originals import Deit
from weights.parity import SIZES, assert_equal
from weights.under_model import assert_there_and_back, random, saved

DEITS: dict[str, dict[str, Any]] = {
    "DeiT": {},
    "distilled": {"distilled": True},
    "DeiT-III": {"third": True},
}


@pytest.mark.parametrize("variant", DEITS)
def test_deit(tmp_path: Path, variant: str) -> None:
    config = assert_there_and_back(random(Deit, **DEITS[variant]), "deit", tmp_path).model.config
    assert config.pool == ("cls+distillation" if variant == "distilled" else "cls")
    assert config.slots == {"DeiT": 1, "distilled": 2, "DeiT-III": 0}[variant]
    assert (config.layer_scale is not None) == (variant == "DeiT-III")


@pytest.mark.parametrize("variant", DEITS)
def test_deit_as_timm_reads_it(timm: ModuleType, tmp_path: Path, variant: str) -> None:
    """timm's own networks with the same file: equal at the native size; on others timm resamples with antialias."""
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

    theirs = random(Deit, **DEITS[variant])
    path = saved(theirs, tmp_path / "theirs.pth")
    kind = VisionTransformerDistilled if variant == "distilled" else VisionTransformer
    third = {"init_values": 1e-6, "no_embed_class": True} if variant == "DeiT-III" else {}
    witness = kind(
        img_size=32, patch_size=8, embed_dim=128, depth=2, num_heads=2, mlp_ratio=2, num_classes=10, **third
    ).eval()
    content = torch.load(path, weights_only=True)
    witness.load_state_dict(checkpoint_filter_fn(content, witness, adapt_layer_scale=True), strict=True)
    assert_equal(load(path).model, witness, SIZES[:1])


@pytest.mark.parametrize("variant, crop", [("DeiT", 0.875), ("distilled", 0.875), ("DeiT-III", 1.0)])
def test_deit_three_is_prepared_in_its_own_way(tmp_path: Path, variant: str, crop: float) -> None:
    """DeiT cuts 224 of 256; DeiT-III was scored on the whole short side."""
    ours = load(saved(random(Deit, **DEITS[variant]), tmp_path / "theirs.pth"))
    assert (ours.preprocess.crop, ours.preprocess.interpolation) == (crop, "bicubic")


def test_the_wrong_resampling_is_visible(tmp_path: Path) -> None:
    theirs = random(Deit)
    wrong = load(saved(theirs, tmp_path / "theirs.pth"), override={"resample": Resample()}).model
    pixels = torch.randn(2, 3, 24, 16)  # fewer patches: there the antialias has something to do
    with torch.no_grad():
        assert renames.gap(wrong(pixels), theirs(pixels)) > 1e-3
    assert_equal(load(tmp_path / "theirs.pth").model, theirs, ((24, 16),))


def test_what_lies_beside_the_weights_is_named(tmp_path: Path) -> None:
    path = saved(random(Deit), tmp_path / "theirs.pth", optimizer={"lr": 1e-3}, epoch=299)
    settings = {each.name: each for each in load(path).provenance.settings}
    assert settings["take"].value == "model"
    assert "optimizer, epoch" in settings["take"].why
    assert settings["norm_eps"].why == "as DeiT's own code"


def test_without_the_wrapper_it_is_timms(tmp_path: Path) -> None:
    """DeiT and timm write the same names: only what they stand under tells them apart; a bare gamma_1 must be told."""
    torch.save(random(Deit).state_dict(), tmp_path / "bare.pth")
    assert load(tmp_path / "bare.pth").provenance.family == "timm"
    theirs = random(Deit, third=True)
    torch.save(theirs.state_dict(), tmp_path / "third.pth")
    with pytest.raises(CheckpointError, match="rope networks.*override={'family': 'deit'}"):
        load(tmp_path / "third.pth")
    assert_equal(load(tmp_path / "third.pth", override={"family": "deit"}).model, theirs)


@pytest.mark.parametrize("name", ["blocks.1.gamma_2", "blocks.0.gamma_1", "head.bias", "cls_token", "pos_embed"])
@pytest.mark.fault("W9")
def test_a_missing_tensor_is_an_error(tmp_path: Path, name: str) -> None:
    state = random(Deit, third=True).state_dict()
    del state[name]
    with pytest.raises(CheckpointError, match=f"theirs: {name}|not used blocks.0.gamma_2|expected a tensor {name}"):
        load(saved(state, tmp_path / "theirs.pth"))


def test_deit_cannot_carry_a_gated_mlp_nor_another_eps(tmp_path: Path) -> None:
    base = {"image_size": 32, "patch_size": 8, "width": 128, "heads": 2, "depth": 2, "mlp_width": 256, "classes": 10}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mlp": "swiglu", "activation": "silu"}, r"mlp.up.weight: expected \[256, 128\]"),
        ({"norm_eps": 1e-12}, "norm_eps: 1e-12"),
        ({"registers": 2}, "no place for tokens.registers"),
        ({"qk_norm": True}, "no place for encoder.blocks.0.attention.query_norm"),
    ]
    for changes, reason in cases:
        checkpoint = Checkpoint(ViT(preset("deit-s16", **base, **changes)).eval(), Preprocess(size=32))
        with pytest.raises(CheckpointError, match=reason):
            convert(checkpoint, tmp_path / "ours.pth", to="deit")
        assert not (tmp_path / "ours.pth").exists()
