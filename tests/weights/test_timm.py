"""timm's files: read with the same numbers, written so that timm loads them strictly; nothing guessed in silence."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def vit(timm: ModuleType) -> Any:
    """timm's VisionTransformer, small."""
    from timm.models.vision_transformer import VisionTransformer

    return lambda **changes: VisionTransformer(**{**THEIRS, **changes}).eval()


def saved(model: nn.Module, path: Path) -> Path:
    """Their random weights in a bare file, as timm's train script or torch users write it."""
    renames.randomise(model)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
    return path


@pytest.mark.parametrize("name", VARIANTS)
def test_a_bare_file(vit: Any, timm: ModuleType, tmp_path: Path, name: str) -> None:
    """Equal logits at three sizes; written back, the same bits, and timm loads what we wrote strictly.

    timm also makes the network from the folder alone: config.json says it all.
    """
    theirs = vit(**VARIANTS[name])
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
    fresh = vit(**VARIANTS[name])
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
def test_dinov2_with_swiglu(vit: Any, timm: ModuleType, tmp_path: Path, registers: int) -> None:
    from timm.layers import SwiGLUPacked

    changes = {"reg_tokens": registers, "no_embed_class": bool(registers), "num_classes": 0, "mlp_ratio": 4.0}
    theirs = vit(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1.0, **changes)
    path = saved(theirs, tmp_path / "theirs.safetensors")
    ours = load(path)
    assert_equal(ours.model, theirs)
    convert(path, tmp_path / "out", to="timm")
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), load_file(path))
    assert_equal(ours.model, timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval(), ((32, 32),))


def test_registers_with_places_of_their_own(vit: Any, tmp_path: Path) -> None:
    """timm can give registers positions; they are added to the registers, and the numbers are the same."""
    theirs = vit(reg_tokens=4)
    ours = load(saved(theirs, tmp_path / "theirs.safetensors"))
    assert_equal(ours.model, theirs)


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_a_clip_tower_must_be_told_its_activation(vit: Any, timm: ModuleType, tmp_path: Path, activation: str) -> None:
    """Cause one of "same weights, other result": no tensor says it, so it is asked for, and kept by config.json."""
    norm = partial(nn.LayerNorm, eps=1e-5)
    theirs = vit(pre_norm=True, norm_layer=norm, act_layer=activation)
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


def folder(model: nn.Module, path: Path, **said: Any) -> Path:
    """A folder as timm's hub has them: weights, and a config.json that says so much."""
    path.mkdir()
    saved(model, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_224", **said}))
    return path


SIZES = {"embed_dim": 128, "num_heads": 2}


@pytest.mark.parametrize(
    "said, reason",
    [
        ({"model_args": {**SIZES, "pool_include_prefix": True}}, "not known here: pool_include_prefix=True"),
        ({"model_args": {**SIZES, "norm_layer": "rmsnorm"}}, "not known here: norm_layer='rmsnorm'"),
        ({"model_args": {**SIZES, "act_layer": "mish"}}, "act_layer 'mish' is none of"),
        ({"model_args": {**SIZES, "act_layer": ["gelu"]}}, "is none of"),
        ({"model_args": {**SIZES, "global_pool": "max"}}, "global_pool 'max' is none of"),
        ({"model_args": {**SIZES, "pos_embed": "rope"}}, "not known here: pos_embed='rope'"),
        ({"model_args": {"embed_dim": 128}}, "does not say num_heads"),
        ({"model_args": SIZES, "global_pool": "avg"}, "config.json says global_pool 'avg', and timm would load"),
        ({"model_args": SIZES, "architecture": "vit_base_patch16_rpn_224"}, "norms behind the branches"),
        ({"model_args": SIZES, "label_names": ["a", "b"]}, "expected names for 10 outputs"),
    ],
)
def test_a_config_that_says_more_than_is_known_here_is_refused(
    vit: Any, tmp_path: Path, said: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        load(folder(vit(), tmp_path / "folder", **said))


def test_what_config_json_says_of_heads_activation_pool_and_size(vit: Any, tmp_path: Path) -> None:
    theirs = vit(num_heads=4, act_layer="relu", global_pool="avg", fc_norm=False, img_size=(16, 64))
    said = {"num_heads": 4, "act_layer": "relu", "global_pool": "avg", "img_size": [16, 64], "drop_rate": 0.1}
    ours = load(folder(theirs, tmp_path / "folder", model_args={"embed_dim": 128, **said}))
    assert_equal(ours.model, theirs, ((16, 64), (32, 32)))


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


def test_a_grey_network_whose_folder_speaks_of_colours(vit: Any, tmp_path: Path) -> None:
    """timm keeps three means beside one channel: they are averaged, which is said, unless others are given."""
    said = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2], "input_size": [3, 32, 32], "crop_pct": 1.0}
    path = folder(vit(in_chans=1), tmp_path / "folder", model_args=SIZES, pretrained_cfg=said)
    ours = load(path)
    assert ours.preprocess.channels == 1
    assert ours.preprocess.mean + ours.preprocess.std == pytest.approx((0.5, 0.2))
    why = next(each.why for each in ours.provenance.settings if each.name == "preprocess")
    assert why == "assumed: the folder's config.json; mean and std averaged over its colours"
    assert load(path, override={"mean": 0.1307}).preprocess.mean == (0.1307,)


def test_places_of_registers_without_a_cls_token(vit: Any, tmp_path: Path) -> None:
    theirs = vit(reg_tokens=2, class_token=False, global_pool="avg")
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


def test_a_part_that_is_missing_or_too_much_is_listed(vit: Any, tmp_path: Path) -> None:
    """Cause three: LayerScale half there. Both sides are listed, nothing is loaded."""
    path = saved(vit(init_values=1e-5), tmp_path / "theirs.safetensors")
    tensors = load_file(path)
    del tensors["blocks.1.ls2.gamma"]
    save_file(tensors | {"odd": torch.ones(3)}, path)
    with pytest.raises(CheckpointError, match="ls2.gamma") as caught:
        load(path)
    assert "not used odd" in str(caught.value)
    with pytest.raises(CheckpointError, match="missing encoder.blocks.1.scale2.gamma"):
        load(path, leave_out=("odd",))


@pytest.mark.parametrize("pool", ["map", "avg"])
def test_naflex(timm: ModuleType, tmp_path: Path, pool: str) -> None:
    """Linear patch weights in the order of pixels, the table as a grid that need not be square."""
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    sizes = {name: THEIRS[name] for name in ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio")}
    norms = {"final_norm": pool == "map", "fc_norm": pool == "avg"}
    cfg = NaFlexVitCfg(**sizes, **norms, reg_tokens=2, global_pool=pool, pos_embed_grid_size=(4, 3), init_values=1e-5)
    theirs = NaFlexVit(cfg, num_classes=10, img_size=(32, 24)).eval()
    path = saved(theirs, tmp_path / "theirs.safetensors")
    ours = load(path)
    assert ours.provenance.family == "timm-naflex"
    assert_equal(ours.model, theirs, ((32, 24), (48, 48), (40, 24)))
    convert(path, tmp_path / "out", to="timm-naflex")
    assert_same_bits(load_file(tmp_path / "out" / "model.safetensors"), load_file(path))
    made = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert_equal(ours.model, made, ((32, 24), (48, 48)))


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
