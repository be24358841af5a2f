"""What families do to images: Preprocess against timm's, transformers' and torchvision's own code on photographs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

import oracles
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.network.config import Rotary, ViTConfig
from vitrail.weights.families.timm_pixels import from_timm, to_timm
from vitrail.weights.families.transformers_pixels import from_transformers
from vitrail.weights.preprocessing import (
    CLIP,
    EVALUATION,
    HALF,
    IMAGENET,
    PUBLISHED,
    Known,
    evaluation,
    timm_default,
    transformers_default,
)
from weights.pixel_steps import CAT, TALL, apart

# ---- the table ----------------------------------------------------------------------------------------------------


def test_every_default_is_known_or_assumed_and_says_why() -> None:
    for family in EVALUATION:
        for size in (192, 224, 384, (64, 96)):
            known = evaluation(family, size)  # type: ignore[arg-type]
            assert isinstance(known, Known)
            assert known.preprocess.size == (size if isinstance(size, tuple) else (size, size))
            assert known.why.startswith(("known: ", "assumed: ")), known.why
    for model in PUBLISHED:
        assert transformers_default(model, 224).why.startswith(("known: ", "assumed: "))
    assert evaluation("lucidrains").why.startswith("assumed")
    assert evaluation("dino", 224).why.startswith("known")
    assert evaluation("dino", 448).why.startswith("assumed")


@pytest.mark.parametrize(
    "family, size, expected",
    [
        ("augreg", 224, Preprocess(224, "crop", 0.9, **HALF)),
        ("augreg", 384, Preprocess(384, "crop", 1.0, **HALF)),
        ("deit", 224, Preprocess(224, "crop", 0.875, **IMAGENET)),
        ("deit", 384, Preprocess(384, "crop", 0.875, **IMAGENET)),
        ("deit3", 384, Preprocess(384, "crop", 1.0, **IMAGENET)),
        ("dino", 224, Preprocess(224, "crop", 0.875, **IMAGENET)),
        ("dinov2", 224, Preprocess(224, "crop", 0.875, **IMAGENET)),
        ("dinov2", 518, Preprocess(518, "crop", 1.0, **IMAGENET)),
        ("dinov3", 256, Preprocess(256, "squash", 1.0, "bilinear", **IMAGENET)),
        ("clip", 336, Preprocess(336, "crop", 1.0, **CLIP)),
        ("siglip", 224, Preprocess(224, "squash", 1.0, "bilinear", False, **HALF)),
        ("mae", 224, Preprocess(224, "crop", 0.875, **IMAGENET)),
        ("mae", 448, Preprocess(448, "crop", 1.0, **IMAGENET)),
        ("torchvision", 224, Preprocess(224, "crop", 0.875, "bilinear", **IMAGENET)),
        ("torchvision", 512, Preprocess(512, "crop", 1.0, **IMAGENET)),
        ("google", 384, Preprocess(384, "squash", 1.0, "bilinear", False, **HALF)),
        ("big_vision", 384, Preprocess(384, "crop", 384 / 448, "box", **HALF)),
        ("lucidrains", 32, Preprocess(32, "crop", 1.0, "bilinear", mean=0.0, std=1.0)),
    ],
)
def test_what_each_family_s_own_code_does(family: str, size: int, expected: Preprocess) -> None:
    assert evaluation(family, size).preprocess == expected


@pytest.mark.parametrize(
    "model, size, expected",
    [
        ("vit", 224, Preprocess(224, "squash", 1.0, "bilinear", **HALF)),
        ("deit", 224, Preprocess(224, "squash", 0.875, "bicubic", **IMAGENET)),
        ("dinov2", 224, Preprocess(224, "crop", 0.875, "bicubic", **IMAGENET)),
        ("dinov2_with_registers", 518, Preprocess(518, "crop", 1.0, "bicubic", **IMAGENET)),
        ("dinov3_vit", 224, Preprocess(224, "squash", 1.0, "bilinear", **IMAGENET)),
        ("clip_vision_model", 224, Preprocess(224, "crop", 1.0, "bicubic", **CLIP)),
        ("siglip", 384, Preprocess(384, "squash", 1.0, "bicubic", **HALF)),
        ("siglip2_vision_model", 256, Preprocess(256, "squash", 1.0, "bilinear", **HALF)),
        ("vit_mae", 224, Preprocess(224, "squash", 1.0, "bilinear", **IMAGENET)),
        ("vit_msn", 224, Preprocess(224, "squash", 1.0, "bilinear", **IMAGENET)),
        ("ijepa", 224, Preprocess(224, "squash", 1.0, "bilinear", **IMAGENET)),
        ("beit", 224, Preprocess(224, "squash", 1.0, "bicubic", **HALF)),
    ],
)
def test_what_transformers_published_files_are_prepared_with(model: str, size: int, expected: Preprocess) -> None:
    assert transformers_default(model, size).preprocess == expected


def test_a_grey_network_has_averages_and_never_more_than_an_assumption() -> None:
    grey = evaluation("clip", 224, channels=1)
    assert grey.preprocess.channels == 1
    assert grey.preprocess.mean == (sum(CLIP["mean"]) / 3,)
    assert grey.why.startswith("assumed: CLIP's own code")
    assert transformers_default("vit_msn", 224, channels=1).preprocess.std == (sum(IMAGENET["std"]) / 3,)


def test_unknown_families_are_told() -> None:
    with pytest.raises(InputError, match="did you mean 'dinov2'"):
        evaluation("dino_v2")
    with pytest.raises(InputError, match="did you mean 'vit_mae'"):
        transformers_default("vitmae")


# ---- timm ---------------------------------------------------------------------------------------------------------


def cfg(timm: ModuleType, name: str) -> dict[str, Any]:
    return timm.get_pretrained_cfg(name).to_dict()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("vit_base_patch16_224.augreg_in21k_ft_in1k", "augreg"),
        ("vit_base_patch16_224.orig_in21k_ft_in1k", "augreg"),
        ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", "augreg"),
        ("vit_base_r50_s16_384.orig_in21k_ft_in1k", "augreg"),
        ("deit3_base_patch16_384.fb_in1k", "deit3"),
        ("deit3_base_patch16_224.fb_in22k_ft_in1k", "deit3"),
        ("vit_base_patch14_dinov2.lvd142m", "dinov2"),
        ("vit_large_patch14_clip_336.openai", "clip"),
        ("vit_huge_patch14_clip_224.dfn5b", "clip"),
    ],
)
def test_timm_s_own_table_says_the_same(timm: ModuleType, name: str, expected: str) -> None:
    preprocess = from_timm(cfg(timm, name))
    assert preprocess == evaluation(expected, preprocess.size).preprocess


def test_every_vision_transformer_of_timm_is_understood_and_comes_back(timm: ModuleType) -> None:
    """All pretrained configs of timm's ViT, DeiT, hybrids and EVA: read, and written with the same numbers."""
    from timm.models import deit, eva, vision_transformer, vision_transformer_hybrid

    count = 0
    for module in (vision_transformer, deit, vision_transformer_hybrid, eva):
        for entry in module.default_cfgs.values():
            for each in entry.cfgs.values():
                plain = json.loads(json.dumps(each.to_dict()))
                written = to_timm(from_timm(plain))
                for key in ("input_size", "interpolation", "crop_pct", "mean", "std"):
                    assert written[key] == plain[key], (each, key)
                assert written["crop_mode"] == (plain.get("crop_mode") or "center")
                count += 1
    assert count > 400


@pytest.mark.parametrize("image", [CAT, TALL], ids=["wide", "tall"])
@pytest.mark.parametrize(
    "values",
    [
        {"crop_pct": 0.9, "crop_mode": "center", "interpolation": "bicubic"},
        {"crop_pct": 1.0, "crop_mode": "center", "interpolation": "lanczos"},
        {"crop_pct": 0.95, "crop_mode": "squash", "interpolation": "bilinear"},
        {"crop_pct": 1.0, "crop_mode": "border", "interpolation": "bicubic"},
        {"crop_pct": 0.9, "crop_mode": "center", "interpolation": "bicubic", "input_size": (3, 160, 224)},
        {"crop_pct": 1.0, "crop_mode": "squash", "interpolation": "box", "input_size": (3, 160, 224)},
        {"crop_pct": 1.0, "crop_mode": "border", "interpolation": "nearest", "input_size": (3, 160, 224)},
        {},
    ],
)
def test_pixels_are_those_of_timm_s_transform(timm: ModuleType, image: Image.Image, values: dict[str, Any]) -> None:
    from timm.data import create_transform, resolve_data_config

    given = {"mean": CLIP["mean"], "std": CLIP["std"], **values} if values else {"tag": "nothing said"}
    preprocess = from_timm(given)
    transform = create_transform(**resolve_data_config(pretrained_cfg=given))
    assert apart(preprocess(image), transform(image), preprocess.std) < 1e-3
    again = from_timm(json.loads(json.dumps(to_timm(preprocess))))
    assert again == preprocess


def test_a_size_of_the_network_s_own_keeps_timm_s_rule(timm: ModuleType) -> None:
    given = cfg(timm, "vit_base_patch16_224.augreg_in1k")
    assert from_timm(given, 288) == Preprocess(288, "crop", 0.9, **HALF)
    assert from_timm(given, (160, 160)).size == (160, 160)
    grey = {"input_size": [1, 28, 28], "mean": [0.1307], "std": [0.3081], "crop_pct": 1.0}
    assert from_timm(grey) == Preprocess(28, "crop", 1.0, channels=1, mean=0.1307, std=0.3081)


@pytest.mark.parametrize(
    "preprocess, message",
    [
        (Preprocess(antialias=False), "antialias=False"),
        (Preprocess(order="BGR"), "order='BGR'"),
        (Preprocess(channels=1, mean=0.5, std=0.2, range=4095), "range=4095"),
        (Preprocess((160, 224)), "always bilinear"),
    ],
)
def test_what_timm_cannot_carry_is_refused(preprocess: Preprocess, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        to_timm(preprocess)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"crop_mode": "centre"}, "did you mean 'center'"),
        ({"crop_mode": ["center"]}, "crop_mode"),
        ({"interpolation": "random"}, "interpolation 'random' cannot be honoured"),
        ({"interpolation": "hamming"}, "cannot be honoured"),
        ({"input_size": 224}, "expected \\(channels, height, width\\)"),
        ({"input_size": [4, 224, 224]}, "mean needs 4 numbers"),
        ({"input_size": [65, 224, 224]}, "channels: expected a whole number from 1 to 64"),
        ({"input_size": [3, -1, 224]}, "size"),
        ({"crop_pct": 0.9, "crop_mode": "border"}, "needs crop=1.0"),
        ({"mean": [123.0, 116.0, 103.0]}, "divide by 255"),
        ({"mean": "0.5"}, "mean"),
        ({"crop_pct": "0.9"}, "crop: expected a number"),
    ],
)
def test_what_a_file_of_timm_s_may_get_wrong(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        from_timm(wrong)


TINY = ViTConfig(image_size=(224, 224), patch_size=(16, 16), width=8, depth=1, heads=2, mlp_width=8)


@pytest.mark.parametrize(
    "changes, crop, statistics",
    [
        ({}, 0.9, HALF),
        ({"image_size": (384, 384)}, 1.0, HALF),
        ({"embedding_norm": True}, 1.0, CLIP),
        ({"distillation_token": True, "pool": "cls+distillation"}, 0.9, IMAGENET),
        ({"pool": "map", "cls_token": False}, 0.9, HALF),
        ({"layer_scale": 1e-5}, 1.0, IMAGENET),
        ({"layer_scale": 1e-5, "pool": "mean", "cls_token": False}, 0.9, HALF),
        ({"final_norm": "pooled", "pool": "mean"}, 0.9, IMAGENET),
        ({"rotary": Rotary("dinov3"), "image_size": (256, 256)}, 1.0, IMAGENET),
    ],
)
def test_a_timm_network_without_a_config_is_told_by_its_parts(
    changes: dict[str, Any], crop: float, statistics: Mapping[str, Any]
) -> None:
    config = dataclasses.replace(TINY, **changes)
    preprocess, why = timm_default(config)
    assert preprocess == Preprocess(config.image_size, "crop", crop, **statistics)
    assert why.startswith("assumed: ")
    assert timm_default(dataclasses.replace(config, channels=1)).preprocess.channels == 1


# ---- transformers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 3, "ViTImageProcessor", [1]])
def test_files_that_are_no_mapping(wrong: Any) -> None:
    for read in (from_timm, from_transformers):
        with pytest.raises(CheckpointError, match="as a mapping"):
            read(wrong)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["height", "width", "x"]), inner),
    max_leaves=4,
)
KEYS = [
    "size",
    "crop_size",
    "do_resize",
    "do_center_crop",
    "resample",
    "image_mean",
    "image_std",
    "rescale_factor",
    "x",
]


@pytest.mark.fault("W11")
@example(hugging={}, wightman={"crop_pct": 1e-307})  # a frame that no number can hold
@given(
    hugging=st.dictionaries(st.sampled_from([*KEYS, "image_processor_type", "image_processor"]), JSON, max_size=5),
    wightman=st.dictionaries(
        st.sampled_from(["input_size", "crop_pct", "crop_mode", "interpolation", "mean", "std"]), JSON, max_size=5
    ),
)
def test_no_file_raises_anything_else(hugging: dict[str, Any], wightman: dict[str, Any]) -> None:
    for read, file in (
        (from_transformers, {"image_processor_type": "CLIPImageProcessor"} | hugging),
        (from_timm, wightman),
    ):
        with suppress(CheckpointError):
            assert isinstance(read(file), Preprocess)


# ---- torchvision, and families without a library ------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights, size", [("ViT_B_16_Weights.IMAGENET1K_V1", 224), ("ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1", 512)]
)
@pytest.mark.parametrize("image", [CAT, TALL], ids=["wide", "tall"])
def test_pixels_are_those_of_torchvision_s_weights(weights: str, size: int, image: Image.Image) -> None:
    kind, name = weights.split(".")
    transform = getattr(getattr(oracles.torchvision().models, kind), name).transforms()
    preprocess = evaluation("torchvision", size).preprocess
    assert apart(preprocess(image), transform(image), preprocess.std) < 1e-3


@pytest.mark.parametrize("family", ["deit", "dino", "dinov2", "mae"])
@pytest.mark.parametrize("image", [CAT, TALL], ids=["wide", "tall"])
def test_resize_256_bicubic_and_the_centre(family: str, image: Image.Image) -> None:
    """The lines that these four share, run with torchvision."""
    oracles.torchvision()
    from torchvision import transforms as t

    steps = [t.Resize(256, interpolation=t.InterpolationMode.BICUBIC), t.CenterCrop(224), t.ToTensor()]
    transform = t.Compose([*steps, t.Normalize(IMAGENET["mean"], IMAGENET["std"])])
    preprocess = evaluation(family, 224).preprocess
    assert apart(preprocess(image), transform(image), preprocess.std) < 1e-3


def test_dinov3_s_readme() -> None:
    oracles.torchvision()
    from torchvision.transforms import v2

    steps = [v2.ToImage(), v2.Resize((256, 256), antialias=True), v2.ToDtype(torch.float32, scale=True)]
    transform = v2.Compose([*steps, v2.Normalize(IMAGENET["mean"], IMAGENET["std"])])
    preprocess = evaluation("dinov3", 256).preprocess
    assert apart(preprocess(CAT), transform(CAT), preprocess.std) <= 1.01


@pytest.mark.parametrize("family", ["google", "siglip"])
def test_tensorflow_s_bilinear_without_antialias(family: str) -> None:
    """tf.image.resize takes the two nearest pixels at half-pixel centres, as torch's interpolate does."""
    preprocess = evaluation(family, 224).preprocess
    tensor = torch.from_numpy(np.asarray(CAT).copy()).permute(2, 0, 1)[None].float()
    resized = torch.nn.functional.interpolate(tensor, (224, 224), mode="bilinear", align_corners=False)[0]
    assert apart(preprocess(CAT), (resized - 127.5) / 127.5, preprocess.std) <= 0.51


def test_what_is_assumed_of_a_grey_network_is_said_once() -> None:
    assert evaluation("lucidrains", 28, channels=1).why.count("assumed") == 1
    assert evaluation("google", 224, channels=1).why.startswith("assumed: ")
