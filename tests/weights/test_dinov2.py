"""DINOv2 from its own files, whole and in chunks; what its users ask of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import vitrail
from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.safetensors_io import StoredTensor
from vitrail.errors import CheckpointError, InputError, VitrailError
from vitrail.images import Preprocess
from vitrail.network import preset
from vitrail.network.config import Resample
from vitrail.network.surgery import build_empty
from vitrail.network.vit import ViT
from vitrail.weights import convert, load
from vitrail.weights.conversion import differences
from vitrail.weights.families import FAMILIES
from vitrail.weights.name_tables import to_theirs
from vitrail.weights.reading.contents import WeightContents
from weights.dino_files import assert_there_and_back, random, saved, tokens_of
from weights.originals import DinoHead, DinoV2, DinoV3
from weights.parity import CLOSE, SIZES, assert_equal

V2: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"registers": 4},
    "gated": {"gated": True},
    "gated, registers": {"gated": True, "registers": 4},
}


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
