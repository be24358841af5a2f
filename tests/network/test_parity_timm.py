"""The same numbers as timm, with the same random weights, at sizes native and not."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from network import renames
from vitrail.network import Positions, ResNetStem, Rotary, ViT, ViTConfig

SIZES = ((32, 32), (48, 48), (40, 24))  # native, larger, and not square
CLOSE = 1e-5  # of the largest absolute value, in fp32
BARE = Positions(prefix=False)  # no slots for prefix tokens

SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": 64,
    "depth": 2,
    "heads": 4,
    "mlp_width": 128,
}
THEIRS: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "num_classes": 10,
    "dynamic_img_size": True,
}


def small(**changes: Any) -> ViT:
    return ViT(ViTConfig(**{**SMALL, "classes": 10, **changes})).eval()


def assert_equal(ours: ViT, theirs: nn.Module, sizes: tuple[tuple[int, int], ...] = SIZES) -> None:
    """Equal logits at every size; batches of two different images, so that nothing mixes them."""
    for size in sizes:
        pixels = torch.randn(2, 3, *size)
        with torch.no_grad():
            difference = renames.gap(ours(pixels), theirs(pixels))
        assert difference < CLOSE, f"at {size}: {difference:.2e} of the largest logit"


def assert_equal_both_ways(ours: ViT, theirs: nn.Module, table: renames.Table = renames.TIMM) -> None:
    """Their random weights in our network, then our random weights in theirs."""
    renames.randomise(theirs)
    renames.to_ours(table, ours, theirs.state_dict())
    assert_equal(ours, theirs)
    renames.randomise(ours)
    theirs.load_state_dict(renames.to_theirs(table, ours, theirs.state_dict()))
    assert_equal(ours, theirs)


@pytest.fixture(scope="module")
def vit(timm: ModuleType) -> Any:
    """timm's VisionTransformer, small."""
    from timm.models.vision_transformer import VisionTransformer

    return lambda **changes: VisionTransformer(**{**THEIRS, **changes}).eval()


@pytest.mark.row("P.10", "003.11")
def test_plain_vit(vit: Any) -> None:
    """The default of both: cls token, slot for it in the positions, bicubic resampling with antialias."""
    assert_equal_both_ways(small(), vit())


def test_every_parameter_takes_part(vit: Any) -> None:
    """The comparison can fail: a change of any one tensor of ours shows in the logits.

    But for the bias of the key norms: it adds the same to a query's every score, which the softmax takes out.
    """
    ours = small(layer_scale=1.0, qk_norm=True, registers=2, positions=BARE)
    theirs = vit(init_values=1.0, qk_norm=True, reg_tokens=2, no_embed_class=True)
    renames.randomise(theirs)
    renames.to_ours(renames.TIMM, ours, theirs.state_dict())
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs(pixels)
        for name, parameter in ours.named_parameters():
            kept = parameter.clone()
            parameter.add_(0.05 * torch.randn_like(parameter))
            shows = renames.gap(ours(pixels), expected) > 100 * CLOSE
            assert shows != name.endswith("key_norm.bias"), name
            parameter.copy_(kept)
        assert renames.gap(ours(pixels), expected) < CLOSE


def test_mean_pool_with_the_norm_after_it(vit: Any) -> None:
    assert_equal_both_ways(small(pool="mean", final_norm="pooled"), vit(global_pool="avg"))


def test_mean_pool_with_the_norm_before_it(vit: Any) -> None:
    assert_equal_both_ways(small(pool="mean"), vit(global_pool="avg", fc_norm=False))


def test_mean_pool_without_a_cls_token(vit: Any) -> None:
    ours = small(pool="mean", final_norm="pooled", cls_token=False, positions=BARE)
    assert_equal_both_ways(ours, vit(global_pool="avg", class_token=False))


def test_no_slot_for_the_cls_token(vit: Any) -> None:
    assert_equal_both_ways(small(positions=BARE), vit(no_embed_class=True))


@pytest.mark.row("4.REG", "004.14")
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_registers(vit: Any, pool: str) -> None:
    """Between cls and patches, without positions, left out of the mean."""
    ours = small(registers=4, positions=BARE, pool=pool)
    theirs = vit(reg_tokens=4, no_embed_class=True, global_pool="token" if pool == "cls" else "avg", fc_norm=False)
    assert_equal_both_ways(ours, theirs)


@pytest.mark.row("4.REG")
def test_positions_of_registers_fold_into_the_registers(vit: Any) -> None:
    """timm can give registers positions of their own; added to the registers they say the same, at every size."""
    ours, theirs = small(registers=4), vit(reg_tokens=4)
    renames.randomise(theirs)
    state = theirs.state_dict()
    positions = state["pos_embed"]  # cls, registers, patches
    state["reg_token"] = state["reg_token"] + positions[:, 1:5]
    state["pos_embed"] = torch.cat((positions[:, :1], positions[:, 5:]), dim=1)
    renames.to_ours(renames.TIMM, ours, state)
    assert_equal(ours, theirs)


def test_distilled_deit(timm: ModuleType) -> None:
    """Two tokens, two heads, their mean."""
    from timm.models.deit import VisionTransformerDistilled

    theirs = VisionTransformerDistilled(**THEIRS).eval()
    assert_equal_both_ways(small(distillation_token=True, pool="cls+distillation"), theirs)


def test_deit3(vit: Any) -> None:
    assert_equal_both_ways(small(layer_scale=1e-6, positions=BARE), vit(init_values=1e-6, no_embed_class=True))


def test_query_and_key_norms(vit: Any) -> None:
    assert_equal_both_ways(small(qk_norm=True), vit(qk_norm=True))


def test_no_qkv_bias(vit: Any) -> None:
    assert_equal_both_ways(small(qkv_bias="none"), vit(qkv_bias=False))


def test_no_final_norm(vit: Any) -> None:
    assert_equal_both_ways(small(final_norm="none"), vit(final_norm=False))


def test_no_positions(vit: Any) -> None:
    assert_equal_both_ways(small(positions=Positions("none")), vit(pos_embed="none"))


def test_uneven_patches_and_image(vit: Any) -> None:
    ours = small(image_size=(32, 48), patch_size=(8, 12))
    theirs = vit(img_size=(32, 48), patch_size=(8, 12))
    renames.randomise(theirs)
    renames.to_ours(renames.TIMM, ours, theirs.state_dict())
    assert_equal(ours, theirs, ((32, 48), (48, 36), (16, 72)))


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_with_swiglu(vit: Any, registers: int) -> None:
    """One packed layer, gate first; LayerScale; no head, so that the cls token comes out."""
    from timm.layers import SwiGLUPacked

    positions = BARE if registers else Positions()
    changes = {
        "mlp": "swiglu",
        "activation": "silu",
        "layer_scale": 1.0,
        "registers": registers,
        "classes": 0,
    }
    theirs = vit(
        mlp_layer=SwiGLUPacked,
        act_layer=nn.SiLU,
        mlp_ratio=4.0,  # of both halves together
        init_values=1.0,
        reg_tokens=registers,
        no_embed_class=bool(registers),
        num_classes=0,
    )
    assert_equal_both_ways(small(positions=positions, **changes), theirs)


def test_clip(vit: Any) -> None:
    """A norm before the encoder, quick GELU, no bias on the patches, eps 1e-5."""
    ours = small(embedding_norm=True, activation="quick_gelu", patch_bias=False, norm_eps=1e-5)
    theirs = vit(pre_norm=True, act_layer="quick_gelu", norm_layer=partial(nn.LayerNorm, eps=1e-5))
    assert_equal_both_ways(ours, theirs)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("classes", [0, 10])
def test_siglip(vit: Any, activation: str, classes: int) -> None:
    """Attention pooling, no cls token."""
    changes = {
        "cls_token": False,
        "pool": "map",
        "activation": activation,
        "positions": BARE,
        "classes": classes,
    }
    theirs = vit(class_token=False, global_pool="map", act_layer=activation, num_classes=classes)
    assert_equal_both_ways(small(**changes), theirs)


def test_attention_pooling_leaves_prefix_tokens_out(vit: Any) -> None:
    """With registers and a cls token, the probe still sees patches only."""
    theirs = vit(class_token=True, reg_tokens=3, no_embed_class=True, global_pool="map")
    assert_equal_both_ways(small(registers=3, pool="map", positions=BARE), theirs)


@pytest.mark.parametrize("pool", ["map", "mean"])
def test_naflex(timm: ModuleType, pool: str) -> None:
    """timm's networks of any size are the same ViT: patches by a matrix, channels last, positions as a grid."""
    from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg

    names = ("patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio")
    sizes = {name: THEIRS[name] for name in names}
    how = {"reg_tokens": 2, "global_pool": "map" if pool == "map" else "avg", "fc_norm": False}
    theirs = NaFlexVit(NaFlexVitCfg(**sizes, **how, pos_embed_grid_size=(4, 4)), num_classes=10, img_size=32).eval()
    renames.randomise(theirs)
    state = {name.removeprefix("embeds."): value for name, value in theirs.state_dict().items()}
    kernel = state.pop("proj.weight").unflatten(1, (8, 8, 3)).permute(0, 3, 1, 2)
    renamed = {"patch_embed.proj.weight": kernel, "patch_embed.proj.bias": state.pop("proj.bias")}
    ours = small(cls_token=False, registers=2, pool=pool, positions=BARE)
    renames.to_ours(renames.TIMM, ours, state | renamed)
    assert_equal(ours, theirs)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_parallel_blocks(vit: Any, qk_norm: bool) -> None:
    """Attention and MLP side by side on one norm; timm keeps both first layers in one matrix."""
    from timm.models.vision_transformer import ParallelScalingBlock

    ours, theirs = small(parallel=True, qk_norm=qk_norm), vit(block_fn=ParallelScalingBlock, qk_norm=qk_norm)
    renames.randomise(theirs)
    renames.to_ours(renames.TIMM_PARALLEL, ours, renames.parallel_apart(theirs.state_dict(), mlp_width=128))
    assert_equal(ours, theirs)


# ---- rotary positions --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def eva(timm: ModuleType) -> Any:
    """timm's class for rotary networks, small, built as rope-vit: other sizes without resampling."""
    from timm.models.eva import Eva

    common = {**THEIRS, "init_values": 1e-5, "global_pool": "token", "use_rot_pos_emb": True}
    return lambda **changes: Eva(**{**common, "use_abs_pos_emb": False, **changes}).eval()


ROPE_VIT = {"attn_type": "rope", "rope_grid_indexing": "xy"}


@pytest.mark.row("4.ROPE", "004.14")
@pytest.mark.parametrize("absolute", [False, True])
def test_axial_rotary(eva: Any, absolute: bool) -> None:
    positions = Positions() if absolute else Positions("none")
    ours = small(rotary=Rotary("axial", 100.0), positions=positions, layer_scale=1e-5)
    theirs = eva(rope_temperature=100.0, use_abs_pos_emb=absolute, **ROPE_VIT)
    assert_equal_both_ways(ours, theirs, renames.TIMM_EVA)


@pytest.mark.row("4.ROPE")
@pytest.mark.parametrize("absolute", [False, True])
def test_mixed_rotary(eva: Any, absolute: bool) -> None:
    positions = Positions() if absolute else Positions("none")
    ours = small(rotary=Rotary("mixed", 10.0), positions=positions, layer_scale=1e-5)
    theirs = eva(rope_temperature=10.0, rope_type="mixed", use_abs_pos_emb=absolute, **ROPE_VIT)
    renames.randomise(theirs)
    renames.to_ours(renames.TIMM_EVA, ours, renames.freqs_apart(theirs.state_dict()))
    assert_equal(ours, theirs)
    renames.randomise(ours)
    given = renames.to_theirs(renames.TIMM_EVA, ours, renames.freqs_apart(theirs.state_dict()))
    theirs.load_state_dict(renames.freqs_together(given))
    assert_equal(ours, theirs)


@pytest.mark.row("4.ROPE", "4.REG")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("swiglu", [False, True])
def test_dinov3(eva: Any, bias: bool, swiglu: bool) -> None:
    """DINOv3 as timm builds it: no bias on the keys at most, registers, eps 1e-5, values paired across halves."""
    mlp = {"mlp": "swiglu", "activation": "silu"} if swiglu else {}
    ours = small(
        rotary=Rotary("dinov3", 100.0),
        positions=Positions("none"),
        registers=4,
        qkv_bias="no-key" if bias else "none",
        layer_scale=1e-5,
        norm_eps=1e-5,
        **mlp,
    )
    theirs = eva(
        rope_type="dinov3",
        rope_temperature=100.0,
        rope_rotate_half=True,
        num_reg_tokens=4,
        qkv_bias=bias,
        swiglu_mlp=swiglu,
        swiglu_align_to=8 * swiglu,
        use_fc_norm=False,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    )
    assert_equal_both_ways(ours, theirs, renames.TIMM_EVA)


# ---- hybrids -----------------------------------------------------------------------------------------------------


def hybrid_pair(layers: tuple[int, ...], stem: ResNetStem, patch: int) -> tuple[ViT, nn.Module, renames.Table]:
    """A hybrid of ours, timm's of the same shape, and the rows between them."""
    from timm.layers import HybridEmbed
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_hybrid import _resnetv2

    embed = partial(HybridEmbed, backbone=_resnetv2(layers))
    changes = {"img_size": 64, "patch_size": patch, "depth": 1, "embed_layer": embed}
    theirs = VisionTransformer(**{**THEIRS, **changes}).eval()
    ours = small(image_size=64, patch_size=patch, depth=1, stem=stem)
    backbone = "patch_embed.backbone"
    table = renames.timm_resnet(f"{backbone}.stem" if layers else backbone, f"{backbone}.stages")
    return ours, theirs, (*renames.TIMM, *table)


@pytest.mark.row("001.02", "P.4")
@pytest.mark.parametrize("layers, patch", [((), 8), ((1, 2), 2), ((1, 1, 1), 1), ((1, 1, 1, 1), 1)])
def test_hybrids(timm: ModuleType, layers: tuple[int, ...], patch: int) -> None:
    """timm divides by sqrt(var + 1e-8) where Google divides by (deviation + 1e-5).

    For filters of deviation near 1, as here, timm's 1e-8 is less than fp32 can tell, and weight_eps=0 says the same.
    """
    ours, theirs, table = hybrid_pair(layers, ResNetStem(layers, norm_eps=1e-5, weight_eps=0.0), patch)
    renames.randomise(theirs)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "backbone" in name and parameter.ndim == 4:
                parameter.copy_(0.2 + torch.randn_like(parameter))
    renames.to_ours(table, ours, theirs.state_dict())
    assert_equal(ours, theirs, ((64, 64), (32, 96)))


TIMM_STEM = partial(ResNetStem, norm_eps=1e-5, weight_eps=1e-8, standardise="variance")


def set_filters(theirs: nn.Module, deviation: float) -> None:
    """Random filters with a mean of their own, of the deviation or up to a hundredth of it: norms undo no eps."""
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "backbone" in name and parameter.ndim == 4:
                spread = deviation * 100 ** -torch.rand(len(parameter), 1, 1, 1)
                parameter.copy_(spread * (0.2 + torch.randn_like(parameter)))


@pytest.mark.row("001.02", "001.04", "P.4")
@pytest.mark.parametrize("deviation", [1.0, 0.01, 0.0003])
@pytest.mark.parametrize("layers, patch", [((), 8), ((1, 2), 2), ((1, 1, 1), 1)])
def test_hybrids_standardised_as_timm_does(
    timm: ModuleType, layers: tuple[int, ...], patch: int, deviation: float
) -> None:
    """By the variance with an eps of 1e-8: the same for filters of any size, also where the eps counts."""
    ours, theirs, table = hybrid_pair(layers, TIMM_STEM(layers), patch)
    renames.randomise(theirs)
    set_filters(theirs, deviation)
    renames.to_ours(table, ours, theirs.state_dict())
    assert_equal(ours, theirs, ((64, 64), (32, 96)))


@pytest.mark.row("001.02", "P.4")
@pytest.mark.parametrize("name, layers, patch", [("tiny_r_s16_p8", (), 8), ("small_r26_s32", (2, 2, 2, 2), 1)])
def test_hybrids_as_timm_builds_them_by_name(timm: ModuleType, name: str, layers: tuple[int, ...], patch: int) -> None:
    """The whole network from timm's own builder, its stem at full size, its transformer small."""
    sizes = {"img_size": 64, "embed_dim": 64, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0, "num_classes": 10}
    theirs = timm.create_model(f"vit_{name}_224", **sizes, dynamic_img_size=True).eval()
    renames.randomise(theirs)
    set_filters(theirs, 0.01)
    ours = small(image_size=64, patch_size=patch, stem=TIMM_STEM(layers))
    stem = "patch_embed.backbone" + (".stem" if layers else "")
    table = (*renames.TIMM, *renames.timm_resnet(stem, "patch_embed.backbone.stages"))
    renames.to_ours(table, ours, theirs.state_dict())
    assert_equal(ours, theirs, ((64, 64), (32, 96)))
    for changes in ({"weight_eps": 1e-5}, {"weight_eps": 0.0}):  # Google's form, and the form without an eps, are apart
        other = small(image_size=64, patch_size=patch, stem=ResNetStem(layers, norm_eps=1e-5, **changes))
        other.load_state_dict(ours.state_dict())
        pixels = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            assert renames.gap(other(pixels), theirs(pixels)) > 100 * CLOSE


@pytest.mark.row("001.04")
def test_the_two_standardisations_part_only_by_their_eps(timm: ModuleType) -> None:
    """With Google's eps and small filters the two are apart, by what the two formulas are apart."""
    from timm.layers import StdConv2dSame

    from vitrail.network.stem import StandardisedConv

    theirs = StdConv2dSame(16, 8, 3, stride=2, eps=1e-8)
    pixels = torch.randn(2, 16, 15, 22)
    for deviation in (1.0, 0.05, 0.005):
        filters = deviation * torch.randn(8, 16, 3, 3)
        theirs.weight.data.copy_(filters)
        spread = filters.std(dim=(1, 2, 3), correction=0, keepdim=True)
        for eps in (0.0, 1e-5):
            ours = StandardisedConv(ResNetStem(weight_eps=eps), 16, 8, 3, stride=2)
            ours.weight.data.copy_(filters)
            factor = ((spread**2 + 1e-8).sqrt() / (spread + eps)).reshape(1, 8, 1, 1)
            with torch.no_grad():
                assert renames.gap(ours(pixels), theirs(pixels) * factor) < CLOSE
