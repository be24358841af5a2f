"""DINO, DINOv2 and DINOv3 from their own files: the same numbers at any size, written back bit for bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.safetensors_io import StoredTensor
from vitrail.errors import CheckpointError, InputError, VitrailError
from vitrail.images import Preprocess
from vitrail.network import preset
from vitrail.network.config import Resample, Rotary
from vitrail.network.surgery import build_empty
from vitrail.network.vit import ViT
from vitrail.weights import convert, load
from vitrail.weights.conversion import differences
from vitrail.weights.families import FAMILIES
from vitrail.weights.name_tables import to_theirs
from vitrail.weights.reading.contents import WeightContents
from weights import originals
from weights.originals import SMALL, Dino, DinoHead, DinoV2, DinoV3
from weights.parity import CLOSE, SIZES, assert_equal, assert_same_bits

KEY = slice(128, 256)  # the third of a fused bias that is masked out, for SMALL's width

V2: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"registers": 4},
    "gated": {"gated": True},
    "gated, registers": {"gated": True, "registers": 4},
}
V3: dict[str, dict[str, Any]] = {
    "plain": {},
    "gated": {"gated": True},
    "no bias": {"bias": False},
    "as the 7B": {"gated": True, "bias": False, "local": True},
    "two registers": {"registers": 2},
}


def random(kind: type[nn.Module], **changes: Any) -> Any:
    """A small network of theirs in which nothing is zero or one, but what DINOv3 masks out."""
    model = kind(**{**SMALL, **changes}).eval()
    renames.randomise(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, originals.Fused):
                module.bias[KEY] = 0
    return model


def saved(content: Any, path: Path) -> Path:
    torch.save(content.state_dict() if isinstance(content, nn.Module) else content, path)
    return path


def tokens_of(model: ViT) -> Any:
    return lambda pixels: model.normed(model.encode(pixels).tokens)


def all_of(theirs: Any) -> Any:
    return lambda pixels: theirs.norm(theirs.walk(pixels)[-1])


def assert_there_and_back(theirs: Any, family: str, folder: Path) -> Checkpoint:
    """All tokens equal at three sizes; written back the same bits, which their own class loads strictly."""
    path = saved(theirs, folder / "theirs.pth")
    ours = load(path)
    assert ours.provenance.family == family
    assert_equal(tokens_of(ours.model), all_of(theirs))
    assert_equal(ours.model, theirs)
    report = convert(path, folder / "ours.pth", to=family)
    assert report.not_carried == ()
    assert report.preprocess_carried
    written = torch.load(folder / "ours.pth", weights_only=True)
    assert_same_bits(written, theirs.state_dict())
    renames.randomise(theirs)
    theirs.load_state_dict(written, strict=True)
    assert_equal(ours.model, theirs)
    return ours


# ---- DINO --------------------------------------------------------------------------------------------------------


def test_dino(tmp_path: Path) -> None:
    ours = assert_there_and_back(random(Dino), "dino", tmp_path)
    assert ours.model.config.positions.resample == Resample(antialias=False, offset=0.1)
    assert (ours.preprocess.mean, ours.preprocess.crop) == ((0.485, 0.456, 0.406), 0.875)


def training_file(folder: Path) -> tuple[Any, Any, Path]:
    """Student and teacher with their heads, as DINO's training writes them."""
    student, teacher = random(Dino), random(Dino)
    head = DinoHead(128)

    def together(model: nn.Module, prefix: str) -> dict[str, Tensor]:
        parts = {"backbone.": model.state_dict(), "head.": head.state_dict()}
        return {prefix + part + name: value for part, state in parts.items() for name, value in state.items()}

    content = {"student": together(student, "module."), "teacher": together(teacher, ""), "epoch": 3}
    return student, teacher, saved(content, folder / "checkpoint.pth")


def test_a_training_file_of_dino(tmp_path: Path) -> None:
    """The teacher is taken unless the student is asked for; the projection is only left out by name."""
    student, teacher, path = training_file(tmp_path)
    with pytest.raises(CheckpointError, match=r"not used head\.mlp.*leave_out=\('projection',\)"):
        load(path)
    ours = load(path, leave_out=("projection",))
    assert ours.provenance.family == "dino"
    assert_equal(ours.model, teacher)
    assert_equal(load(path, override={"take": "student"}, leave_out=("projection",)).model, student)
    left = [row.theirs[0] for row in ours.provenance.mapping if row.how == "left out"]
    assert sorted(left) == sorted(f"head.{name}" for name in DinoHead(128).state_dict())


# ---- DINOv2 ------------------------------------------------------------------------------------------------------


@pytest.mark.row("4.DINO", "4.REG")
@pytest.mark.parametrize("variant", V2)
def test_dinov2(tmp_path: Path, variant: str) -> None:
    theirs = random(DinoV2, **V2[variant])
    token = theirs.mask_token.detach().clone()
    ours = assert_there_and_back(theirs, "dinov2", tmp_path)
    config = ours.model.config
    assert torch.equal(ours.extras["mask_token"], token)
    smooth, offset = Resample(), Resample(antialias=False, offset=0.1)
    assert config.positions.resample == (smooth if V2[variant].get("registers") else offset)
    assert config.mlp == ("swiglu" if V2[variant].get("gated") else "plain")
    assert config.norm_eps == 1e-6


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("depth, chunk", [(4, 2), (5, 2), (3, 3)])
def test_blocks_in_chunks(tmp_path: Path, depth: int, chunk: int) -> None:
    """A training file: the teacher under backbone., blocks numbered through in chunks, two heads beside it."""
    theirs = random(DinoV2, depth=depth, chunk=chunk)
    state = {f"backbone.{name}": value for name, value in theirs.state_dict().items()}
    assert f"backbone.blocks.{(depth - 1) // chunk}.{depth - 1}.norm1.weight" in state
    for head in ("dino_head", "ibot_head"):
        state |= {f"{head}.{name}": value for name, value in DinoHead(128).state_dict().items()}
    path = saved({"teacher": state}, tmp_path / "teacher_checkpoint.pth")
    with pytest.raises(CheckpointError, match=r"leave_out=\('projection',\)"):
        load(path)
    ours = load(path, leave_out=("projection",))
    assert ours.provenance.family == "dinov2"
    assert ours.model.config.depth == depth
    assert_equal(ours.model, theirs)
    convert(ours, tmp_path / "ours.pth", to="dinov2")
    plain = random(DinoV2, depth=depth)
    plain.load_state_dict(torch.load(tmp_path / "ours.pth", weights_only=True), strict=True)
    assert_equal(plain, theirs)


def test_chunks_that_do_not_follow_on_are_refused(tmp_path: Path) -> None:
    state = random(DinoV2, depth=4, chunk=2).state_dict()
    moved = {name.replace("blocks.1.3.", "blocks.2.3."): value for name, value in state.items()}
    with pytest.raises(CheckpointError, match="blocks"):
        load(saved(moved, tmp_path / "moved.pth"))


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("variant", V2)
def test_dinov2_as_timm_reads_it(timm: ModuleType, tmp_path: Path, variant: str) -> None:
    """timm's own conversion of the same file: equal at the native size, with registers at every size."""
    from timm.layers import SwiGLUPacked
    from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

    theirs = random(DinoV2, **V2[variant])
    registers, gated = V2[variant].get("registers", 0), "gated" in V2[variant]
    witness = VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=128,
        depth=2,
        num_heads=2,
        mlp_ratio=4.0 if gated else 2.0,  # of both halves together
        init_values=1.0,
        num_classes=0,
        reg_tokens=registers,
        no_embed_class=bool(registers),
        dynamic_img_size=True,
        **({"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if gated else {}),
    ).eval()
    witness.load_state_dict(checkpoint_filter_fn(dict(theirs.state_dict()), witness), strict=True)
    ours = load(saved(theirs, tmp_path / "theirs.pth")).model
    assert_equal(tokens_of(ours), witness.forward_features, SIZES if registers else SIZES[:1])


@pytest.mark.row("4.DINO", "P.10")
def test_the_wrong_resampling_is_visible(transformers: ModuleType, tmp_path: Path) -> None:
    """transformers resamples DINOv2 by size: equal at the native size, apart on others, unless we are told to."""
    theirs = random(DinoV2)
    path = saved(theirs, tmp_path / "theirs.pth")
    ours = load(path).model
    config = transformers.Dinov2Config(
        image_size=32, patch_size=8, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=2
    )
    witness = transformers.Dinov2Model(config).eval()
    named = {name: value for name, value in witness.state_dict().items() if name != "embeddings.mask_token"}
    witness.load_state_dict(renames.to_theirs(renames.HF, ours, named), strict=False)
    states = lambda pixels: witness(pixels).last_hidden_state  # noqa: E731
    assert_equal(tokens_of(ours), states, SIZES[:1])
    for size in SIZES[1:]:
        pixels = torch.randn(2, 3, *size)
        with torch.no_grad():
            assert renames.gap(tokens_of(ours)(pixels), states(pixels)) > 1e-3
    assert_equal(tokens_of(load(path, override={"resample": {"antialias": False}}).model), states)


@pytest.mark.parametrize(
    "name", ["blocks.1.ls2.gamma", "blocks.0.ls1.gamma", "patch_embed.proj.bias", "blocks.0.attn.qkv.bias"]
)
@pytest.mark.fault("W9")
def test_a_missing_tensor_is_an_error(tmp_path: Path, name: str) -> None:
    state = random(DinoV2, gated=True).state_dict()
    del state[name]
    with pytest.raises(CheckpointError, match=f"theirs: {name}|not used blocks.0.ls2.gamma"):
        load(saved(state, tmp_path / "theirs.pth"))


def test_a_mask_token_is_made_where_there_is_none(tmp_path: Path) -> None:
    """Their own class asks for one; zeros, as an untrained one has."""
    config = preset("dinov2-s14", image_size=32, patch_size=8, width=128, heads=2, depth=2, mlp_width=256)
    checkpoint = Checkpoint(ViT(config).eval(), Preprocess(size=32))
    convert(checkpoint, tmp_path / "ours.pth", to="dinov2")
    written = torch.load(tmp_path / "ours.pth", weights_only=True)
    assert torch.equal(written["mask_token"], torch.zeros(1, 128))
    theirs = random(DinoV2)
    theirs.load_state_dict(written, strict=True)
    assert_equal(checkpoint.model, theirs)


# ---- DINOv3 ------------------------------------------------------------------------------------------------------


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


# ---- what DINOv2's users ask of it -------------------------------------------------------------------------------


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("kind, changes", [(DinoV2, {"registers": 4}), (DinoV2, {}), (DinoV3, {})])
def test_features_by_their_names(tmp_path: Path, kind: type[nn.Module], changes: dict[str, Any]) -> None:
    theirs = random(kind, **changes)
    model = load(saved(theirs, tmp_path / "theirs.pth")).model
    pixels = torch.randn(2, 3, 40, 24)
    with torch.no_grad():
        expected, got = theirs.forward_features(pixels), model.features(pixels)
        before = vitrail.trace(model, pixels, attention=False).hidden[-1]
    ours = {
        "x_norm_clstoken": got.prefix[:, 0],
        "x_norm_patchtokens": got.patches,
        "x_norm_regtokens": got.prefix[:, 1:],
        "x_prenorm": before,
    }
    assert got.prefix.shape[1] == 1 + theirs.registers
    for name, value in ours.items():
        if value.numel():
            assert renames.gap(value, expected[name]) < CLOSE, name
        assert value.shape == expected[name].shape, name


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("registers", [0, 4])
@pytest.mark.parametrize("norm", [True, False])
def test_intermediate_layers(tmp_path: Path, registers: int, norm: bool) -> None:
    """The last n blocks: patches as a grid (B, D, h, w) and the cls token, normed or not; not the embeddings."""
    theirs = random(DinoV2, depth=4, registers=registers)
    model = load(saved(theirs, tmp_path / "theirs.pth")).model
    pixels = torch.randn(2, 3, 40, 24)
    with torch.no_grad():
        expected = theirs.get_intermediate_layers(pixels, n=3, reshape=True, return_class_token=True, norm=norm)
        hidden = vitrail.trace(model, pixels, attention=False, hidden=True).hidden
    assert len(hidden) == 5
    h, w = model.config.grid_for((40, 24))
    for state, (patches, cls) in zip(hidden[-3:], expected, strict=True):
        state = model.normed(state) if norm else state
        grid = state[:, model.config.prefix :].unflatten(1, (h, w)).permute(0, 3, 1, 2)
        assert renames.gap(grid, patches) < CLOSE
        assert renames.gap(state[:, 0], cls) < CLOSE


@pytest.mark.row("4.DINO")
def test_a_size_that_does_not_divide_is_refused_with_one_that_does(tmp_path: Path) -> None:
    model = load(saved(random(DinoV2, size=56, patch=14), tmp_path / "theirs.pth")).model
    with pytest.raises(InputError, match=r"image 60x71 does not divide into patches of 14x14.*to 56 x 70"):
        model(torch.randn(1, 3, 60, 71))
    with pytest.raises(VitrailError, match="to 518 x 518"):
        preset("dinov2-g14").grid_for((520, 517))
    assert preset("dinov2-g14").grid_for((518, 518)) == (37, 37)


def shapes_of(name: str, family: str) -> WeightContents:
    """The names and shapes of a published file, without its values; whoever reads one fails."""
    model = build_empty(preset(name))
    config, checkpoint = model.config, Checkpoint(model, Preprocess(size=preset(name).image_size))
    description = FAMILIES[family].outline(checkpoint)
    ours = dict(model.state_dict()) | {f"extras.{n}": torch.empty(s) for n, s in description.extras.items()}
    tensors, lost = to_theirs(FAMILIES[family].table(description), ours, config)
    assert not lost
    stored = {n: StoredTensor(tuple(t.shape), t.dtype, lambda: pytest.fail("read")) for n, t in tensors.items()}
    return WeightContents("published.pth", "pickle", stored)


PUBLISHED = ["dinov2-s14", "dinov2-b14", "dinov2-l14", "dinov2-g14"]
PUBLISHED_V3 = ["dinov3-s16", "dinov3-splus16", "dinov3-b16", "dinov3-l16", "dinov3-hplus16"]


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("name", [*PUBLISHED, *PUBLISHED_V3])
def test_published_sizes_are_recognised_from_shapes_alone(name: str) -> None:
    family = name.partition("-")[0]
    contents = shapes_of(name, family)
    assert next(each.name for each in FAMILIES.values() if each.knows(contents)) == family
    assert differences(preset(name), FAMILIES[family].describe(contents, {}).config) == []


@pytest.mark.row("4.DINO")
def test_the_giant() -> None:
    """ViT-g/14 of DINOv2: 1536 wide, 40 blocks of 24 heads, a gated MLP of 4096 in one layer, 37 x 37 patches."""
    contents = shapes_of("dinov2-g14", "dinov2")
    assert contents.tensors["blocks.39.mlp.w12.weight"].shape == (8192, 1536)
    assert contents.tensors["blocks.39.mlp.w3.weight"].shape == (1536, 4096)
    assert contents.tensors["pos_embed"].shape == (1, 1370, 1536)
    assert contents.tensors["mask_token"].shape == (1, 1536)
    config = FAMILIES["dinov2"].describe(contents, {}).config
    assert (config.width, config.depth, config.heads, config.mlp_width) == (1536, 40, 24, 4096)
    assert (config.mlp, config.image_size, config.grid, config.layer_scale) == ("swiglu", (518, 518), (37, 37), 1.0)


# ---- which family a file is --------------------------------------------------------------------------------------


def test_a_head_of_classes_or_another_container_is_not_dino(tmp_path: Path) -> None:
    """The same names with a head, or in a safetensors file, are timm's, who resamples another way."""
    from safetensors.torch import save_file

    state = dict(random(Dino).state_dict())
    assert load(saved(state, tmp_path / "bare.pth")).provenance.family == "dino"
    headed = state | {"head.weight": torch.randn(10, 128), "head.bias": torch.randn(10)}
    assert load(saved(headed, tmp_path / "headed.pth")).provenance.family == "timm"
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "bare.safetensors")
    other = load(tmp_path / "bare.safetensors")
    assert (other.provenance.family, other.model.config.positions.resample) == ("timm", Resample())
    said = load(tmp_path / "bare.safetensors", override={"family": "dino"})
    assert said.model.config.positions.resample.offset == 0.1
