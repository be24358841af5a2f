"""transformers' folders: the same numbers at every size, written back bit for bit, loaded by it without a word."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.insight import trace
from vitrail.network import Positions, Resample, Rotary, ViT, ViTConfig, patchify
from vitrail.network.masked import MaskedDecoder
from vitrail.weights import convert, load
from weights.parity import SIZES, assert_equal, assert_same_bits
from weights.transformers_cases import (
    BOTH,
    CASES,
    DECODER,
    EMBEDDED,
    FLAT,
    LOGITS,
    POOLED,
    SMALL,
    TEXT,
    Case,
    build,
    saved,
)


def run(model: Any, pixels: Tensor, output: str) -> Tensor:
    """An output of theirs at any size: nothing masked, patches flattened where the class takes them so."""
    kind = model.config.model_type
    if kind == "siglip2_vision_model":
        patches = patchify(pixels, 8, channels_last=True)
        grid = torch.tensor([[pixels.shape[2] // 8, pixels.shape[3] // 8]]).expand(len(pixels), -1)
        answer = model(patches, pixel_attention_mask=torch.ones(patches.shape[:2]).long(), spatial_shapes=grid)
    elif kind == "vit_mae":
        order = torch.arange(pixels.shape[2] * pixels.shape[3] // 64, dtype=torch.float32).expand(len(pixels), -1)
        answer = model(pixels, noise=order, interpolate_pos_encoding=True)
    else:
        resampled = {} if kind.startswith("dino") else {"interpolate_pos_encoding": True}
        answer = model(pixels, **resampled)
    value: Tensor = getattr(answer, output)
    return value


def ours_for(checkpoint: Checkpoint, output: str) -> Any:
    """The same output of ours."""
    if output == "last_hidden_state":
        return lambda pixels: trace(checkpoint.model, pixels, attention=False).tokens
    return checkpoint.model


def version_4(tensors: Mapping[str, Tensor], case: Case) -> dict[str, Tensor]:
    """What version 4 writes, from what version 5 does: a tower of CLIP and SigLIP has its prefix, MSN's blocks too."""
    if case.model in ("CLIPVisionModel", "SiglipVisionModel", "Siglip2VisionModel"):
        return {f"vision_model.{name}": value for name, value in tensors.items()}
    if case.model == "ViTMSNForImageClassification":
        return {f"vit.{name}" if name.startswith("encoder.") else name: value for name, value in tensors.items()}
    return dict(tensors)


def reload(transformers: ModuleType, folder: Path, **arguments: Any) -> Any:
    """Our folder in the class it names, all weights found and none left over."""
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, **arguments)
    assert not any(report.values()), report
    return model.eval()


# ---- every class, both ways --------------------------------------------------------------------------------------


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("name", CASES)
def test_a_folder(transformers: ModuleType, tmp_path: Path, name: str) -> None:
    """Equal at three sizes; written back, the same bits; transformers loads what we wrote and gives the same."""
    case = CASES[name]
    theirs = build(transformers, case)
    folder = saved(theirs, tmp_path / "theirs")
    ours = load(folder, leave_out=case.leave_out)
    assert ours.provenance.family == "transformers"
    assert_equal(ours_for(ours, case.output), lambda pixels: run(theirs, pixels, case.output))
    out = tmp_path / "ours"
    convert(folder, out, to="transformers", leave_out=case.leave_out)
    if case.same:
        assert_same_bits(load_file(out / "model.safetensors"), version_4(load_file(folder / "model.safetensors"), case))
    bare = not ours.model.config.representation_width and ours.model.config.classes == 0
    pooler = {"add_pooling_layer": False} if bare and (case.back or case.model) in ("ViTModel", "DeiTModel") else {}
    again = reload(transformers, out, **pooler)
    assert type(again).__name__ == (case.back or case.model)
    assert_equal(
        lambda pixels: run(again, pixels, case.output), lambda pixels: run(theirs, pixels, case.output), ((32, 32),)
    )
    if not pooler and not ours.model.config.classes:
        assert type(transformers.AutoModel.from_pretrained(out)) is type(again)


def test_mae_with_its_decoder(transformers: ModuleType, tmp_path: Path) -> None:
    """The decoder answers the same from the same kept tokens; version 5 misspells its blocks, and loads them right."""
    case = Case("ViTMAEForPreTraining", "ViTMAEConfig", {**SMALL, **DECODER})
    theirs = build(transformers, case)
    folder = saved(theirs, tmp_path / "theirs")
    ours = load(folder)
    assert ours.decoder is not None
    assert ours.model.config.positions.kind == ours.decoder.config.positions.kind == "sincos-2d"  # never trained
    assert_masked_alike(ours, theirs)
    out = tmp_path / "ours"
    convert(folder, out, to="transformers")
    official = {
        name.replace("decoder.decoder_encoder.layer.", "decoder.decoder_layers."): value
        for name, value in load_file(folder / "model.safetensors").items()
    }
    assert_same_bits(load_file(out / "model.safetensors"), official)
    assert_masked_alike(ours, reload(transformers, out))
    again = load(out)
    assert again.decoder is not None
    assert_same_bits(again.decoder.state_dict(), ours.decoder.state_dict())
    without = load(out, leave_out=("decoder",))
    assert without.decoder is None
    assert_same_bits(without.model.state_dict(), ours.model.state_dict())


def assert_masked_alike(ours: Checkpoint, theirs: Any) -> None:
    assert ours.decoder is not None
    pixels, noise = torch.randn(2, 3, 32, 32), torch.rand(2, 16)
    with torch.no_grad():
        kept = theirs.vit(pixels, noise=noise)
        predicted = ours.decoder(kept.last_hidden_state, kept.ids_restore)
        assert renames.gap(predicted, theirs(pixels, noise=noise).logits) < 1e-5


@pytest.mark.parametrize(
    ("model", "output"), [("CLIPModel", EMBEDDED), ("SiglipModel", POOLED), ("Siglip2Model", POOLED)]
)
def test_the_text_tower_is_left_out_only_when_told(
    transformers: ModuleType, tmp_path: Path, model: str, output: str
) -> None:
    vision = FLAT if model == "Siglip2Model" else SMALL
    extra = {"projection_dim": 16} if model == "CLIPModel" else {}
    settings = {"vision_config": vision, "text_config": TEXT, **extra}
    theirs = build(transformers, Case(model, model.replace("Model", "Config"), settings))
    folder = saved(theirs, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=r"leave_out=\('text',\)"):
        load(folder)
    ours = load(folder, leave_out=("text",))
    tower = theirs.vision_model
    if model == "CLIPModel":
        assert_equal(
            ours.model, lambda pixels: theirs.visual_projection(run(tower, pixels, POOLED)), ((32, 32), (40, 24))
        )
    else:
        assert_equal(ours.model, lambda pixels: run(tower, pixels, output))
    convert(folder, tmp_path / "ours", to="transformers", leave_out=("text",))
    again = reload(transformers, tmp_path / "ours")
    assert_equal(ours.model, lambda pixels: run(again, pixels, output))


def test_clip_with_classes_pools_before_its_last_norm(transformers: ModuleType, tmp_path: Path) -> None:
    """transformers' own class leaves its last norm unused; that is said, and what cannot be written is refused."""
    theirs = build(transformers, Case("CLIPForImageClassification", "CLIPConfig", {**BOTH, "num_labels": 5}))
    folder = saved(theirs, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=r"post_layernorm.*leave_out=\('norm',\)"):
        load(folder)
    ours = load(folder, leave_out=("norm",))
    assert_equal(ours.model, lambda pixels: theirs(pixels, interpolate_pos_encoding=True).logits)
    with pytest.raises(CheckpointError, match="clip_vision_model cannot carry a classifier"):
        convert(folder, tmp_path / "ours", to="transformers", leave_out=("norm",))
    assert not (tmp_path / "ours").exists()


def test_a_distillation_token_that_no_head_asks(transformers: ModuleType, tmp_path: Path) -> None:
    """It becomes a register with its place added; what is then written has a place of zeros, and stays as it is."""
    folder = saved(build(transformers, CASES["DeiT, classes"]), tmp_path / "theirs")
    stored = load_file(folder / "model.safetensors")
    ours = load(folder)
    assert (ours.model.config.registers, ours.model.config.distillation_token) == (1, False)
    place = stored["deit.embeddings.position_embeddings"][0, 1]
    assert torch.equal(ours.model.tokens.registers[0], stored["deit.embeddings.distillation_token"][0, 0] + place)
    convert(folder, tmp_path / "once", to="transformers")
    convert(tmp_path / "once", tmp_path / "twice", to="transformers")
    once, twice = (load_file(tmp_path / each / "model.safetensors") for each in ("once", "twice"))
    assert_same_bits(once, twice)
    changed = {name for name in stored if not torch.equal(once[name], stored[name])}
    assert changed == {"deit.embeddings.distillation_token", "deit.embeddings.position_embeddings"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays(transformers: ModuleType, tmp_path: Path, dtype: torch.dtype) -> None:
    folder = saved(build(transformers, CASES["DINOv3, no registers"]).to(dtype), tmp_path / "theirs")
    assert next(load(folder).model.parameters()).dtype == dtype
    convert(folder, tmp_path / "ours", to="transformers")
    assert_same_bits(load_file(tmp_path / "ours" / "model.safetensors"), load_file(folder / "model.safetensors"))


# ---- folders as they come ----------------------------------------------------------------------------------------


@pytest.mark.row("000.26")
def test_the_base_model_from_a_local_folder(
    transformers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ViT-B/16 with its pooler, as it was pre-trained, at its full size."""
    theirs = transformers.ViTModel(transformers.ViTConfig()).eval()
    folder = saved(theirs, tmp_path / "vit-base-patch16-224-in21k")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it went to the internet"))
    ours = load(folder)
    assert isinstance(ours, Checkpoint)
    pixels = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        answer = theirs(pixels)
        tokens = trace(ours.model, pixels, attention=False).tokens
        assert tokens.shape == answer.last_hidden_state.shape == (1, 197, 768)
        assert renames.gap(tokens, answer.last_hidden_state) < 1e-5
        assert renames.gap(ours.model(pixels), answer.pooler_output) < 1e-5
    assert ours.preprocess == Preprocess(224, "squash", 1.0, "bilinear", mean=0.5, std=0.5)


def test_shards(transformers: ModuleType, tmp_path: Path) -> None:
    model = build(transformers, CASES["ViT, classes"])
    one = load(saved(model, tmp_path / "one"))
    model.save_pretrained(tmp_path / "several", max_shard_size="100KB")
    assert len(list((tmp_path / "several").glob("model-*.safetensors"))) > 2
    several = load(tmp_path / "several")
    assert several.model.config == one.model.config
    assert_same_bits(several.model.state_dict(), one.model.state_dict())


def test_class_names_and_preprocessing_travel(transformers: ModuleType, tmp_path: Path) -> None:
    case = CASES["ViT, classes"]
    names = {0: "ant", 1: "bee", 2: "cat", 3: "dog", 4: "elk"}
    theirs = build(transformers, replace(case, settings={**SMALL, "id2label": names}))
    folder = saved(theirs, tmp_path / "theirs")
    processor = transformers.ViTImageProcessor(
        size={"height": 48, "width": 48}, resample=3, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]
    )
    processor.save_pretrained(folder)
    ours = load(folder)
    assert ours.classes == tuple(names.values())
    assert ours.preprocess == Preprocess(48, "squash", 1.0, "bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    report = convert(folder, tmp_path / "ours", to="transformers")
    assert report.preprocess_carried
    assert report.classes_carried
    assert reload(transformers, tmp_path / "ours").config.id2label == names
    back = transformers.AutoImageProcessor.from_pretrained(tmp_path / "ours")
    image = torch.randint(0, 256, (3, 40, 60), dtype=torch.uint8)
    first, second = (each(image, return_tensors="pt")["pixel_values"] for each in (processor, back))
    assert torch.equal(first, second)


def test_a_grey_network_with_wide_heads(transformers: ModuleType, tmp_path: Path) -> None:
    """64 wide with four heads of 64, one channel, seven patches a side: a network for written digits."""
    settings = {"image_size": 28, "patch_size": 4, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    settings |= {"intermediate_size": 128, "head_dim": 64, "num_channels": 1, "num_labels": 10}
    theirs = build(transformers, Case("ViTForImageClassification", "ViTConfig", settings))
    folder = saved(theirs, tmp_path / "theirs")
    ours = load(folder)
    assert (ours.model.config.heads, ours.model.config.per_head, ours.preprocess.channels) == (4, 64, 1)
    assert_equal(ours.model, lambda pixels: run(theirs, pixels, LOGITS), ((28, 28), (36, 20)), channels=1)
    convert(folder, tmp_path / "ours", to="transformers")
    again = reload(transformers, tmp_path / "ours")
    assert_equal(ours.model, lambda pixels: run(again, pixels, LOGITS), ((28, 28),), channels=1)


def test_a_native_size_that_is_not_square(transformers: ModuleType, tmp_path: Path) -> None:
    case = replace(CASES["ViT, classes"], settings={**SMALL, "image_size": (32, 48), "num_labels": 5})
    theirs = build(transformers, case)
    folder = saved(theirs, tmp_path / "theirs")
    ours = load(folder)
    assert ours.model.config.image_size == (32, 48)
    assert_equal(ours.model, lambda pixels: theirs(pixels).logits, ((32, 48),))
    convert(folder, tmp_path / "ours", to="transformers")
    again = reload(transformers, tmp_path / "ours")
    assert_equal(ours.model, lambda pixels: again(pixels).logits, ((32, 48),))


# ---- what config.json decides ------------------------------------------------------------------------------------


def test_another_size_when_loading(transformers: ModuleType, vit_folder: Path) -> None:
    """The table is resampled once, as transformers does it on every call."""
    theirs = transformers.ViTForImageClassification.from_pretrained(vit_folder).eval()
    ours = load(vit_folder, override={"image_size": 48})
    assert ours.model.config.image_size == (48, 48)
    assert_equal(ours.model, lambda pixels: run(theirs, pixels, LOGITS), ((48, 48),))


# ---- what is refused ---------------------------------------------------------------------------------------------


# ---- networks of ours, carried -----------------------------------------------------------------------------------

NATIVE: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 2, "heads": 4, "mlp_width": 128}
PLAIN = Resample(antialias=False)
LEARNED, BARE = Positions(resample=PLAIN), Positions(prefix=False, resample=PLAIN)
CLIP: dict[str, Any] = {"embedding_norm": True, "patch_bias": False, "head_bias": False, "positions": LEARNED}
DINOV3: dict[str, Any] = {"rotary": Rotary("dinov3"), "positions": Positions("none"), "layer_scale": 1e-5}
CARRIED: dict[str, tuple[dict[str, Any], str]] = {
    "classes": ({"classes": 5, "positions": LEARNED}, "ViTForImageClassification"),
    "a pooler": ({"classes": 0, "representation_width": 48, "positions": LEARNED}, "ViTModel"),
    "two heads": (
        {"classes": 5, "positions": LEARNED, "distillation_token": True, "pool": "cls+distillation"},
        "DeiTForImageClassificationWithTeacher",
    ),
    "one register": ({"classes": 5, "positions": LEARNED, "registers": 1}, "DeiTForImageClassification"),
    "LayerScale": ({"classes": 0, "positions": LEARNED, "layer_scale": 1e-5}, "Dinov2Model"),
    "LayerScale, registers, classes": (
        {"classes": 5, "layer_scale": 1e-5, "registers": 3, "pool": "cls+mean"},
        "Dinov2WithRegistersForImageClassification",
    ),
    "gated": (
        {
            "classes": 0,
            "positions": LEARNED,
            "layer_scale": 1.0,
            "mlp": "swiglu",
            "activation": "silu",
            "mlp_width": 176,
        },
        "Dinov2Model",
    ),
    "rotary": ({"classes": 0, "registers": 2, "qkv_bias": "no-key", **DINOV3}, "DINOv3ViTModel"),
    "mean": ({"classes": 5, "cls_token": False, "pool": "mean", "positions": BARE}, "IJepaForImageClassification"),
    "attention pool": ({"classes": 0, "cls_token": False, "pool": "map", "positions": BARE}, "SiglipVisionModel"),
    "flat attention pool": (
        {
            "classes": 0,
            "cls_token": False,
            "pool": "map",
            "positions": Positions(prefix=False, resample=Resample("bilinear")),
        },
        "Siglip2VisionModel",
    ),
    "a norm first": ({"classes": 16, **CLIP}, "CLIPVisionModelWithProjection"),
}


def checkpoint_of(**changes: Any) -> Checkpoint:
    model = ViT(ViTConfig(**{**NATIVE, **changes})).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(32, channels=model.config.channels))


@pytest.mark.parametrize("name", CARRIED)
def test_a_network_of_ours_in_the_class_that_computes_it(transformers: ModuleType, tmp_path: Path, name: str) -> None:
    changes, expected = CARRIED[name]
    ours = checkpoint_of(**changes)
    convert(ours, tmp_path / "out", to="transformers")
    theirs = reload(transformers, tmp_path / "out")
    assert type(theirs).__name__ == expected
    output = LOGITS if hasattr(theirs, "num_labels") and "For" in expected else POOLED
    output = EMBEDDED if "Projection" in expected else output
    sizes = ((32, 32),) if "flat" in name else SIZES
    assert_equal(ours.model, lambda pixels: run(theirs, pixels, output), sizes)
    if not ours.model.config.classes:
        assert type(transformers.AutoModel.from_pretrained(tmp_path / "out")).__name__ == expected


def test_a_decoder_of_ours(transformers: ModuleType, tmp_path: Path) -> None:
    fixed = Positions("sincos-2d", resample=PLAIN)
    ours = checkpoint_of(classes=0, positions=fixed)
    stack = {**NATIVE, "width": 32, "heads": 2, "depth": 1, "mlp_width": 64}
    decoder = MaskedDecoder(ViTConfig(**stack, classes=192, pool="none", positions=fixed), 64).eval()
    renames.randomise(decoder)
    ours = replace(ours, decoder=decoder)
    convert(ours, tmp_path / "out", to="transformers")
    assert_masked_alike(ours, reload(transformers, tmp_path / "out"))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a layer before the classifier": (
        {"representation_width": 32, "positions": LEARNED},
        "between pool and classifier",
    ),
    "mean with a cls token": ({"pool": "mean", "positions": LEARNED}, "pool: mean"),
    "norm behind the pool": ({"final_norm": "pooled", "positions": LEARNED}, "final_norm"),
    "no slot for cls": ({"positions": BARE}, "16 positions"),
    "several registers": ({"registers": 4, "positions": LEARNED}, "no place for tokens.registers"),
    "norms of queries": ({"qk_norm": True, "positions": LEARNED}, "no place for .*query_norm"),
    "keys without bias": ({"qkv_bias": "no-key", "positions": LEARNED}, "no place for .*query_bias"),
    "parallel blocks": ({"parallel": True, "positions": LEARNED}, "side by side"),
    "patches without bias": ({"patch_bias": False, "positions": LEARNED}, "patches.projection.bias"),
    "a head without bias": ({"head_bias": False, "positions": LEARNED}, "head.classify.bias"),
    "a classifier of DINOv2's cls": ({"layer_scale": 1.0, "positions": LEARNED}, "classifier of the cls token alone"),
    "an odd MLP of DINOv2": (
        {"layer_scale": 1.0, "classes": 0, "mlp_width": 100, "positions": LEARNED},
        "MLP 100 wide",
    ),
    "a classifier of DINOv3": (DINOV3, "dinov3_vit cannot carry a classifier"),
    "wide heads of DINOv3": ({**DINOV3, "classes": 0, "head_width": 32}, "4 heads cannot share"),
    "a classifier of SigLIP": ({"cls_token": False, "pool": "map", "positions": BARE}, "cannot carry a classifier"),
    "a bias on CLIP's projection": ({**CLIP, "head_bias": True}, "cannot carry a classifier"),
    "a broad CLIP": ({**CLIP, "image_size": (32, 48)}, "not square"),
    "other positions": ({"positions": Positions("learned-2d", resample=PLAIN)}, "no place for tokens.tables"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_class_computes_is_refused(tmp_path: Path, name: str) -> None:
    """By name, and nothing is left behind."""
    changes, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message):
        convert(checkpoint_of(**{"classes": 5, **changes}), tmp_path / "out", to="transformers")
    assert not list(tmp_path.iterdir())


def test_timm_to_transformers(timm: ModuleType, transformers: ModuleType, tmp_path: Path) -> None:
    """Numbers at the native size are timm's; that other sizes are resampled in transformers' way is said."""
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=5).eval()
    renames.randomise(theirs)
    path = tmp_path / "timm.safetensors"
    save_file({name: value.contiguous() for name, value in theirs.state_dict().items()}, path)
    report = convert(path, tmp_path / "out", to="transformers")
    assert ["resample" in each for each in report.not_carried] == [True]
    again = reload(transformers, tmp_path / "out")
    assert again.config.layer_norm_eps == 1e-6
    assert_equal(theirs, lambda pixels: again(pixels).logits, ((32, 32),))


def test_a_folder_that_says_it_classifies_must_have_a_classifier(transformers: ModuleType, tmp_path: Path) -> None:
    """Half a file is no smaller network: its config names the class that wrote it."""
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=96
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "whole")
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    left = {name: value for name, value in tensors.items() if "classifier" not in name}
    save_file(left, tmp_path / "whole" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="says ViTForImageClassification, and no tensor is a classifier"):
        load(tmp_path / "whole")
    save_file(tensors, tmp_path / "whole" / "model.safetensors", {"format": "pt"})
    assert load(tmp_path / "whole", leave_out=("head",)).model.config.classes == 0


@pytest.mark.parametrize(
    "changes", [{"layer_scale": None, "mlp": "swiglu", "activation": "silu"}, {"layer_scale": 1.0}]
)
def test_what_transformers_computes_otherwise_is_not_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A gated MLP outside the DINOs; a DINOv2 for images that are not square, which it resamples as if they were."""
    size = (32, 32) if changes["layer_scale"] is None else (16, 64)
    sizes = {"image_size": size, "patch_size": 8, "width": 64, "depth": 1, "heads": 1, "mlp_width": 64, "classes": 0}
    checkpoint = Checkpoint(ViT(ViTConfig(**sizes, **changes)), Preprocess(size))
    with pytest.raises(
        CheckpointError, match="transformers' (vit|dinov2) cannot carry (a gated MLP|images or patches)"
    ):
        convert(checkpoint, tmp_path / "out", to="transformers")


def test_a_pooler_that_transformers_would_make_up_is_told_of(tmp_path: Path) -> None:
    """A bare ViT has none, and ViTModel makes a random one: the report says how to do without."""
    sizes = {"image_size": 32, "patch_size": 8, "width": 64, "depth": 1, "heads": 1, "mlp_width": 64, "classes": 0}
    for number, (width, told) in enumerate(((0, True), (64, False))):
        model = ViT(ViTConfig(**sizes, representation_width=width))
        report = convert(Checkpoint(model, Preprocess(32)), tmp_path / str(number), to="transformers")
        assert any("add_pooling_layer=False" in each for each in report.not_carried) == told
