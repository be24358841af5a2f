"""transformers' folders: the same numbers at every size, written back bit for bit, loaded by it without a word."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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

SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
FLAT: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "image_size"} | {"num_patches": 16}
DECODER: dict[str, Any] = {
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64,
}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BOTH: dict[str, Any] = {"vision_config": SMALL, "text_config": TEXT}


@dataclass(frozen=True)
class Case:
    """A class of transformers, and which of its outputs our network gives."""

    model: str
    config: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    output: str = "last_hidden_state"
    leave_out: tuple[str, ...] = ()
    back: str = ""  # the class that loads what we write; "": the same
    same: bool = True  # whether the tensors come back with the same bits
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the class, beside its config


LOGITS, POOLED, EMBEDDED = "logits", "pooler_output", "image_embeds"
CASES: dict[str, Case] = {
    "ViT": Case("ViTModel", "ViTConfig", SMALL, POOLED),
    "ViT, narrow pooler": Case("ViTModel", "ViTConfig", {**SMALL, "pooler_output_size": 24}, POOLED),
    "ViT without pooler": Case("ViTModel", "ViTConfig", SMALL, arguments={"add_pooling_layer": False}),
    "ViT, classes": Case("ViTForImageClassification", "ViTConfig", {**SMALL, "num_labels": 5}, LOGITS),
    "ViT, no qkv bias": Case("ViTForImageClassification", "ViTConfig", {**SMALL, "qkv_bias": False}, LOGITS),
    "ViT, wide heads": Case("ViTForImageClassification", "ViTConfig", {**SMALL, "head_dim": 64}, LOGITS),
    "DeiT": Case("DeiTModel", "DeiTConfig", SMALL, POOLED, same=False),
    "DeiT without pooler": Case("DeiTModel", "DeiTConfig", SMALL, arguments={"add_pooling_layer": False}),
    "DeiT, classes": Case("DeiTForImageClassification", "DeiTConfig", {**SMALL, "num_labels": 5}, LOGITS, same=False),
    "DeiT, both heads": Case("DeiTForImageClassificationWithTeacher", "DeiTConfig", {**SMALL, "num_labels": 5}, LOGITS),
    "MSN": Case("ViTMSNModel", "ViTMSNConfig", SMALL, back="ViTModel"),
    "MSN, classes": Case(
        "ViTMSNForImageClassification", "ViTMSNConfig", SMALL, LOGITS, back="ViTForImageClassification"
    ),
    "MAE's encoder": Case("ViTMAEModel", "ViTMAEConfig", {**SMALL, "mask_ratio": 0.0}, back="ViTModel"),
    "I-JEPA": Case("IJepaModel", "IJepaConfig", SMALL),
    "I-JEPA, classes": Case("IJepaForImageClassification", "IJepaConfig", {**SMALL, "num_labels": 5}, LOGITS),
    "DINOv2": Case("Dinov2Model", "Dinov2Config", SMALL),
    "DINOv2, gated": Case("Dinov2Model", "Dinov2Config", {**SMALL, "use_swiglu_ffn": True}, POOLED),
    "DINOv2, no mask token": Case("Dinov2Model", "Dinov2Config", {**SMALL, "use_mask_token": False}),
    "DINOv2, classes": Case("Dinov2ForImageClassification", "Dinov2Config", {**SMALL, "num_labels": 5}, LOGITS),
    "DINOv2, registers": Case("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", SMALL),
    "DINOv2, registers, classes": Case(
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", {**SMALL, "num_labels": 5}, LOGITS
    ),
    "DINOv3": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "num_register_tokens": 4}),
    "DINOv3, no registers": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "rope_theta": 50.0}),
    "DINOv3, gated": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "use_gated_mlp": True, "hidden_act": "silu"}),
    "DINOv3, all biases": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "key_bias": True}, POOLED),
    "DINOv3, no biases": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "query_bias": False, "value_bias": False}),
    "CLIP": Case("CLIPVisionModel", "CLIPVisionConfig", SMALL, POOLED),
    "CLIP, gelu": Case("CLIPVisionModel", "CLIPVisionConfig", {**SMALL, "hidden_act": "gelu"}, POOLED),
    "CLIP, projected": Case(
        "CLIPVisionModelWithProjection", "CLIPVisionConfig", {**SMALL, "projection_dim": 16}, EMBEDDED
    ),
    "SigLIP": Case("SiglipVisionModel", "SiglipVisionConfig", SMALL, POOLED),
    "SigLIP without its pool": Case("SiglipVisionModel", "SiglipVisionConfig", {**SMALL, "vision_use_head": False}),
    "SigLIP, classes": Case(
        "SiglipForImageClassification",
        "SiglipConfig",
        {**BOTH, "num_labels": 5},
        LOGITS,
        leave_out=("pool",),
        back="IJepaForImageClassification",
        same=False,
    ),
    "SigLIP 2": Case("Siglip2VisionModel", "Siglip2VisionConfig", FLAT, POOLED),
    "SigLIP 2 without its pool": Case("Siglip2VisionModel", "Siglip2VisionConfig", {**FLAT, "vision_use_head": False}),
}


@pytest.fixture(scope="module", autouse=True)
def quiet(transformers: ModuleType) -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def build(transformers: ModuleType, case: Case) -> Any:
    """A small model with random weights everywhere."""
    config = getattr(transformers, case.config)(**case.settings)
    model = getattr(transformers, case.model)(config, **case.arguments).eval()
    renames.randomise(model)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


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


IN_MEMORY = (
    *("ViT", "ViT without pooler", "ViT, classes", "DeiT, both heads", "MSN, classes", "I-JEPA", "DINOv2"),
    *("DINOv2, gated", "DINOv2, registers, classes", "DINOv3, gated", "CLIP", "SigLIP", "SigLIP 2"),
)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_names_as_version_5_has_them_in_memory(transformers: ModuleType, tmp_path: Path, name: str) -> None:
    """A state dict saved by hand, beside its config.json or alone in a pickle, is the same network."""
    case = CASES[name]
    model = build(transformers, case)
    folder = saved(model, tmp_path / "folder")
    expected = load(folder)
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    by_hand = load(folder)
    assert by_hand.model.config == expected.model.config
    assert_same_bits(by_hand.model.state_dict(), expected.model.state_dict())
    torch.save(state, tmp_path / "alone.bin")
    config = expected.model.config
    override = {"heads": 4} | {name: getattr(config, name) for name in ("activation", "norm_eps", "rotary")}
    alone = load(tmp_path / "alone.bin", override=override)
    assert_same_bits(alone.model.state_dict(), expected.model.state_dict())
    assert alone.model.config.pool == config.pool
    assert alone.model.config.positions.resample == config.positions.resample


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


def test_another_prefix_and_the_numbers_of_positions(transformers: ModuleType, tmp_path: Path) -> None:
    """Older files keep position_ids, which say nothing new: right ones are passed over, wrong ones refused."""
    folder = saved(build(transformers, CASES["CLIP"]), tmp_path / "theirs")
    stored = load_file(folder / "model.safetensors")
    expected = load(folder).model.state_dict()
    older = {f"vision_model.{name}": value for name, value in stored.items()}
    save_file(older | {"vision_model.embeddings.position_ids": torch.arange(17)[None]}, folder / "model.safetensors")
    assert_same_bits(load(folder).model.state_dict(), expected)
    convert(folder, tmp_path / "ours", to="transformers")
    assert_same_bits(load_file(tmp_path / "ours" / "model.safetensors"), older)
    wrong = torch.arange(17).flip(0)[None]
    save_file(older | {"vision_model.embeddings.position_ids": wrong}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="position_ids"):
        load(folder)


def test_a_mask_token_is_kept(transformers: ModuleType, tmp_path: Path) -> None:
    folder = saved(build(transformers, CASES["DINOv3"]), tmp_path / "theirs")
    stored = load_file(folder / "model.safetensors")["embeddings.mask_token"]
    assert torch.equal(load(folder).extras["mask_token"], stored[0])
    model = build(transformers, Case("ViTForMaskedImageModeling", "ViTConfig", {**SMALL, "encoder_stride": 8}))
    folder = saved(model, tmp_path / "masked")
    ours = load(folder, leave_out=("decoder",))
    assert torch.equal(ours.extras["mask_token"], model.vit.embeddings.mask_token[0].detach())
    report = convert(folder, tmp_path / "ours", to="transformers", leave_out=("decoder",))
    assert report.not_carried[0] == "extras.mask_token"


# ---- what config.json decides ------------------------------------------------------------------------------------


def edited(folder: Path, out: Path, **changes: Any) -> Path:
    """The same folder with another config.json; None takes an entry out."""
    shutil.copytree(folder, out)
    plain = json.loads((folder / "config.json").read_text()) | changes
    plain = {name: value for name, value in plain.items() if value is not None}
    (out / "config.json").write_text(json.dumps(plain))
    return out


@pytest.fixture(scope="module")
def vit(transformers: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ViT with five classes."""
    torch.manual_seed(0)
    return saved(build(transformers, CASES["ViT, classes"]), tmp_path_factory.mktemp("vit") / "vit")


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
    transformers: ModuleType, vit: Path, tmp_path: Path, said: str, ours: str
) -> None:
    folder = edited(vit, tmp_path / "edited", hidden_act=said, layer_norm_eps=1e-3)
    loaded = load(folder)
    assert (loaded.model.config.activation, loaded.model.config.norm_eps) == (ours, 1e-3)
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    assert_equal(loaded.model, lambda pixels: theirs(pixels).logits, ((32, 32),))
    why = {setting.name: setting.why for setting in loaded.provenance.settings}
    assert why["activation"] == why["norm_eps"] == why["heads"] == "the folder's config.json"


def test_what_config_leaves_out_its_class_decides(transformers: ModuleType, vit: Path, tmp_path: Path) -> None:
    """The class's eps is 1e-12, not the 1e-6 of most families."""
    folder = edited(vit, tmp_path / "edited", hidden_act=None, layer_norm_eps=None, image_size=None, patch_size=None)
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


def test_a_bare_file_says_what_was_taken_for_granted(vit: Path, tmp_path: Path) -> None:
    shutil.copy(vit / "model.safetensors", tmp_path / "bare.safetensors")
    ours = load(tmp_path / "bare.safetensors", override={"heads": 4})
    why = {setting.name: (setting.value, setting.why) for setting in ours.provenance.settings}
    assert why["norm_eps"] == ("1e-12", "what its model type takes for granted")
    assert why["heads"] == ("4", "given")
    assert_same_bits(ours.model.state_dict(), load(vit).model.state_dict())


def test_a_bare_clip_tower_must_be_told_its_activation(transformers: ModuleType, tmp_path: Path) -> None:
    folder = saved(build(transformers, CASES["CLIP"]), tmp_path / "theirs")
    bare = shutil.copy(folder / "model.safetensors", tmp_path / "bare.safetensors")
    with pytest.raises(CheckpointError, match="quick_gelu .*override"):
        load(bare, override={"heads": 4})
    told = load(bare, override={"heads": 4, "activation": "quick_gelu"})
    assert told.model.config == load(folder).model.config


def test_another_size_when_loading(transformers: ModuleType, vit: Path) -> None:
    """The table is resampled once, as transformers does it on every call."""
    theirs = transformers.ViTForImageClassification.from_pretrained(vit).eval()
    ours = load(vit, override={"image_size": 48})
    assert ours.model.config.image_size == (48, 48)
    assert_equal(ours.model, lambda pixels: run(theirs, pixels, LOGITS), ((48, 48),))


# ---- what is refused ---------------------------------------------------------------------------------------------

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
def test_a_config_that_does_not_fit(vit: Path, tmp_path: Path, name: str) -> None:
    """Refused by name, before anything is built."""
    changes, message = WRONG[name]
    with pytest.raises(CheckpointError, match=message):
        load(edited(vit, tmp_path / "edited", **changes))


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


@pytest.mark.fault("W9")
def test_tensors_that_are_missing_or_too_many(transformers: ModuleType, vit: Path, tmp_path: Path) -> None:
    """LayerScale that is gone; a pooler that no classifier asks; patches of nothing; two biases of three."""
    folder = saved(build(transformers, CASES["DINOv2"]), tmp_path / "dinov2")
    stored = load_file(folder / "model.safetensors")
    gone = {name: value for name, value in stored.items() if "layer_scale2" not in name}
    save_file(gone, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing encoder.blocks.0.scale2.gamma"):
        load(folder)
    folder = edited(vit, tmp_path / "pooler")
    stored = load_file(folder / "model.safetensors")
    more = {"vit.pooler.dense.weight": torch.randn(64, 64), "vit.pooler.dense.bias": torch.randn(64)}
    save_file(stored | more, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"leave_out=\('pooler',\)"):
        load(folder)
    assert load(folder, leave_out=("pooler",)).model.config.representation_width == 0
    name = "vit.embeddings.patch_embeddings.projection.weight"
    save_file(stored | {name: torch.zeros(64, 3, 0, 0)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="patch_size"):
        load(folder)
    key = "vit.encoder.layer.0.attention.attention.key.bias"
    save_file({name: value for name, value in stored.items() if name != key}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=key):
        load(folder)


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
