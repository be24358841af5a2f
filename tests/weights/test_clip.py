"""CLIP's towers: read with open_clip's numbers and settings, written so that open_clip loads them strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import oracles
from network import renames
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network import ViTConfig
from vitrail.weights import convert, load
from vitrail.weights.families.clip import _ratio
from weights.parity import SIZES, assert_equal, assert_same_bits

VISION: dict[str, Any] = {
    "image_size": 32,
    "layers": 2,
    "width": 128,
    "head_width": 64,
    "patch_size": 8,
    "mlp_ratio": 1.5,
}
TEXT: dict[str, Any] = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small heads": {"head_width": 32},
    "LayerScale": {"ls_init_value": 1e-4},
    "no norm before": {"no_ln_pre": True},
    "mean": {"pool_type": "avg"},
    "mean, norm behind": {"pool_type": "avg", "final_ln_after_pool": True},
    "query and key norms": {"qk_norm": True, "head_width": 32},
    "eps": {"norm_kwargs": {"eps": 1e-3}},
    "tanh": {"act_kwargs": {"approximate": "tanh"}},
    "uneven": {"image_size": [32, 48], "patch_size": [8, 12]},
    "ratio that rounding would lose": {"mlp_ratio": 1.1172},
}


@pytest.fixture(scope="module")
def library() -> ModuleType:
    oracles.timm()  # and with it torchvision, which open_clip imports
    return pytest.importorskip("open_clip", reason="the oracle open_clip is not installed: make test installs it")


def model_cfg(quick: bool, **vision: Any) -> dict[str, Any]:
    return {"embed_dim": 24, "quick_gelu": quick, "vision_cfg": {**VISION, **vision}, "text_cfg": TEXT}


def clip(library: ModuleType, settings: Mapping[str, Any]) -> nn.Module:
    """open_clip's whole model, small, with random weights that hide nothing."""
    model: nn.Module = library.CLIP(**settings).eval()
    renames.randomise(model)
    return model


def folder(model: nn.Module, settings: Mapping[str, Any], path: Path, **pixels: Any) -> Path:
    """As open_clip writes a model for the hub."""
    path.mkdir()
    save_file(model.state_dict(), path / "open_clip_model.safetensors")
    (path / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings, "preprocess_cfg": pixels}))
    return path


def at_sizes(library: ModuleType, model: nn.Module, settings: dict[str, Any]) -> Any:
    """Their tower at any size: built for it, its positions resampled by open_clip's own function."""
    from open_clip.model import resize_pos_embed

    def run(pixels: Tensor) -> Tensor:
        vision = {**settings["vision_cfg"], "image_size": list(pixels.shape[-2:])}
        other = library.CLIP(**{**settings, "vision_cfg": vision}).eval()
        state = model.state_dict()
        resize_pos_embed(state, other)
        other.load_state_dict(state, strict=True)
        answers: Tensor = other.visual(pixels)
        return answers

    return run


def tower(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The vision part of a whole model's tensors, without its prefix."""
    return {name.removeprefix("visual."): value for name, value in state.items() if name.startswith("visual.")}


@pytest.mark.parametrize(  # quick_gelu has no tanh form
    ("name", "quick"), [(name, quick) for name in VARIANTS for quick in (False, True) if name != "tanh" or not quick]
)
def test_there_and_back(library: ModuleType, tmp_path: Path, name: str, quick: bool) -> None:
    """Equal embeddings at three sizes; written back, the same bits, from which open_clip builds the same tower."""
    settings = model_cfg(quick, **VARIANTS[name])
    theirs = clip(library, settings)
    path = folder(theirs, settings, tmp_path / "theirs")
    ours = load(path, leave_out=("text",))
    assert ours.provenance.family == "clip"
    assert ours.model.config.activation == ("quick_gelu" if quick else "gelu_tanh" if name == "tanh" else "gelu")
    if name == "uneven":  # open_clip resamples square tables alone
        assert_equal(ours.model, theirs.visual, ((32, 48),))
    else:
        assert_equal(ours.model, at_sizes(library, theirs, settings), SIZES)
    out = tmp_path / "ours"
    report = convert(path, out, to="clip", leave_out=("text",))
    assert report.preprocess_carried
    written = load_file(out / "open_clip_model.safetensors")
    original = theirs.state_dict()
    assert_same_bits(written, {each: original[each] for each in original if each.startswith("visual.")})
    fresh = clip(library, settings).visual
    fresh.load_state_dict(tower(written), strict=True)
    native = ((32, 48),) if name == "uneven" else ((32, 32),)
    assert_equal(ours.model, fresh, native)
    made = json.loads((out / "open_clip_config.json").read_text())["model_cfg"]
    again = library.CLIP(**made, text_cfg=TEXT).eval().visual
    again.load_state_dict(tower(written), strict=True)
    assert_equal(ours.model, again, native)


def test_every_mlp_width_comes_back_from_its_ratio() -> None:
    """open_clip multiplies and rounds down: no width may come out one smaller."""
    for width in (49, 98, 128, 196):
        for mlp_width in range(1, 5 * width):
            config = ViTConfig(image_size=16, patch_size=8, width=width, depth=1, heads=1, mlp_width=mlp_width)
            assert int(width * _ratio(config)) == mlp_width


def test_open_clip_loads_our_folder_with_its_text_tower(library: ModuleType, tmp_path: Path) -> None:
    """With the text tower put back beside it, open_clip's own loader takes the folder, and prepares images alike."""
    settings = model_cfg(True)
    theirs = clip(library, settings)
    pixels = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bilinear", "resize_mode": "squash"}
    path = folder(theirs, settings, tmp_path / "theirs", **pixels)
    out = tmp_path / "ours"
    convert(path, out, to="clip", leave_out=("text",))
    config = json.loads((out / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"] = TEXT
    (out / "open_clip_config.json").write_text(json.dumps(config))
    written = load_file(out / "open_clip_model.safetensors")
    rest = {name: value for name, value in theirs.state_dict().items() if name not in written}
    save_file(written | rest, out / "open_clip_model.safetensors")
    model, _, transform = library.create_model_and_transforms(f"local-dir:{out}")
    with torch.no_grad():
        noise = torch.randn(2, 3, 32, 32)
        assert torch.equal(model.eval().encode_image(noise), theirs.encode_image(noise))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8))
    ours = load(out, leave_out=("text",)).preprocess
    assert float(np.abs(ours(image) - transform(image).numpy()).max()) < 1e-6


@pytest.mark.parametrize("mode", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_the_folders_preprocessing(library: ModuleType, tmp_path: Path, mode: str, interpolation: str) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2

    settings = model_cfg(False)
    said = {"interpolation": interpolation, "resize_mode": mode, "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}
    path = folder(clip(library, settings), settings, tmp_path / "theirs", **said)
    transform = image_transform_v2(PreprocessCfg(size=32, **said), is_train=False)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8))
    ours = load(path, leave_out=("text",)).preprocess
    assert float(np.abs(ours(image) - transform(image).numpy()).max()) < 1e-6


# ---- bare files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["visual.", ""])
def test_a_bare_file_must_be_told_its_activation(library: ModuleType, tmp_path: Path, before: str) -> None:
    """No tensor says it; with it, the tower's names alone are enough, behind visual. or not."""
    theirs = clip(library, model_cfg(True)).visual
    path = tmp_path / "theirs.safetensors"
    save_file({before + name: value for name, value in theirs.state_dict().items()}, path)
    with pytest.raises(CheckpointError, match="override={'activation': 'quick_gelu'}"):
        load(path)
    ours = load(path, override={"activation": "quick_gelu"})
    assert_equal(ours.model, theirs, ((32, 32),))
    config = ours.model.config
    assert (config.norm_eps, config.heads, config.pool, config.patch_bias) == (1e-5, 2, "cls", False)
    assert ours.preprocess == Preprocess(
        32, crop=1.0, mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
    )
    convert(path, tmp_path / "ours", to="clip", override={"activation": "quick_gelu"})
    assert_same_bits(tower(load_file(tmp_path / "ours" / "open_clip_model.safetensors")), theirs.state_dict())


def test_a_training_checkpoint_in_half_precision(library: ModuleType, tmp_path: Path) -> None:
    """As open_clip's training writes it: state_dict, each name behind module.; bits of fp16 stay."""
    theirs = clip(library, model_cfg(False)).visual.half()
    state = {f"module.visual.{name}": value for name, value in theirs.state_dict().items()}
    torch.save({"epoch": 3, "name": "run", "state_dict": state}, tmp_path / "epoch_3.pt")
    ours = load(tmp_path / "epoch_3.pt", override={"activation": "gelu"})
    assert {value.dtype for value in ours.model.state_dict().values()} == {torch.float16}
    convert(tmp_path / "epoch_3.pt", tmp_path / "ours", to="clip", override={"activation": "gelu"})
    assert_same_bits(tower(load_file(tmp_path / "ours" / "open_clip_model.safetensors")), theirs.state_dict())


def test_the_text_tower_is_not_dropped_in_silence(library: ModuleType, tmp_path: Path) -> None:
    """The error names the part; text towers of all of open_clip's models and OpenAI's numbers belong to it."""
    settings = model_cfg(False)
    theirs = clip(library, settings)
    path = folder(theirs, settings, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=r"not used positional_embedding.*leave_out=\('text',\)"):
        load(path)
    ours = load(path, leave_out=("text",))
    assert sum(row.how == "left out" for row in ours.provenance.mapping) == len(
        [name for name in theirs.state_dict() if not name.startswith("visual.")]
    )
    custom = library.CustomTextCLIP(**settings, init_logit_bias=-10.0)
    custom.visual.load_state_dict(theirs.visual.state_dict())
    (tmp_path / "custom").mkdir()
    numbers = {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}
    save_file(custom.state_dict() | numbers, tmp_path / "custom" / "open_clip_model.safetensors")
    config = (path / "open_clip_config.json").read_bytes()
    (tmp_path / "custom" / "open_clip_config.json").write_bytes(config)
    assert_same_bits(load(tmp_path / "custom", leave_out=("text",)).model.state_dict(), ours.model.state_dict())


def test_without_its_projection(library: ModuleType, tmp_path: Path) -> None:
    theirs = clip(library, model_cfg(False)).visual
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    given = {"activation": "gelu"}
    ours = load(tmp_path / "theirs.safetensors", override=given, leave_out=("projection",))
    theirs.proj = None
    assert_equal(ours.model, theirs, ((32, 32),))
    convert(tmp_path / "theirs.safetensors", tmp_path / "ours", to="clip", override=given, leave_out=("projection",))
    fresh = clip(library, model_cfg(False)).visual
    fresh.proj = None
    fresh.load_state_dict(tower(load_file(tmp_path / "ours" / "open_clip_model.safetensors")), strict=True)
    assert_equal(ours.model, fresh, ((32, 32),))


# ---- towers of timm ----------------------------------------------------------------------------------------------

TRUNK: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 128,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 0,
}


def trunk(library: ModuleType, pool: str, proj: str, bias: bool = False, **changes: Any) -> nn.Module:
    """open_clip's adapter around a small network of timm's."""
    from open_clip.timm_model import TimmModel
    from timm.models.vision_transformer import VisionTransformer

    model = TimmModel("test_vit", 24, image_size=32, pool="token", proj="none")
    model.trunk = VisionTransformer(**{**TRUNK, "global_pool": pool, "fc_norm": False, **changes})
    if proj == "linear":
        model.head = nn.Sequential()
        model.head.add_module("drop", nn.Dropout(0.0))
        model.head.add_module("proj", nn.Linear(128, 24, bias=bias))
    renames.randomise(model)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "pool", "proj", "changes"),
    [
        ("vit_base_patch16_224", "token", "linear", {}),
        ("vit_base_patch16_224", "avg", "linear", {"bias": True}),
        ("vit_base_patch16_siglip_224", "map", "none", {"class_token": False}),
        ("vit_base_patch16_224", "token", "", {"num_classes": 24}),
    ],
)
def test_a_tower_of_timm(
    library: ModuleType, tmp_path: Path, name: str, pool: str, proj: str, changes: dict[str, Any]
) -> None:
    """timm's network through timm's table, open_clip's projection behind it; the config says how it pools."""
    theirs = trunk(library, pool, proj, **changes)
    (tmp_path / "theirs").mkdir()
    state = {f"visual.{each}": value for each, value in theirs.state_dict().items()}
    save_file(state, tmp_path / "theirs" / "open_clip_model.safetensors")
    vision = {"timm_model_name": name, "timm_pool": pool, "timm_proj": proj, "image_size": 32}
    said = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"}
    config = {"model_cfg": {"embed_dim": 24, "vision_cfg": vision}, "preprocess_cfg": said}
    (tmp_path / "theirs" / "open_clip_config.json").write_text(json.dumps(config))
    ours = load(tmp_path / "theirs")
    assert ours.provenance.family == "clip"
    assert ours.preprocess == Preprocess(32, "squash", 1.0)
    assert_equal(ours.model, theirs, ((32, 32),))
    with pytest.raises(
        CheckpointError, match="no place for|without a cls token"
    ):  # open_clip builds what timm's list has, nothing else
        convert(tmp_path / "theirs", tmp_path / "ours", to="clip")


def test_how_a_bare_tower_of_timm_pools_must_be_told(library: ModuleType, tmp_path: Path) -> None:
    theirs = trunk(library, "avg", "linear")
    save_file({f"visual.{name}": value for name, value in theirs.state_dict().items()}, tmp_path / "theirs.safetensors")
    with pytest.raises(CheckpointError, match="override={'pool': 'cls'}"):
        load(tmp_path / "theirs.safetensors")
    ours = load(tmp_path / "theirs.safetensors", override={"pool": "mean"})
    assert_equal(ours.model, theirs, ((32, 32),))


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"attentional_pool": True}, "attentional pooling"),
        ({"attentional_pool": "parallel"}, "attentional pooling"),
        ({"scaled_cosine_attn": True}, "scaled cosine attention"),
        ({"scale_heads": True}, "scaled heads"),
        ({"scale_attn_inner": True}, "a norm inside attention"),
        ({"scale_attn": True}, "a norm behind attention"),
        ({"scale_fc": True}, "a norm inside the MLP"),
        ({"layers": [1, 1, 1, 1], "width": 8, "head_width": 16}, "a ResNet"),
    ],
    ids=str,
)
def test_other_towers_are_refused_by_name(
    library: ModuleType, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    settings = model_cfg(False, **changes)
    model = library.CLIP(**settings)
    with pytest.raises(CheckpointError, match=match):
        load(folder(model, settings, tmp_path / "theirs"), leave_out=("text",))


@pytest.mark.fault("W11")
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"vision_cfg": {**VISION, "width": 256}}, "says width 256, the tensors say 128"),
        ({"vision_cfg": {**VISION, "layers": 10**9}}, "says layers 1000000000, the tensors say 2"),
        ({"vision_cfg": {**VISION, "patch_size": "8"}}, "patch_size"),
        ({"vision_cfg": {**VISION, "image_size": 64}}, r"says image_size \(64, 64\)"),
        ({"vision_cfg": {**VISION, "head_width": -1}}, "head_width"),
        ({"vision_cfg": {**VISION, "head_width": 40}}, "width 128 does not divide into 3 heads"),
        ({"vision_cfg": {**VISION, "pool_type": "max"}}, "pool_type"),
        ({"vision_cfg": {**VISION, "act_kwargs": {"negative_slope": 1}}}, "negative_slope"),
        ({"vision_cfg": {**VISION, "norm_kwargs": {"bias": False}}}, "expected eps alone"),
        ({"vision_cfg": {**VISION, "norm_kwargs": {"eps": "small"}}}, "eps"),
        ({"vision_cfg": {**VISION, "patch_dropout": 2}}, "patch_dropout"),
        ({"vision_cfg": [1, 2]}, "expected vision_cfg as an object"),
        ({"quick_gelu": "yes"}, "quick_gelu"),
    ],
    ids=lambda value: str(value)[-40:],
)
def test_a_config_that_says_what_cannot_be(
    library: ModuleType, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    settings = model_cfg(False)
    path = folder(clip(library, settings), settings | changes, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=match):
        load(path, leave_out=("text",))


@pytest.mark.parametrize(
    ("pixels", "match"),
    [
        ({"resize_mode": "longest"}, "black bars"),
        ({"resize_mode": "tiles"}, "resize_mode"),
        ({"interpolation": "nearest"}, "interpolation"),
        ({"mean": [1, 2]}, "preprocess_cfg: mean"),
        ({"std": [0, 0, 0]}, "preprocess_cfg: std"),
    ],
    ids=str,
)
def test_preprocessing_that_cannot_be_honoured(
    library: ModuleType, tmp_path: Path, pixels: dict[str, Any], match: str
) -> None:
    settings = model_cfg(False)
    path = folder(clip(library, settings), settings, tmp_path / "theirs", **pixels)
    with pytest.raises(CheckpointError, match=match):
        load(path, leave_out=("text",))


@pytest.mark.fault("W9")
def test_missing_tensors_are_named(library: ModuleType, tmp_path: Path) -> None:
    settings = model_cfg(False, ls_init_value=1e-4)
    state = clip(library, settings).visual.state_dict()
    for name in ("transformer.resblocks.1.ls_2.gamma", "transformer.resblocks.0.attn.in_proj_bias"):
        save_file({each: value for each, value in state.items() if each != name}, tmp_path / "less.safetensors")
        with pytest.raises(CheckpointError, match=f"missing .*theirs: {name}"):
            load(tmp_path / "less.safetensors", override={"activation": "gelu"})


def test_what_open_clip_cannot_be_is_not_written(timm: ModuleType, tmp_path: Path) -> None:
    """A bias of the patches, a cls token without a position: refused by name, nothing left; a crop is reported."""
    from timm.models.vision_transformer import VisionTransformer

    whole = {"crop": 1.0}
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("no place for patches.projection.bias, head.classify.bias", {}, whole),
        ("no place for head.classify.bias", {"pre_norm": True}, {"activation": "gelu"}),
        ("without a cls token that has a position", {"no_embed_class": True}, whole),
        ("1 channels", {"in_chans": 1}, whole),
        ("activation: relu", {"pre_norm": True, "num_classes": 0}, {"activation": "relu"}),
    ]
    for number, (match, changes, override) in enumerate(cases):
        path = tmp_path / f"{number}.safetensors"
        save_file(VisionTransformer(**{**TRUNK, "num_classes": 5, **changes}).state_dict(), path)
        with pytest.raises(CheckpointError, match=match):
            convert(path, tmp_path / "out", to="clip", override=override)
        assert not (tmp_path / "out").exists()
    assert convert(path, tmp_path / "out", to="clip", override={"activation": "quick_gelu"}).preprocess_carried
    assert load(tmp_path / "out").model.config.activation == "quick_gelu"
    cropped = convert(path, tmp_path / "cropped", to="clip", override={"activation": "gelu", "crop": 0.9})
    assert not cropped.preprocess_carried
