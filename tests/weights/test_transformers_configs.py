"""What config.json decides, what its class decides where it is silent, and what does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vitrail.errors import CheckpointError
from vitrail.weights import load
from weights.parity import assert_equal, assert_same_bits
from weights.transformers_cases import (
    CASES,
    build,
    edited,
    saved,
)


@pytest.mark.parametrize(
    ("said", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("quick_gelu", "quick_gelu"),
        ("relu", "relu"),
        ("silu", "silu"),
    ],
)
def test_the_activation_is_the_one_config_says(
    transformers: ModuleType, vit_folder: Path, tmp_path: Path, said: str, ours: str
) -> None:
    folder = edited(vit_folder, tmp_path / "edited", hidden_act=said, layer_norm_eps=1e-3)
    loaded = load(folder)
    assert (loaded.model.config.activation, loaded.model.config.norm_eps) == (ours, 1e-3)
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    assert_equal(loaded.model, lambda pixels: theirs(pixels).logits, ((32, 32),))
    why = {setting.name: setting.why for setting in loaded.provenance.settings}
    assert why["activation"] == why["norm_eps"] == why["heads"] == "the folder's config.json"


def test_what_config_leaves_out_its_class_decides(transformers: ModuleType, vit_folder: Path, tmp_path: Path) -> None:
    """The class's eps is 1e-12, not the 1e-6 of most families."""
    folder = edited(
        vit_folder, tmp_path / "edited", hidden_act=None, layer_norm_eps=None, image_size=None, patch_size=None
    )
    config = load(folder).model.config
    defaults = transformers.ViTConfig()
    assert config.norm_eps == defaults.layer_norm_eps == 1e-12
    assert (config.activation, config.image_size) == (defaults.hidden_act, (32, 32))


@pytest.mark.parametrize(
    "name",
    [
        *("ViT", "DeiT", "MSN", "MAE's encoder", "I-JEPA", "DINOv2", "DINOv2, registers", "DINOv3"),
        *("CLIP", "SigLIP", "SigLIP 2"),
    ],
)
def test_defaults_are_those_of_the_classes(transformers: ModuleType, name: str) -> None:
    from vitrail.weights.families.transformers_configs import ACTIVATIONS, MODEL_TYPES

    config = getattr(transformers, CASES[name].config)()
    kind = MODEL_TYPES[config.model_type]
    assert kind.norm_eps == config.layer_norm_eps
    assert kind.heads == config.num_attention_heads
    assert kind.activation == ACTIVATIONS[config.hidden_act]


def test_a_bare_file_says_what_was_taken_for_granted(vit_folder: Path, tmp_path: Path) -> None:
    shutil.copy(vit_folder / "model.safetensors", tmp_path / "bare.safetensors")
    ours = load(tmp_path / "bare.safetensors", override={"heads": 4})
    why = {setting.name: (setting.value, setting.why) for setting in ours.provenance.settings}
    assert why["norm_eps"] == ("1e-12", "what its model type takes for granted")
    assert why["heads"] == ("4", "given")
    assert_same_bits(ours.model.state_dict(), load(vit_folder).model.state_dict())


def test_a_bare_clip_tower_must_be_told_its_activation(transformers: ModuleType, tmp_path: Path) -> None:
    folder = saved(build(transformers, CASES["CLIP"]), tmp_path / "theirs")
    bare = shutil.copy(folder / "model.safetensors", tmp_path / "bare.safetensors")
    with pytest.raises(CheckpointError, match="quick_gelu .*override"):
        load(bare, override={"heads": 4})
    told = load(bare, override={"heads": 4, "activation": "quick_gelu"})
    assert told.model.config == load(folder).model.config


NAN = float("nan")
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a billion blocks": ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    "one block too many": ({"num_hidden_layers": 3}, "num_hidden_layers=3, the tensors say 2"),
    "no blocks": ({"num_hidden_layers": 0}, "num_hidden_layers"),
    "less than no blocks": ({"num_hidden_layers": -1}, "num_hidden_layers"),
    "blocks in words": ({"num_hidden_layers": "2"}, "num_hidden_layers"),
    "blocks in a list": ({"num_hidden_layers": [2]}, "num_hidden_layers"),
    "true blocks": ({"num_hidden_layers": True}, "num_hidden_layers"),
    "a huge width": ({"hidden_size": 10**12}, "hidden_size"),
    "another width": ({"hidden_size": 128}, "hidden_size=128"),
    "another MLP": ({"intermediate_size": 256}, "intermediate_size=256"),
    "a huge MLP": ({"intermediate_size": 10**18}, "intermediate_size"),
    "a billion heads": ({"num_attention_heads": 10**9}, "num_attention_heads"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads"),
    "heads that do not divide": ({"num_attention_heads": 5}, "5 heads"),
    "half a head": ({"num_attention_heads": 0.5}, "num_attention_heads"),
    "other heads": ({"head_dim": 32}, "head_dim=32"),
    "a huge image": ({"image_size": 10**9}, "image_size"),
    "another image": ({"image_size": 64}, "image_size"),
    "an image of three sides": ({"image_size": [32, 32, 3]}, "image_size"),
    "an image in words": ({"image_size": "32"}, "image_size"),
    "another patch": ({"patch_size": 16}, "patch_size"),
    "other channels": ({"num_channels": 1}, "num_channels"),
    "an unknown activation": ({"hidden_act": "mish"}, "hidden_act 'mish' is unknown"),
    "several activations": ({"hidden_act": ["gelu"]}, "hidden_act"),
    "an eps of NaN": ({"layer_norm_eps": NAN}, "NaN"),
    "an eps in words": ({"layer_norm_eps": "1e-6"}, "layer_norm_eps"),
    "an eps below nothing": ({"layer_norm_eps": -1.0}, "layer_norm_eps"),
    "a bias in words": ({"qkv_bias": "yes"}, "qkv_bias"),
    "no bias": ({"qkv_bias": False}, "qkv_bias=False"),
    "a dropout of two": ({"hidden_dropout_prob": 2}, "dropout"),
    "an unknown type": ({"model_type": "swin"}, "model_type 'swin'"),
    "a type in a list": ({"model_type": ["vit"]}, "model_type"),
    "a type of other names": ({"model_type": "dinov3_vit"}, "config.json says dinov3_vit"),
    "a type of other blocks": ({"model_type": "dinov2"}, "transformers' dinov2, and no blocks"),
    "too few names": ({"id2label": {"0": "ant"}}, "1 classes in id2label, and the head has 5"),
    "remote code": ({"auto_map": {"AutoModel": "theirs.Model"}}, "auto_map"),
}


@pytest.mark.fault("W11")
@pytest.mark.parametrize("name", WRONG)
def test_a_config_that_does_not_fit(vit_folder: Path, tmp_path: Path, name: str) -> None:
    """Refused by name, before anything is built."""
    changes, message = WRONG[name]
    with pytest.raises(CheckpointError, match=message):
        load(edited(vit_folder, tmp_path / "edited", **changes))


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "another ratio": ("DINOv2", {"mlp_ratio": 3}, "mlp_ratio=3"),
    "a ratio of NaN": ("DINOv2", {"mlp_ratio": [4]}, "mlp_ratio"),
    "a scale in words": ("DINOv2", {"layerscale_value": "1"}, "layer_scale"),
    "gated in words": ("DINOv2", {"use_swiglu_ffn": True}, "use_swiglu_ffn=True"),
    "other registers": ("DINOv2, registers", {"num_register_tokens": 3}, "num_register_tokens=3"),
    "no theta": ("DINOv3", {"rope_theta": 0}, "theta"),
    "theta in words": ("DINOv3", {"rope_theta": "100"}, "theta"),
    "a key bias": ("DINOv3", {"key_bias": True}, "key_bias=True"),
    "no bias behind attention": ("DINOv3", {"proj_bias": False}, "proj_bias=False"),
    "a huge rotary image": ("DINOv3", {"image_size": 10**7}, "image_size"),
    "gates of another kind": ("DINOv3, gated", {"hidden_act": "gelu"}, "swiglu"),
    "another pooler": ("ViT", {"pooler_act": "relu"}, "pooler_act 'relu'"),
    "another width of pooler": ("ViT", {"pooler_output_size": 32}, "pooler_output_size=32"),
    "other flat patches": ("SigLIP 2", {"num_patches": 64}, "num_patches=64"),
    "other flat channels": ("SigLIP 2", {"num_channels": 5}, "5 channels"),
    "no attention pool": ("SigLIP without its pool", {"vision_use_head": None}, "vision_use_head=True"),
    "an unasked attention pool": ("SigLIP", {"vision_use_head": False}, r"leave_out=\('pool',\)"),
    "vision in a list": ("SigLIP, classes", {"vision_config": []}, "vision_config"),
}


@pytest.mark.fault("W11")
@pytest.mark.parametrize("name", OTHERS)
def test_a_config_that_does_not_fit_its_type(transformers: ModuleType, tmp_path: Path, name: str) -> None:
    case, changes, message = OTHERS[name]
    folder = saved(build(transformers, CASES[case]), tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=message):
        load(edited(folder, tmp_path / "edited", **changes), leave_out=CASES[case].leave_out)
