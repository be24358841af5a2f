"""DINOv3 from its own files: rotary positions, registers, masked biases."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from network import renames
from vitrail.errors import CheckpointError
from vitrail.network.config import Rotary
from vitrail.weights import convert, load
from weights import originals
from weights.dino_files import KEY, assert_there_and_back, random, saved, tokens_of
from weights.originals import DinoV2, DinoV3
from weights.parity import assert_equal, assert_same_bits

V3: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated": {"gated": True},
    "no bias": {"bias": False},
    "as the 7B": {"gated": True, "bias": False, "local": True},
    "two registers": {"registers": 2},
}


@pytest.mark.row("4.ROPE", "4.REG")
@pytest.mark.parametrize("variant", V3)
def test_dinov3(tmp_path: Path, variant: str) -> None:
    theirs = random(DinoV3, **V3[variant])
    ours = assert_there_and_back(theirs, "dinov3", tmp_path)
    config = ours.model.config
    assert config.qkv_bias == ("none" if "bias" in V3[variant] else "no-key")
    assert (config.norm_eps, config.rotary, config.positions.kind) == (1e-5, Rotary("dinov3", 100.0), "none")
    kept = {"mask_token"} | ({"local_cls_norm.weight", "local_cls_norm.bias"} if "local" in V3[variant] else set())
    assert set(ours.extras) == kept
    assert ours.preprocess.resize == "squash"
    assert ours.preprocess.interpolation == "bilinear"


@pytest.mark.parametrize("variant", ["plain", "gated", "as the 7B"])
def test_dinov3_as_timm_reads_it(timm: ModuleType, tmp_path: Path, variant: str) -> None:
    """timm's own conversion of the same file gives the same tokens at every size."""
    from timm.models.eva import Eva, checkpoint_filter_fn

    theirs = random(DinoV3, **V3[variant])
    gated = "gated" in V3[variant]
    witness = Eva(
        img_size=32,
        patch_size=8,
        embed_dim=128,
        depth=2,
        num_heads=2,
        mlp_ratio=2,
        num_classes=0,
        init_values=1e-5,
        qkv_bias=V3[variant].get("bias", True),
        swiglu_mlp=gated,
        swiglu_align_to=8 * gated,
        use_abs_pos_emb=False,
        use_rot_pos_emb=True,
        rope_type="dinov3",
        rope_temperature=100.0,
        rope_rotate_half=True,
        num_reg_tokens=4,
        use_fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
        dynamic_img_size=True,
    ).eval()
    witness.load_state_dict(checkpoint_filter_fn(dict(theirs.state_dict()), witness), strict=True)
    ours = load(saved(theirs, tmp_path / "theirs.pth")).model
    assert_equal(tokens_of(ours), witness.forward_features)


def test_dinov3_as_transformers_computes_it(transformers: ModuleType, tmp_path: Path) -> None:
    theirs = random(DinoV3)
    ours = load(saved(theirs, tmp_path / "theirs.pth")).model
    config = transformers.DINOv3ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_register_tokens=4,
    )
    witness = transformers.DINOv3ViTModel(config).eval()
    named = {name: value for name, value in witness.state_dict().items() if name != "embeddings.mask_token"}
    witness.load_state_dict(renames.to_theirs(renames.HF, ours, named), strict=False)
    assert_equal(tokens_of(ours), lambda pixels: witness(pixels).last_hidden_state)


@pytest.mark.parametrize("junk", [7.0, float("nan")])
def test_what_the_mask_silences_does_not_matter(tmp_path: Path, junk: float) -> None:
    """The key third of the bias may hold anything: it is dropped, the report says so, and zeros are written."""
    theirs = random(DinoV3)
    state = {name: value.clone() for name, value in theirs.state_dict().items()}
    for block in range(2):
        state[f"blocks.{block}.attn.qkv.bias"][KEY] = junk
    path = saved(state, tmp_path / "theirs.pth")
    ours = load(path)
    assert_equal(ours.model, theirs)
    row = next(row for row in ours.provenance.mapping if row.ours.endswith("blocks.1.attention.query_bias"))
    assert row.theirs == ("blocks.1.attn.qkv.bias",)
    assert "keys is masked out" in row.how
    convert(path, tmp_path / "ours.pth", to="dinov3")
    assert_same_bits(torch.load(tmp_path / "ours.pth", weights_only=True), theirs.state_dict())


def test_the_mask_and_the_bias_of_keys_matter(tmp_path: Path) -> None:
    """With rotary positions a bias on the keys changes the answers: a reader who kept it would be seen."""
    theirs = random(DinoV3)
    pixels = torch.randn(1, 3, 32, 32)
    before = theirs(pixels)
    for block in theirs.blocks:
        block.attn.qkv.bias.data[KEY] = 0.7
        block.attn.qkv.bias_mask.fill_(1)
    assert renames.gap(theirs(pixels), before) > 1e-3
    path = saved(theirs, tmp_path / "theirs.pth")
    with pytest.raises(CheckpointError, match="bias_mask is not what this network computes with"):
        load(path)


@pytest.mark.parametrize("value", [float("nan"), 0.5])
def test_a_mask_of_another_kind_is_refused(tmp_path: Path, value: float) -> None:
    """NaN is what the mask holds before training sets it: such a network answers NaN."""
    theirs = random(DinoV3)
    theirs.blocks[1].attn.qkv.bias_mask.fill_(value)
    with pytest.raises(CheckpointError, match=r"blocks\.1\.attn\.qkv\.bias_mask"):
        load(saved(theirs, tmp_path / "theirs.pth"))


def test_periods_are_computed_anew(tmp_path: Path) -> None:
    """In bfloat16 they are near enough to be known, and are not used; those of another theta are refused."""
    theirs = random(DinoV3)
    state = dict(theirs.state_dict())
    rounded = (2 * torch.arange(16, dtype=torch.bfloat16) / 32).to(torch.bfloat16)
    state["rope_embed.periods"] = 100.0**rounded
    assert state["rope_embed.periods"].dtype == torch.bfloat16
    assert (state["rope_embed.periods"].float() - theirs.rope_embed.periods).abs().max() > 0.01
    assert_equal(load(saved(state, tmp_path / "rounded.pth")).model, theirs)
    theirs.rope_embed = originals.Periods(64, base=90.0)
    path = saved(theirs, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match="rope_embed.periods is not what this network computes with"):
        load(path)
    assert_equal(load(path, override={"rotary": Rotary("dinov3", 90.0)}).model, theirs)


def test_a_norm_of_its_own_for_cls_is_refused_by_name(tmp_path: Path) -> None:
    state = random(DinoV3).state_dict() | {"cls_norm.weight": torch.ones(128), "cls_norm.bias": torch.zeros(128)}
    with pytest.raises(CheckpointError, match="cls_norm"):
        load(saved(state, tmp_path / "theirs.pth"))


def test_dinov3_cannot_carry_a_table(tmp_path: Path) -> None:
    path = saved(random(DinoV2), tmp_path / "theirs.pth")
    with pytest.raises(CheckpointError, match=r"dinov3 has no place for tokens\.tables\.0\.table"):
        convert(path, tmp_path / "ours.pth", to="dinov3")
    assert not (tmp_path / "ours.pth").exists()
