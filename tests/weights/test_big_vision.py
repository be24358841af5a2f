"""big_vision's npz files in every layout it ever had: equal numbers, and back without losing a bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from network import renames
from vitrail.errors import CheckpointError
from vitrail.network.config import Resample
from vitrail.weights import convert, load
from vitrail.weights.families.google import RESAMPLE
from weights import google_writer as writer
from weights.google_writer import Arrays, Network
from weights.parity import SIZES, assert_equal, assert_same_bits

SINCOS = Network(patch=32, grid=7, pool="gap", sincos=True)  # no table: 224 pixels, as nothing else is said
VARIANTS = {
    "mean of the patches": Network(pool="gap"),
    "SigLIP": Network(pool="map", classes=0),
    "attention pool and head": Network(pool="map"),
    "cls token without a place": Network(pool="tok", slot=False),
    "cls token with a place, as it once was": Network(pool="tok"),
    "representation": Network(pool="gap", representation=48),
    "narrow heads": Network(pool="map", heads=3, head_width=8),
    "fixed positions": SINCOS,
    "fixed positions and a cls token": replace(SINCOS, pool="tok"),
}
TIMM_WAY: dict[str, Any] = {"activation": "gelu", "resample": Resample("bilinear", antialias=False)}


def read(path: Path) -> dict[str, Tensor]:
    """An npz as numpy reads it."""
    with np.load(path) as arrays:
        return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}


def oracle(network: Network, arrays: Arrays, resize: str = "zoom") -> Any:
    """The network in numpy, as a function of tensors."""
    return lambda pixels: torch.from_numpy(writer.forward(network, arrays, pixels.numpy(), resize)).float()


def saved(path: Path, arrays: Arrays, before: str = "params/") -> Path:
    return writer.save(path, writer.prefixed(arrays, before))


@pytest.mark.parametrize("name", VARIANTS)
def test_read_and_written_back(tmp_path: Path, name: str) -> None:
    """Equal logits at three sizes, one not square; written back, every array has the same name, shape and bits."""
    network = VARIANTS[name]
    arrays = writer.draw(network)
    path = saved(tmp_path / "theirs.npz", arrays)
    ours = load(path)
    assert ours.provenance.family == "big_vision"
    assert_equal(ours.model, oracle(network, arrays), ((224, 224),) if network.sincos else SIZES)
    report = convert(path, tmp_path / "ours.npz", to="big_vision")
    assert (report.preprocess_carried, report.not_carried) == (True, ())
    assert_same_bits(read(tmp_path / "ours.npz"), read(path))


LAYOUTS: dict[str, tuple[Network, Any]] = {
    "no prefix": (Network(pool="map"), lambda arrays: arrays),
    "image tower": (Network(pool="map"), lambda arrays: writer.prefixed(arrays, "params/img/")),
    "tower of LiT": (Network(pool="gap"), lambda arrays: writer.prefixed(arrays, "img/")),
    "stacked blocks": (Network(pool="map"), lambda arrays: writer.prefixed(writer.stacked(arrays), "params/")),
    "stacked tower": (Network(pool="map"), lambda arrays: writer.prefixed(writer.stacked(arrays), "params/img/")),
    "stacked, with a cls token": (Network(slot=False), lambda arrays: writer.stacked(arrays)),
    "table in the encoder": (Network(pool="gap"), writer.positions_in_encoder),
    "table in the encoder, with cls": (Network(), lambda arrays: writer.positions_in_encoder(arrays)),
    "MAP head at the top": (Network(pool="map"), writer.map_head_at_top),
    "ViT-G in the making": (
        Network(pool="map"),
        lambda arrays: writer.prefixed(writer.map_head_at_top(writer.positions_in_encoder(arrays)), "opt/target/"),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_layouts(tmp_path: Path, name: str) -> None:
    """The same numbers from every layout; written in the one of today, every value is the same."""
    network, spell = LAYOUTS[name]
    arrays = writer.draw(network)
    path = writer.save(tmp_path / "theirs.npz", spell(arrays))
    ours = load(path)
    assert ours.provenance.family == "big_vision"
    assert_equal(ours.model, oracle(network, arrays))
    convert(path, tmp_path / "ours.npz", to="big_vision")
    plain = saved(tmp_path / "plain.npz", arrays)
    assert_same_bits(read(tmp_path / "ours.npz"), read(plain))
    assert_same_bits(load(tmp_path / "ours.npz").model.state_dict(), ours.model.state_dict())


def test_numbers_from_before_linen(tmp_path: Path) -> None:
    """big_vision still reads blocks that count all their layers together."""
    network = Network(pool="gap")
    arrays = writer.draw(network)
    old = writer.vit_jax(arrays)
    old["pos_embedding"] = old.pop("Transformer/posembed_input/pos_embedding")
    path = writer.save(tmp_path / "old.npz", old)
    assert_equal(load(path).model, oracle(network, arrays))
    both = writer.save(tmp_path / "both.npz", writer.stacked(old))
    assert_equal(load(both).model, oracle(network, arrays))


def test_fixed_positions_of_any_size(tmp_path: Path) -> None:
    """Made anew for the size that is given, never stretched; where the size is not the usual, they are written."""
    network = replace(SINCOS, patch=8)
    arrays = writer.draw(network)
    path = saved(tmp_path / "theirs.npz", arrays)
    for size in ((32, 32), (40, 24)):
        ours = load(path, override={"image_size": size})
        assert ours.model.config.image_size == size
        assert_equal(ours.model, oracle(network, arrays), (size,))
    convert(path, tmp_path / "small.npz", to="big_vision", override={"image_size": 32})
    written = read(tmp_path / "small.npz")
    assert written.pop("params/pos_embedding").shape == (1, 16, 64)
    assert_same_bits(written, read(path))
    small = load(tmp_path / "small.npz").model
    assert_equal(small, oracle(network, arrays), ((32, 32),))


def test_naflex(tmp_path: Path) -> None:
    """Dense patches, the table as a grid, resized with a triangle as jax does; written back, the same bits."""
    network = Network(pool="map", classes=0)
    arrays = writer.draw(network)
    path = saved(tmp_path / "theirs.npz", writer.naflex(arrays, network.grid), "params/img/")
    ours = load(path)
    config = ours.model.config
    assert (config.patch_size, config.channels, config.image_size) == ((8, 8), 3, (32, 32))
    assert config.positions.resample == Resample("bilinear", antialias=True)
    assert_equal(ours.model, oracle(network, arrays, "triangle"), (*SIZES, (16, 24)))
    convert(path, tmp_path / "ours.npz", to="big_vision")
    plain = saved(tmp_path / "plain.npz", writer.naflex(arrays, network.grid))
    assert_same_bits(read(tmp_path / "ours.npz"), read(plain))
    odd = writer.naflex(arrays, network.grid) | {"embedding/kernel": np.ones((100, 64), np.float32)}
    with pytest.raises(CheckpointError, match="100 values make no square patch of 3 channels"):
        load(writer.save(tmp_path / "odd.npz", odd))


def test_bfloat16(tmp_path: Path) -> None:
    """Blanks of two bytes are bfloat16; they stay so on the way back."""
    network = Network(pool="map")
    arrays = writer.draw(network)
    halves = writer.bfloat16(writer.prefixed(arrays, "params/"))
    path = writer.save(tmp_path / "theirs.npz", halves)
    ours = load(path)
    assert {value.dtype for value in ours.model.state_dict().values()} == {torch.bfloat16}
    rounded = {name: (value.view(np.uint32) >> 16 << 16).view(np.float32) for name, value in arrays.items()}
    assert_equal(ours.model.float(), oracle(network, rounded))
    convert(path, tmp_path / "ours.npz", to="big_vision")
    with np.load(tmp_path / "ours.npz") as written:
        assert set(written.files) == set(halves)
        for name, value in halves.items():
            assert written[name].dtype == value.dtype == "V2", name
            assert written[name].tobytes() == value.tobytes(), name


# ---- what lies beside --------------------------------------------------------------------------------------------


def test_the_text_tower_is_left_out_by_name(tmp_path: Path) -> None:
    network = Network(pool="map", classes=0)
    arrays = writer.draw(network)
    both = writer.prefixed(arrays, "params/img/") | {
        "params/txt/Embed_0/embedding": np.ones((5, 4), np.float32),
        "params/txt/head/kernel": np.ones((4, 4), np.float32),
        "params/t": np.ones(1, np.float32),
        "params/b": np.ones(1, np.float32),
    }
    path = writer.save(tmp_path / "siglip.npz", both)
    with pytest.raises(CheckpointError, match=r"not used params/txt/Embed_0/embedding.*leave_out=.*'text'"):
        load(path)
    ours = load(path, leave_out=("text",))
    assert_equal(ours.model, oracle(network, arrays))
    preprocess = ours.preprocess
    assert (preprocess.resize, preprocess.interpolation, preprocess.antialias) == ("squash", "bilinear", False)


def test_a_training_state(tmp_path: Path) -> None:
    arrays = writer.draw(Network(pool="gap"))
    state = writer.prefixed(arrays, "params/") | {"opt/0/count": np.ones((), np.int32), "chrono/step": np.ones(1)}
    path = writer.save(tmp_path / "state.npz", state)
    with pytest.raises(CheckpointError, match=r"leave_out=\('optimizer',\)"):
        load(path)
    assert_equal(load(path, leave_out=("optimizer",)).model, oracle(Network(pool="gap"), arrays))


@pytest.mark.row("001.08")
@pytest.mark.parametrize("pool", ["gap", "map", "tok"])
def test_a_larger_size_without_the_head(tmp_path: Path, pool: str) -> None:
    network = Network(pool=pool, slot=False)
    arrays = writer.draw(network)
    path = saved(tmp_path / "theirs.npz", arrays)
    ours = load(path, override={"image_size": 56}, leave_out=("head",)).model
    assert (ours.config.image_size, ours.config.classes) == ((56, 56), 0)
    assert_equal(ours, oracle(replace(network, classes=0), arrays), ((56, 56),))


# ---- timm's own reader -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pool, layout",
    [("gap", "params/"), ("map", "params/img/"), ("tok", "params/"), ("map", "stacked")],
)
def test_timm_reads_the_same(timm: ModuleType, tmp_path: Path, pool: str, layout: str) -> None:
    """timm takes the exact GELU and half-pixel resizing for these files: asked for so, ours gives its numbers."""
    from timm.models.vision_transformer import VisionTransformer

    arrays = writer.draw(Network(pool=pool, slot=False))
    path = tmp_path / "theirs.npz"
    writer.save(path, writer.stacked(arrays)) if layout == "stacked" else saved(path, arrays, layout)
    ours = load(path, override=TIMM_WAY).model
    for size in (32, 48):
        theirs = VisionTransformer(
            img_size=size,
            patch_size=8,
            embed_dim=64,
            depth=2,
            num_heads=4,
            mlp_ratio=1.5,
            num_classes=7,
            global_pool={"gap": "avg", "map": "map", "tok": "token"}[pool],
            class_token=pool == "tok",
            no_embed_class=True,
            fc_norm=False,
        ).eval()
        theirs.load_pretrained(str(path))
        assert_equal(ours, theirs, ((size, size),))


def test_siglip_through_timm_and_back(timm: ModuleType, tmp_path: Path) -> None:
    """MAP head and tanh form survive; timm resamples in its own way, and the report says so."""
    network = Network(pool="map", classes=0, width=128, heads=2, head_width=64)
    path = saved(tmp_path / "theirs.npz", writer.draw(network))
    report = convert(path, tmp_path / "folder", to="timm")
    assert [each.partition(":")[0] for each in report.not_carried] == ["resample"]
    model = timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    assert_equal(load(path).model, model, ((32, 32),))
    convert(tmp_path / "folder", tmp_path / "back.npz", to="big_vision")
    assert_same_bits(read(tmp_path / "back.npz"), read(path))


# ---- between Google's two ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [Network(), Network(pool="gap"), Network(representation=48)])
def test_from_vit_jax_and_back(tmp_path: Path, network: Network) -> None:
    """A place for cls is kept, as big_vision's own reader of old files takes it: nothing is added up."""
    arrays = writer.draw(network)
    path = writer.save(tmp_path / "google.npz", writer.vit_jax(arrays))
    convert(path, tmp_path / "big_vision.npz", to="big_vision")
    assert_same_bits(read(tmp_path / "big_vision.npz"), read(saved(tmp_path / "expected.npz", arrays)))
    convert(tmp_path / "big_vision.npz", tmp_path / "back.npz", to="google")
    assert_same_bits(read(tmp_path / "back.npz"), read(path))


def test_fixed_positions_become_a_table_in_vit_jax(tmp_path: Path) -> None:
    arrays = writer.draw(SINCOS)
    path = saved(tmp_path / "theirs.npz", arrays)
    convert(path, tmp_path / "google.npz", to="google")
    back = load(tmp_path / "google.npz").model
    assert back.config.positions.kind == "learned"
    assert_equal(back, oracle(SINCOS, arrays), ((224, 224),))


def test_a_hybrid_has_no_place_in_big_vision(tmp_path: Path) -> None:
    path = writer.save(tmp_path / "theirs.npz", writer.vit_jax(writer.draw(Network(patch=2, resnet=()))))
    with pytest.raises(CheckpointError, match=r"big_vision has no place for stem.root.weight"):
        convert(path, tmp_path / "out.npz", to="big_vision")


# ---- what is wrong with a file -----------------------------------------------------------------------------------


@pytest.mark.fault("W9")
def test_stacked_blocks_that_do_not_agree(tmp_path: Path) -> None:
    """Every array must have as many blocks as the first, and none may lack the axis."""
    arrays = writer.stacked(writer.draw(Network(pool="gap")))
    name = "Transformer/encoderblock/MlpBlock_0/Dense_0/bias"
    for wrong in (arrays[name][:1], arrays[name][0], np.concatenate([arrays[name]] * 2)):
        path = writer.save(tmp_path / "wrong.npz", arrays | {name: wrong})
        with pytest.raises(CheckpointError, match=r"encoder.blocks.0.mlp.up.bias: expected \[96\], got"):
            load(path)
    key = "Transformer/encoderblock/MultiHeadDotProductAttention_0/key/kernel"
    path = writer.save(tmp_path / "wrong.npz", arrays | {key: arrays[key][:1]})
    with pytest.raises(CheckpointError, match=r"encoder.blocks.1.attention.qkv.weight: expected \[192, 64\], got"):
        load(path)


@pytest.mark.fault("W9")
def test_parts_that_contradict_each_other(tmp_path: Path) -> None:
    arrays = writer.draw(Network(pool="map")) | {"cls": np.ones((1, 1, 64), np.float32)}
    with pytest.raises(CheckpointError, match="both a cls token and a MAP head"):
        load(writer.save(tmp_path / "wrong.npz", arrays))
    arrays = writer.draw(Network(pool="gap")) | {"pos_embedding": np.ones((1, 17, 64), np.float32)}
    with pytest.raises(CheckpointError, match="17 positions make no square grid"):
        load(writer.save(tmp_path / "wrong.npz", arrays))
    arrays = writer.draw(Network(pool="map"))
    del arrays["MAPHead_0/LayerNorm_0/scale"]
    with pytest.raises(CheckpointError, match=r"missing pool.norm.weight \[64\]"):
        load(writer.save(tmp_path / "wrong.npz", arrays))


def test_what_the_code_says(tmp_path: Path) -> None:
    """No tensor says them: the tanh form of GELU, eps, linear zooming; each has its reason."""
    ours = load(saved(tmp_path / "theirs.npz", writer.draw(Network(pool="map"))))
    config = ours.model.config
    assert (config.activation, config.norm_eps, config.pool) == ("gelu_tanh", 1e-6, "map")
    assert config.positions.resample == RESAMPLE
    whys = {each.name: each.why for each in ours.provenance.settings}
    assert "tanh" in whys["activation"]
    assert "ends on ends" in whys["resample"]
    exact = load(tmp_path / "theirs.npz", override={"activation": "gelu"}).model
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert renames.gap(exact(pixels), ours.model(pixels)) > 1e-5
