"""timm's files: read with the same numbers, written so that timm loads them strictly; nothing guessed in silence."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitrail
from network import renames
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network import ResNetStem, ViT, ViTConfig
from vitrail.weights import FAMILIES, convert, load
from vitrail.weights.family import Description
from vitrail.weights.name_tables import to_theirs
from weights.parity import assert_equal, assert_same_bits
from weights.timm_files import THEIRS, saved

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no head": {"num_classes": 0},
    "DeiT-III": {"init_values": 1e-6, "no_embed_class": True},
    "mean pool, norm after": {"global_pool": "avg"},
    "no cls token": {"global_pool": "avg", "class_token": False, "fc_norm": False},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "query and key norms": {"qk_norm": True},
    "no qkv bias": {"qkv_bias": False},
    "SigLIP": {"global_pool": "map", "class_token": False, "num_classes": 0},
    "one channel": {"in_chans": 1},
    "uneven": {"img_size": (32, 48), "patch_size": (8, 12)},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_bare_file(timm_vit: Any, timm: ModuleType, tmp_path: Path, name: str) -> None:
    """Equal logits at three sizes; written back, the same bits, and timm loads what we wrote strictly.

    timm also makes the network from the folder alone: config.json says it all.
    """
    theirs = timm_vit(**VARIANTS[name])
    path = saved(theirs, tmp_path / "theirs.safetensors")
    override = {"image_size": (32, 48)} if name == "uneven" else {}
    ours = load(path, override=override)
    assert ours.provenance.family == "timm"
    sizes = ((32, 48), (48, 36), (16, 72)) if name == "uneven" else ((32, 32), (48, 48), (40, 24))
    channels = VARIANTS[name].get("in_chans", 3)
    assert_equal(ours.model, theirs, sizes, channels)
    out = tmp_path / "ours"
    report = convert(path, out, to="timm", override=override)
    assert report.preprocess_carried
    assert report.classes_carried
    assert_same_bits(load_file(out / "model.safetensors"), load_file(path))
    fresh = timm_vit(**VARIANTS[name])
    fresh.load_state_dict(load_file(out / "model.safetensors"), strict=True)
    assert_equal(ours.model, fresh, sizes, channels)
    made = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
    assert_equal(ours.model, made, sizes[:1], channels)


def test_distilled_deit(timm: ModuleType, tmp_path: Path) -> None:
    from timm.models.deit import VisionTransformerDistilled

    theirs = VisionTransformerDistilled(**THEIRS).eval()
    path = saved(theirs, tmp_path / "theirs.safetensors")
    ours = load(path)
    assert_equal(ours.model, theirs)
    convert(path, tmp_path / "out", to="timm")
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), load_file(path))
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert_equal(ours.model, model, ((32, 32),))


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_with_swiglu(timm_vit: Any, timm: ModuleType, tmp_path: Path, registers: int) -> None:
    from timm.layers import SwiGLUPacked

    changes = {"reg_tokens": registers, "no_embed_class": bool(registers), "num_classes": 0, "mlp_ratio": 4.0}
    theirs = timm_vit(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1.0, **changes)
    path = saved(theirs, tmp_path / "theirs.safetensors")
    ours = load(path)
    assert_equal(ours.model, theirs)
    convert(path, tmp_path / "out", to="timm")
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), load_file(path))
    assert_equal(ours.model, timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval(), ((32, 32),))


def test_registers_with_places_of_their_own(timm_vit: Any, tmp_path: Path) -> None:
    """timm can give registers positions; they are added to the registers, and the numbers are the same."""
    theirs = timm_vit(reg_tokens=4)
    ours = load(saved(theirs, tmp_path / "theirs.safetensors"))
    assert_equal(ours.model, theirs)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_a_clip_tower_must_be_told_its_activation(
    timm_vit: Any, timm: ModuleType, tmp_path: Path, activation: str
) -> None:
    """Cause one of "same weights, other result": no tensor says it, so it is asked for, and kept by config.json."""
    norm = partial(nn.LayerNorm, eps=1e-5)
    theirs = timm_vit(pre_norm=True, norm_layer=norm, act_layer=activation)
    path = saved(theirs, tmp_path / "theirs.safetensors")
    with pytest.raises(CheckpointError, match="quick_gelu"):
        load(path)
    ours = load(path, override={"activation": activation})
    assert ours.model.config.norm_eps == 1e-5
    assert_equal(ours.model, theirs)
    convert(path, tmp_path / "out", to="timm", override={"activation": activation})
    assert load(tmp_path / "out").model.config.activation == activation
    assert_equal(ours.model, timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval(), ((32, 32),))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_dinov3(timm: ModuleType, tmp_path: Path, gated: bool, bias: bool) -> None:
    name = f"vit_small{'_plus' * gated}_patch16_dinov3{'_qkvb' * bias}"
    changes = {"patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0, "img_size": 32}
    theirs = timm.create_model(name, dynamic_img_size=True, **changes).eval()
    path = saved(theirs, tmp_path / "theirs.safetensors")
    ours = load(path)
    assert_equal(ours.model, theirs)
    convert(path, tmp_path / "out", to="timm")
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), load_file(path))
    made = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, dynamic_img_size=True).eval()
    assert_equal(ours.model, made)


@pytest.mark.parametrize("name", ["vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224"])
def test_hybrids(timm: ModuleType, tmp_path: Path, name: str) -> None:
    """The stem as timm standardises it; filters of any size."""
    sizes = {"embed_dim": 64, "depth": 1, "num_heads": 1, "num_classes": 10, "img_size": 64, "dynamic_img_size": True}
    theirs = timm.create_model(name, **sizes).eval()
    path = saved(theirs, tmp_path / "theirs.safetensors")
    ours = load(path)
    assert_equal(ours.model, theirs, ((64, 64), (96, 96), (32, 96)))
    convert(path, tmp_path / "out", to="timm")
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), load_file(path))
    assert_equal(ours.model, timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval(), ((64, 64),))


def test_timms_own_folder(timm: ModuleType, tmp_path: Path) -> None:
    """What timm itself writes for its hub: heads, activation, preprocessing come from its config.json."""
    from timm.models import save_for_hf

    model = timm.create_model("vit_base_patch32_clip_quickgelu_224", depth=1, num_classes=7).eval()
    renames.randomise(model)
    save_for_hf(model, tmp_path / "hub", safe_serialization=True)
    ours = load(tmp_path / "hub")
    assert ours.model.config.activation == "quick_gelu"
    assert ours.preprocess.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert_equal(ours.model, model, ((224, 224),))


def test_the_tanh_form_where_timm_has_it(timm: ModuleType) -> None:
    """For every SigLIP tower of timm: our rule from the shape gives the activation that timm builds."""
    from vitrail.weights.families.timm import _tanh

    with torch.device("meta"):
        for name in timm.list_models("vit_*siglip*"):
            model = timm.create_model(name, depth=1)
            tanh = any(type(module).__name__ == "GELUTanh" for module in model.modules())
            patch, size = model.patch_embed.patch_size, tuple(model.patch_embed.img_size)
            assert _tanh({"width": model.embed_dim, "patch_size": patch, "image_size": size}) == tanh, name


@pytest.mark.parametrize(
    "name", ["vit_small_patch16_rope_224", "vit_small_patch16_rope_ape_224", "eva02_tiny_patch14_224"]
)
def test_networks_that_only_look_alike_are_refused(timm: ModuleType, tmp_path: Path, name: str) -> None:
    model = timm.create_model(name, depth=1)
    with pytest.raises(CheckpointError, match="timm's EVA"):
        load(saved(model, tmp_path / "theirs.safetensors"))


def test_heads_wider_than_their_share_are_read_from_the_queries(tmp_path: Path) -> None:
    """Two heads of 96 in a network 128 wide, which timm's own classes cannot be: the shapes say it all the same."""
    config = ViTConfig(
        image_size=32, patch_size=8, width=128, depth=2, heads=2, head_width=96, mlp_width=256, classes=10
    )
    model = ViT(config).eval()
    renames.randomise(model)
    outline = Description(config, Preprocess(32), layout="vit")
    tensors, without = to_theirs(FAMILIES["timm"].table(outline), model.state_dict(), config)
    assert without == []
    save_file(tensors, tmp_path / "wide.safetensors")
    ours = load(tmp_path / "wide.safetensors", override={"heads": 2})
    assert (ours.model.config.heads, ours.model.config.head_width) == (2, 96)
    assert_equal(ours.model, model)
    with pytest.raises(CheckpointError, match="heads that do not make up the width"):
        convert(ours, tmp_path / "out", to="timm")


def test_places_of_registers_without_a_cls_token(timm_vit: Any, tmp_path: Path) -> None:
    theirs = timm_vit(reg_tokens=2, class_token=False, global_pool="avg")
    assert_equal(load(saved(theirs, tmp_path / "theirs.safetensors")).model, theirs)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"head_bias": False}, "a head without a bias"),
        ({"patch_bias": False}, "this bias of the patches"),
        ({"embedding_norm": True}, "this bias of the patches"),
        ({"head_width": 32}, "heads that do not make up the width"),
        ({"distillation_token": True, "pool": "cls+distillation", "registers": 2}, "a distillation token beside"),
        ({"distillation_token": True, "pool": "cls+distillation", "final_norm": "pooled"}, "a distillation token"),
        ({"stem": ResNetStem((1, 1)), "patch_size": 1}, "a ResNet of"),
    ],
)
def test_what_timms_classes_could_not_be_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """Our own reader would take it back, timm's would not."""
    sizes = {"image_size": 32, "patch_size": 8, "width": 128, "depth": 1, "heads": 2, "mlp_width": 64, "classes": 3}
    ckpt = vitrail.Checkpoint(vitrail.ViT(vitrail.ViTConfig(**{**sizes, **changes})), vitrail.Preprocess(32))
    with pytest.raises(CheckpointError, match=reason):
        convert(ckpt, tmp_path / "out", to="timm")


def test_a_part_that_is_missing_or_too_much_is_listed(timm_vit: Any, tmp_path: Path) -> None:
    """Cause three: LayerScale half there. Both sides are listed, nothing is loaded."""
    path = saved(timm_vit(init_values=1e-5), tmp_path / "theirs.safetensors")
    tensors = load_file(path)
    del tensors["blocks.1.ls2.gamma"]
    save_file(tensors | {"odd": torch.ones(3)}, path)
    with pytest.raises(CheckpointError, match="ls2.gamma") as caught:
        load(path)
    assert "not used odd" in str(caught.value)
    with pytest.raises(CheckpointError, match="missing encoder.blocks.1.scale2.gamma"):
        load(path, leave_out=("odd",))


def test_the_real_network(fixtures: Path, tmp_path: Path) -> None:
    """No options: ImageNet's names and the documented probabilities; the same after transformers and back."""
    path = fixtures / "vit_tiny_patch16_224_in1k.safetensors"
    assert_the_documented_probabilities(vitrail.load(path))
    report = vitrail.convert(path, tmp_path / "hf", to="transformers")
    assert (report.identical, report.relative_difference, report.argmax_agreement) == (152, 0.0, 1.0)
    assert report.preprocess_carried
    assert report.classes_carried
    assert_the_documented_probabilities(vitrail.load(tmp_path / "hf"))
    vitrail.convert(tmp_path / "hf", tmp_path / "back.safetensors", to="timm")
    assert_same_bits(load_file(tmp_path / "back.safetensors"), load_file(path))


def assert_the_documented_probabilities(ckpt: vitrail.Checkpoint) -> None:
    from skimage import data

    cat, coffee = vitrail.predict(ckpt, [data.chelsea(), data.coffee()], top=2)
    assert (cat.labels[0], coffee.labels[0]) == ("Egyptian cat", "espresso")
    assert (ckpt.classes.index(cat.labels[1]), ckpt.classes.index(coffee.labels[1])) == (282, 968)
    assert cat.probabilities == pytest.approx((0.8128, 0.1073), abs=5e-5)
    assert coffee.probabilities == pytest.approx((0.9380, 0.0406), abs=5e-5)
